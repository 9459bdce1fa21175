"""Connections to PostgreSQL and SQLite, and statements kept in files. Nothing here knows what a job is.

address     what a user may write for "where", as connection parameters; and how to show it without a password
statements  named statements from .sql files, identifiers filled in
trouble     what an error means: try again (which it does), reconnect, or the caller's values are at fault
refused_rows  finds by halves which rows of a write the database refuses
link        one asynchronous connection that comes back by itself, and a pool of them
pool_places  how many connections of a pool are in use
borrowed    a pool of the application's in the shape of ours

sqlite_file        where an SQLite file may lie, and a connection to it
sqlite_connection  a connection with its lock: transactions that wait for it, savepoints, threads, forks
sqlite_wake        noticing that another connection committed
sqlite_trouble     what an error of SQLite means
"""
