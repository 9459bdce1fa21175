"""Django: the connection of a database alias (``django.db.connection``, ``connections['orders']``)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from stowhand.errors import ConfigurationError
from stowhand.stores.callers.caller import Check, Held, SqliteHost

T = TypeVar("T")

_NAME = re.compile(r":([a-z_]+)")


class DjangoCaller:
    """A connection inside ``atomic()``, or one whose autocommit is off. Statements pass Django's own cursors."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.database: str = connection.vendor

    def ask(self, function: str, value: str, check: Check) -> Any:
        self._refuse_autocommit()
        with self._connection.cursor() as cursor:
            check(self._connection.connection)
            cursor.execute(f"select {function.replace('%', '%%')}(%s::text)", [value])
            return cursor.fetchone()[0]

    def run(self, work: Callable[[SqliteHost], T]) -> T:
        self._refuse_autocommit()
        with self._connection.cursor() as cursor:
            return work(_Host(self._connection, cursor))

    def hear(self, held: Held) -> None:
        """Tell it of the commit."""
        self._refuse_autocommit()
        self._connection.on_commit(held.show)

    def _refuse_autocommit(self) -> None:
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise ConfigurationError(
                f"the connection {self._connection.alias!r} of Django's is in no transaction, so that each statement is"
                f" committed by itself: open one, `with transaction.atomic(using={self._connection.alias!r}):`"
            )


class _Host:
    refusal = None

    def __init__(self, connection: Any, cursor: Any) -> None:
        self._connection = connection
        self._cursor = cursor

    def execute(self, sql: str, values: Any = (), /) -> Any:
        # Django's placeholders: what it logs, it fills in itself.
        sql = _NAME.sub(r"%(\1)s", sql.replace("%", "%%")) if isinstance(values, dict) else sql.replace("?", "%s")
        try:
            self._cursor.execute(sql, values or None)
        except Exception as error:
            if isinstance(error.__cause__, self._connection.Database.Error):
                raise error.__cause__ from error
            raise
        return self._cursor

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.connection.in_transaction)
