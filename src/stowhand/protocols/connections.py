"""What ``enqueue_in`` takes, for type checkers: the connections and sessions of every library, by what they can do.

A ``commit`` that gives nothing makes an object synchronous, one that is awaited asynchronous; asyncpg has none. What
they are at run time, the stores recognise (stores/callers).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol


class Connection(Protocol):
    """A connection or session: of psycopg, sqlite3, SQLAlchemy or Django."""

    def commit(self) -> None:
        """Never called by us: the caller commits, or rolls back."""


class AsyncConnection(Protocol):
    """The same, awaited: of psycopg, aiosqlite or SQLAlchemy."""

    def commit(self) -> Awaitable[None]:
        """Never called by us."""


class BlockConnection(Protocol):
    """A connection of asyncpg, whose transactions are blocks."""

    def is_in_transaction(self) -> bool:
        """It has to be."""


Asynchronous = AsyncConnection | BlockConnection
