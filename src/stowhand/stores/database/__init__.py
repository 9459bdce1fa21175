"""Connections to PostgreSQL and SQLite, and statements kept in files. Nothing here knows what a job is.

address            connection parameters of a URL, libpq string or name; shown without the password
statements         named statements from .sql files, with identifiers filled in
postgres_errors    the meaning of an error: retry (done here), reconnect, or fix the values
refused_rows       the rows of a write that the database refuses, found by bisection
link               one asynchronous connection that reconnects, and a pool of them
pool_places        the connections of a pool that are in use
borrowed_pool      an application's pool, with the interface of our own

sqlite_file        where an SQLite file may be, and a connection to it
sqlite_connection  a connection with its lock: transactions, savepoints, threads, forks
sqlite_wake        wake-ups by the commits of other connections
sqlite_errors      the meaning of SQLite's errors
"""
