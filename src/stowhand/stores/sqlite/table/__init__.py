"""A user's table in an SQLite file.

table        the backend, with the interface that both databases share
connections  the file's connections and threads, and the context of work on them
checks       facts (catalog) -> findings -> statements (composer, user_sql; statements.sql)
claims       due records, in order
plan         the transactions that settle, renew, release or reset
heartbeats   cancels waiting records, and lets other beats go before a sweep
operations   counts, waits, due times, logs, requeue
timestamps   the formats of times in SQLite
"""

from stowhand.stores.sqlite.table.table import SqliteTable

__all__ = ["SqliteTable"]
