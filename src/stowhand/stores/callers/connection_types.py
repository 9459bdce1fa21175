"""Recognizes the library of a connection by class names, so that no library is imported before it is used."""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name
from typing import Any

from stowhand.errors import ConfigurationError
from stowhand.stores.callers.caller import POSTGRES, SQLITE, CommitAwareCaller

_CALLER_PATHS = {
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
"""The factory of the callers of each class, in a sibling module."""
_ASYNCHRONOUS_CLASSES = {
    "psycopg.AsyncConnection",
    "asyncpg.connection.Connection",
    "asyncpg.pool.PoolConnectionProxy",
    "aiosqlite.core.Connection",
}
_ACCEPTED_CONNECTIONS = {
    POSTGRES: "a connection to PostgreSQL (psycopg 3, asyncpg, SQLAlchemy, Django)",
    SQLITE: "a connection to SQLite (sqlite3, aiosqlite, SQLAlchemy, Django)",
}
_ENGINE_ADVICE = "it is not a transaction: `with engine.begin() as connection:`, and hand over the connection"
_SESSION_MAKER_ADVICE = "call it: `with make_session.begin() as session:`, and hand over the session"
_POOL_ADVICE = "a pool has no transaction: take a connection from it, and hand that over"
_CONNECTION_ADVICE = "hand over its connection"
_ADVICE_BY_CLASS = {
    "sqlalchemy.engine.base.Engine": _ENGINE_ADVICE,
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": _ENGINE_ADVICE.replace("`with", "`async with"),
    "sqlalchemy.orm.session.sessionmaker": _SESSION_MAKER_ADVICE,
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": _SESSION_MAKER_ADVICE.replace("`with", "`async with"),
    "sqlalchemy.orm.session.SessionTransaction": "hand over its session",
    "sqlalchemy.engine.base.Transaction": _CONNECTION_ADVICE,
    "sqlalchemy.pool.base.PoolProxiedConnection": "hand over the Connection or Session that it was taken from",
    "sqlalchemy.pool.base.Pool": _POOL_ADVICE,
    "flask_sqlalchemy.extension.SQLAlchemy": "hand over its session: `db.session`",
    "asyncpg.pool.Pool": _POOL_ADVICE,
    "asyncpg.pool.PoolAcquireContext": "`async with` it, and hand over the connection",
    "psycopg_pool.base.BasePool": _POOL_ADVICE,
    "psycopg.Cursor": _CONNECTION_ADVICE,
    "psycopg.AsyncCursor": _CONNECTION_ADVICE,
    "sqlite3.Cursor": _CONNECTION_ADVICE,
    "aiosqlite.cursor.Cursor": _CONNECTION_ADVICE,
    "django.db.utils.ConnectionHandler": "hand over one of them: `connections['default']`",
    "psycopg2.extensions.connection": "psycopg2 alone is not supported: call add_job in SQL, or use psycopg 3",
}
"""What to pass instead of an object of a class that is not a supported connection."""


def is_asynchronous(connection: object) -> bool:
    """Return whether calls on this connection must be awaited."""
    names = _class_names(type(connection))
    return not _ASYNCHRONOUS_CLASSES.isdisjoint(names) or any(
        name.startswith("sqlalchemy.ext.asyncio.") for name in names
    )


def caller_to(database: str, connection: object, call: str = "enqueue_in") -> Any:
    """Return the PostgresCaller or SqliteCaller of the connection. Raise ConfigurationError for any other object.

    ``call``: the name of the call, for the error.
    """
    caller = _caller_of(connection)
    if caller is not None and caller.database == database:
        return caller
    correction = f" to {caller.database}" if caller is not None else _advice_for(connection)
    raise ConfigurationError(
        f"{call} needs {_ACCEPTED_CONNECTIONS[database]}, not a {_class_names(type(connection))[0]}{correction}"
    )


def commit_aware_caller(connection: object, call: str = "enqueue_in") -> CommitAwareCaller | None:
    """Return the caller of a connection whose library reports commits, else ``None``.

    Raise ConfigurationError for an engine, a pool and the like. ``call``: the name of the call, for the error.
    """
    caller = _caller_of(connection)
    if caller is None and (advice := _advice_for(connection)):
        raise ConfigurationError(
            f"{call} needs a connection or a session, not a {_class_names(type(connection))[0]}{advice}"
        )
    return caller if hasattr(caller, "add_pending") else None


def is_asyncpg(connection: object) -> bool:
    """Return whether this is an asyncpg connection, which has no commit: its transactions are blocks."""
    return any(_CALLER_PATHS.get(name) == "postgres:AsyncpgCaller" for name in _class_names(type(connection)))


def _caller_of(connection: object) -> Any:
    connection_type: Any = type(connection)
    make_caller = _factory_of(connection_type)
    return None if make_caller is None else make_caller(connection)


@cache
def _factory_of(connection_type: type) -> Any:
    path = next((_CALLER_PATHS[name] for name in _class_names(connection_type) if name in _CALLER_PATHS), None)
    return None if path is None else resolve_name(f"{__package__}.{path}")


def _advice_for(connection: object) -> str:
    known_names = (name for name in _class_names(type(connection)) if name in _ADVICE_BY_CLASS)
    return next((f"; {_ADVICE_BY_CLASS[name]}" for name in known_names), "")


def _class_names(connection_type: type) -> list[str]:
    return [f"{base.__module__}.{base.__qualname__}" for base in connection_type.__mro__]
