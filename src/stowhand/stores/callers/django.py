"""Connections of Django's database aliases (``django.db.connection``, ``connections['orders']``)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from stowhand.errors import ConfigurationError
from stowhand.stores.callers.caller import ConnectionCheck, PendingCommit, function_call
from stowhand.stores.callers.sqlite import SqliteCaller

T = TypeVar("T")


class DjangoCaller:
    """A connection inside ``atomic()``, or one whose autocommit is off."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.database: str = connection.vendor

    def ask(self, function: str, value: str, check: ConnectionCheck) -> Any:
        self._refuse_autocommit()
        with self._connection.cursor() as cursor:
            check(self._connection.connection)
            cursor.execute(function_call(function), [value])
            return cursor.fetchone()[0]

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._refuse_autocommit()
        with self._connection.cursor():  # Django connects, and checks that this thread may use the connection
            self._connection.validate_no_broken_transaction()
            return SqliteCaller(self._connection.connection).run(work)

    def add_pending(self, pending: PendingCommit) -> None:
        self._refuse_autocommit()
        self._connection.on_commit(pending.show)

    def _refuse_autocommit(self) -> None:
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise ConfigurationError(
                f"the Django connection {self._connection.alias!r} is in no transaction, so each statement is"
                f" committed by itself: open one, `with transaction.atomic(using={self._connection.alias!r}):`"
            )
