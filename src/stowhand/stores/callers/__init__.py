"""Connections that an application holds and commits, of every library that it may have them from.

caller      what a store asks of such a connection
recognising which library an object is of, without importing that library
sqlalchemy  Connection, Session, AsyncConnection, AsyncSession, scoped ones
django      the connection of a database alias
drivers     asyncpg, aiosqlite

Those of psycopg and sqlite3 need nothing of this: their stores know them.
"""
