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
        # Only with autocommit=True does commit() do nothing, except in a transaction that the owner has started.
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
        """Run the work uninterrupted in the connection's thread, with no statements of other coroutines in between."""
        connection = self._connection
        result: T = await connection._execute(lambda: SqliteCaller(connection._conn).run(work))  # noqa: SLF001
        return result


@contextmanager
def plain_rows(connection: sqlite3.Connection) -> Iterator[None]:
    """Read rows as tuples and texts as str inside the block, whatever the owner of the connection has set."""
    row_factory, text_factory = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = row_factory, text_factory
