"""A connection of sqlite3 that an application holds, for work of ours in its transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class PlainHost:
    """The connection as it is."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.execute = connection.execute

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    @property
    def refusal(self) -> str | None:
        """Only ``autocommit=True`` (Python 3.12) has no commit: a transaction that its owner has begun is its own."""
        if getattr(self._connection, "autocommit", None) is not True:
            return None
        return (
            "this connection has autocommit=True, so its commit() does nothing: begin a transaction first"
            " (connection.execute('BEGIN IMMEDIATE')), and end it with connection.execute('COMMIT')"
        )


@contextmanager
def plain_host(connection: sqlite3.Connection) -> Iterator[Any]:
    """Rows as tuples and texts as str, whatever the owner of the connection has set."""
    row_factory, text_factory = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield PlainHost(connection)
    finally:
        connection.row_factory, connection.text_factory = row_factory, text_factory
