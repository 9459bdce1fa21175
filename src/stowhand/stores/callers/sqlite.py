"""Connections of sqlite3, and of aiosqlite, which has one in a thread of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from stowhand.errors import ConfigurationError
from stowhand.stores.callers.caller import SQLITE

T = TypeVar("T")


class SqliteCaller:
    """A connection of sqlite3."""

    database = SQLITE

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        # Only this has no commit, but for a transaction that its owner has begun.
        if getattr(self._connection, "autocommit", None) is True and not self._connection.in_transaction:
            raise ConfigurationError(
                "this connection has autocommit=True, so its commit() does nothing: begin a transaction first"
                " (connection.execute('BEGIN IMMEDIATE')), and end it with connection.execute('COMMIT')"
            )
        with plain_rows(self._connection):
            return work(self._connection)


class AiosqliteCaller:
    """A connection of aiosqlite."""

    database = SQLITE

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """In one piece in its thread: statements of other coroutines come before or after, never between."""
        connection = self._connection
        done: T = await connection._execute(lambda: SqliteCaller(connection._conn).run(work))  # noqa: SLF001
        return done


@contextmanager
def plain_rows(connection: sqlite3.Connection) -> Iterator[None]:
    """Meanwhile rows are tuples and texts are str, whatever the owner of the connection has set."""
    row_factory, text_factory = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = row_factory, text_factory
