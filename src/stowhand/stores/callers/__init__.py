"""Connections of every supported library that an application owns and commits.

caller            the interfaces of such connections
connection_types  which library an object is of, without importing that library
postgres          connections of psycopg 3 and of asyncpg
sqlite            connections of sqlite3 and aiosqlite
sqlalchemy        Connection, Session, AsyncConnection, AsyncSession, scoped ones; how their transactions end
django            the connection of a database alias
"""
