"""Which library an object is of, by the names of its classes: nothing is imported before there is such an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stowhand.errors import ConfigurationError
from stowhand.stores.callers.caller import POSTGRES, SQLITE, PostgresCaller, SqliteCaller

if TYPE_CHECKING:
    from stowhand.stores.callers.django import DjangoCaller
    from stowhand.stores.callers.sqlalchemy import SqlAlchemyCaller

_SQLALCHEMY = {
    "sqlalchemy.engine.base.Connection": "connection",
    "sqlalchemy.orm.session.Session": "session",
    "sqlalchemy.orm.scoping.scoped_session": "scoped_session",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "async_connection",
    "sqlalchemy.ext.asyncio.session.AsyncSession": "async_session",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": "async_scoped_session",
}
_DJANGO = {"django.utils.connection.ConnectionProxy", "django.db.backends.base.base.BaseDatabaseWrapper"}
_ASYNCPG = {"asyncpg.connection.Connection", "asyncpg.pool.PoolConnectionProxy"}
_AIOSQLITE = {"aiosqlite.core.Connection"}

_WANTED = {
    POSTGRES: "a connection to PostgreSQL (psycopg 3, asyncpg, SQLAlchemy, Django)",
    SQLITE: "a connection to SQLite (sqlite3, aiosqlite, SQLAlchemy, Django)",
}
_ENGINE = "it is no transaction: `with engine.begin() as connection:`, and hand over the connection"
_SESSIONS = "call it: `with make_session.begin() as session:`, and hand over the session"
_POOL = "a pool has no transaction: take a connection from it, and hand that over"
_CURSOR = "hand over its connection"
INSTEAD = {
    "sqlalchemy.engine.base.Engine": _ENGINE,
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": _ENGINE.replace("`with", "`async with"),
    "sqlalchemy.orm.session.sessionmaker": _SESSIONS,
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": _SESSIONS.replace("`with", "`async with"),
    "sqlalchemy.orm.session.SessionTransaction": "hand over its session",
    "sqlalchemy.engine.base.Transaction": _CURSOR,
    "sqlalchemy.pool.base.PoolProxiedConnection": "hand over the Connection or Session that it was taken from",
    "sqlalchemy.pool.base.Pool": _POOL,
    "flask_sqlalchemy.extension.SQLAlchemy": "hand over its session: `db.session`",
    "asyncpg.pool.Pool": _POOL,
    "asyncpg.pool.PoolAcquireContext": "`async with` it, and hand over the connection",
    "psycopg_pool.base.BasePool": _POOL,
    "psycopg._cursor_base.BaseCursor": _CURSOR,
    "sqlite3.Cursor": _CURSOR,
    "aiosqlite.cursor.Cursor": _CURSOR,
    "django.db.utils.ConnectionHandler": "hand over one of them: `connections['default']`",
    "psycopg2.extensions.connection": "psycopg2 alone is not supported: call add_job in SQL, or use psycopg 3",
}
"""What to hand over instead of what is no connection, or none of these."""


def is_asynchronous(connection: object) -> bool:
    """What is done on it has to be awaited."""
    names = _names(connection)
    of_drivers = {"psycopg.AsyncConnection", *_ASYNCPG, *_AIOSQLITE}
    return not of_drivers.isdisjoint(names) or any(name.startswith("sqlalchemy.ext.asyncio.") for name in names)


def postgres_caller(connection: Any) -> PostgresCaller:
    """The connection as a store asks it. Raises ConfigurationError where it is none to PostgreSQL."""
    names = _names(connection)
    if not _ASYNCPG.isdisjoint(names):
        from stowhand.stores.callers.drivers import AsyncpgCaller

        return AsyncpgCaller(connection)
    caller: PostgresCaller = _of_a_library(connection, names, POSTGRES)
    return caller


def sqlite_caller(connection: Any) -> SqliteCaller:
    """The connection as a store asks it. Raises ConfigurationError where it is none to SQLite."""
    names = _names(connection)
    if not _AIOSQLITE.isdisjoint(names):
        from stowhand.stores.callers.drivers import AiosqliteCaller

        return AiosqliteCaller(connection)
    caller: SqliteCaller = _of_a_library(connection, names, SQLITE)
    return caller


def hearing_caller(connection: Any) -> SqlAlchemyCaller | DjangoCaller | None:
    """The connection, where its library tells of its commit. Raises ConfigurationError for an engine, a pool, …"""
    names = _names(connection)
    caller = _library_caller(connection, names)
    instead = next((INSTEAD[name] for name in names if name in INSTEAD), None)
    if caller is None and instead is not None:
        raise ConfigurationError(f"enqueue_in needs a connection or a session, not a {names[0]}; {instead}")
    return caller


def is_asyncpg(connection: object) -> bool:
    """It has no commit: its transactions are blocks."""
    return not _ASYNCPG.isdisjoint(_names(connection))


def _library_caller(connection: Any, names: list[str]) -> SqlAlchemyCaller | DjangoCaller | None:
    if kinds := [_SQLALCHEMY[name] for name in names if name in _SQLALCHEMY]:
        from stowhand.stores.callers.sqlalchemy import sqlalchemy_caller

        return sqlalchemy_caller(kinds[0], connection)
    if not _DJANGO.isdisjoint(names):
        from stowhand.stores.callers.django import DjangoCaller

        return DjangoCaller(connection)
    return None


def _of_a_library(connection: Any, names: list[str], wanted: str) -> Any:
    """SQLAlchemy's and Django's are to a database of any kind."""
    caller = _library_caller(connection, names)
    if caller is not None and caller.database == wanted:
        return caller
    instead = next((f"; {INSTEAD[name]}" for name in names if name in INSTEAD), "")
    to = f" to {caller.database}" if caller is not None else instead
    raise ConfigurationError(f"enqueue_in needs {_WANTED[wanted]}, not a {names[0]}{to}")


def _names(connection: object) -> list[str]:
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(connection).__mro__]
