"""Which library an object is of, by the names of its classes: nothing is imported before there is such an object."""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name
from typing import Any

from stowhand.errors import ConfigurationError
from stowhand.stores.callers.caller import POSTGRES, SQLITE, HearingCaller

_CALLERS = {
    "psycopg.Connection": "postgres:PsycopgCaller",
    "psycopg.AsyncConnection": "postgres:AsyncPsycopgCaller",
    "asyncpg.connection.Connection": "postgres:AsyncpgCaller",
    "asyncpg.pool.PoolConnectionProxy": "postgres:AsyncpgCaller",
    "sqlite3.Connection": "sqlite:SqliteCaller",
    "aiosqlite.core.Connection": "sqlite:AiosqliteCaller",
    "sqlalchemy.engine.base.Connection": "sqlalchemy:of_connection",
    "sqlalchemy.orm.session.Session": "sqlalchemy:of_session",
    "sqlalchemy.orm.scoping.scoped_session": "sqlalchemy:of_scoped_session",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "sqlalchemy:of_async_connection",
    "sqlalchemy.ext.asyncio.session.AsyncSession": "sqlalchemy:of_async_session",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": "sqlalchemy:of_async_scoped_session",
    "django.utils.connection.ConnectionProxy": "django:DjangoCaller",
    "django.db.backends.base.base.BaseDatabaseWrapper": "django:DjangoCaller",
}
"""Classes, and what makes a caller of an object of theirs, in the modules beside this one."""
_ASYNCHRONOUS = {
    "psycopg.AsyncConnection",
    "asyncpg.connection.Connection",
    "asyncpg.pool.PoolConnectionProxy",
    "aiosqlite.core.Connection",
}
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
    "psycopg.Cursor": _CURSOR,
    "psycopg.AsyncCursor": _CURSOR,
    "sqlite3.Cursor": _CURSOR,
    "aiosqlite.cursor.Cursor": _CURSOR,
    "django.db.utils.ConnectionHandler": "hand over one of them: `connections['default']`",
    "psycopg2.extensions.connection": "psycopg2 alone is not supported: call add_job in SQL, or use psycopg 3",
}
"""What to hand over instead of what is no connection, or none of these."""


def is_asynchronous(connection: object) -> bool:
    """What is done on it has to be awaited."""
    names = _names(type(connection))
    return not _ASYNCHRONOUS.isdisjoint(names) or any(name.startswith("sqlalchemy.ext.asyncio.") for name in names)


def caller_to(database: str, connection: object) -> Any:
    """Return the PostgresCaller or SqliteCaller of the connection. Raise ConfigurationError where it is none such."""
    caller = _caller_of(connection)
    if caller is not None and caller.database == database:
        return caller
    instead = f" to {caller.database}" if caller is not None else _instead_of(connection)
    raise ConfigurationError(f"enqueue_in needs {_WANTED[database]}, not a {_names(type(connection))[0]}{instead}")


def hearing_caller(connection: object) -> HearingCaller | None:
    """Return the caller of a connection whose library reports its commit. Raise ConfigurationError for an engine, …"""
    caller = _caller_of(connection)
    if caller is None and (instead := _instead_of(connection)):
        raise ConfigurationError(
            f"enqueue_in needs a connection or a session, not a {_names(type(connection))[0]}{instead}"
        )
    return caller if hasattr(caller, "hear") else None


def is_asyncpg(connection: object) -> bool:
    """It has no commit: its transactions are blocks."""
    return any(_CALLERS.get(name) == "postgres:AsyncpgCaller" for name in _names(type(connection)))


def _caller_of(connection: object) -> Any:
    kind: Any = type(connection)
    maker = _maker_of(kind)
    return None if maker is None else maker(connection)


@cache
def _maker_of(kind: type) -> Any:
    found = next((_CALLERS[name] for name in _names(kind) if name in _CALLERS), None)
    return None if found is None else resolve_name(f"{__package__}.{found}")


def _instead_of(connection: object) -> str:
    return next((f"; {INSTEAD[name]}" for name in _names(type(connection)) if name in INSTEAD), "")


def _names(kind: type) -> list[str]:
    return [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
