"""A user's table in an SQLite file.

backend     the file's connections and threads, behind the protocol that both databases share
reading     facts (the catalog) -> findings (catalog, refusals) -> statements (statements, selecting; sql/*.sql)
claiming    due records, in order
finish      settled, released, reset
heartbeats  when leases are renewed and records reset
looking     counts, waits, due times, logs, requeue
moments     how applications keep time in SQLite
"""

from stowhand.stores.sqlite.table.backend import SqliteTable

__all__ = ["SqliteTable"]
