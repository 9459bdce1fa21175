"""``manage.py flush``, which is also what follows each test of a ``TransactionTestCase``: jobs go with the rows that
they are about. Django empties the tables of models alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.commands import flush
from django.db import connections

from stowhand.django.tables import databases_of


class Flush(flush.Command):
    """Django's, and then ours, unless it was called off."""

    def handle(self, **options: Any) -> None:
        alias, emptied = options["database"], []
        operations = connections[alias].ops

        def empty(statements: Sequence[str]) -> None:
            """Django's, which it calls where it was not called off, with nothing where there are no models' tables."""
            type(operations).execute_sql_flush(operations, statements)
            emptied.append(alias)

        operations.execute_sql_flush = empty
        try:
            super().handle(**options)
        finally:
            del operations.execute_sql_flush
        for database in databases_of(alias) if emptied else ():
            with database.transaction() as jobs:
                jobs.empty()


Command = Flush
"""Django asks for this name."""
