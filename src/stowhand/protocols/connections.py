"""What ``enqueue_in`` takes, for type checkers: the connections and sessions of every library, by what they can do.

A ``commit`` that gives nothing makes an object synchronous, one that is awaited asynchronous; asyncpg has none. What
they are at run time, the stores recognise (stores/callers).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol


class CommittedConnection(Protocol):
    """A connection or session: of psycopg, sqlite3, SQLAlchemy or Django."""

    def commit(self) -> None:
        """Never called by us: the caller commits, or rolls back."""


class DjangoConnection(Protocol):
    """``django.db.connection``, which passes everything on: a checker sees no more of it."""

    def __getattr__(self, item: str) -> Any: ...

    def __contains__(self, key: str, /) -> bool: ...


class AwaitedConnection(Protocol):
    """As the first, awaited: of psycopg, aiosqlite or SQLAlchemy."""

    def commit(self) -> Awaitable[None]:
        """Never called by us."""


class AsyncpgConnection(Protocol):
    """Its transactions are blocks."""

    def is_in_transaction(self) -> bool:
        """It has to be."""


class AsyncpgPoolConnection(Protocol):
    """The same from a pool, which passes everything on."""

    _holder: Any


Connection = CommittedConnection | DjangoConnection
AsyncConnection = AwaitedConnection | AsyncpgConnection | AsyncpgPoolConnection
