"""A user's table in an SQLite file.

backend     what a worker asks of it, behind the protocol that both databases share
connections     the file's connections and threads
reading     facts (the catalog) -> findings (catalog, refusals) -> statements (statements, selecting; sql/*.sql)
claiming    due records, in order
plan        settled, renewed, released, reset: the work of each transaction
heartbeats  when waiting records are canceled, and when a sweep gives way
asking      counts, waits, due times, logs, requeue
moments     how applications keep time in SQLite
"""

from stowhand.stores.sqlite.table.backend import SqliteTable

__all__ = ["SqliteTable"]
