"""Connections that an application holds and commits, of every library.

caller            what a store does with such a connection
connection_types  which library an object is of, without importing that library
postgres          connections of psycopg 3 and of asyncpg
sqlite            the connections of sqlite3 and aiosqlite
sqlalchemy        Connection, Session, AsyncConnection, AsyncSession, scoped ones; how their transactions end
django            the connection of a database alias
"""
