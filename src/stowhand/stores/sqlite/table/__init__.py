"""A user's table in an SQLite file.

table        what a worker asks of it, behind the protocol that both databases share
connections  the file's connections and threads, and what work on them is passed
checks       facts (catalog) -> findings -> statements (composer, user_sql; statements.sql)
claims       due records, in order
plan         the work of each transaction that settles, renews, releases or resets
heartbeats   when waiting records are canceled, and when a sweep gives way
operations   counts, waits, due times, logs, requeue
moments      how applications keep time in SQLite
"""

from stowhand.stores.sqlite.table.table import SqliteTable

__all__ = ["SqliteTable"]
