"""Connections that an application holds and commits, of every library.

caller            what a store does with such a connection
connection_types  which library an object is of, without importing that library
psycopg           Connection, AsyncConnection
asyncpg           its connections, of a pool or not
sqlite            the connections of sqlite3 and aiosqlite
sqlalchemy        Connection, Session, AsyncConnection, AsyncSession, scoped ones
commits           how SQLAlchemy's transactions end
django            the connection of a database alias
"""
