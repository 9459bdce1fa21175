"""``manage.py flush``, which is also what follows each test of a ``TransactionTestCase``: jobs go with the rows that
they are about. Django empties the tables of models alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.commands import flush
from django.db import connections

from stowhand.django.tables import databases_of


class Flush(flush.Command):
    """Django's, and then ours, unless it was called off."""

    def handle(self, **options: Any) -> None:
        alias, emptying = options["database"], _Emptying()
        with connections[alias].execute_wrapper(emptying):
            super().handle(**options)
        for database in databases_of(alias) if emptying.seen else ():
            with database.transaction() as jobs:
                jobs.empty()


class _Emptying:
    """Hears whether a table is emptied."""

    seen = False

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        self.seen = self.seen or str(sql).lstrip().upper().startswith(("TRUNCATE", "DELETE"))
        return execute(sql, params, many, context)


Command = Flush
"""Django asks for this name."""
