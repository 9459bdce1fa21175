"""``manage.py flush``, which Django also calls after each test of a ``TransactionTestCase``.

Django empties only the tables of models, so this command also removes the jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.commands import flush
from django.db import connections

from stowhand.django.tables import databases_of


class Flush(flush.Command):
    """Django's command, and then the jobs, unless the user has declined."""

    def handle(self, **options: Any) -> None:
        alias = options["database"]
        emptied_aliases = []
        operations = connections[alias].ops

        def execute_sql_flush(statements: Sequence[str]) -> None:
            # Django calls this unless the user has declined, even without tables of models.
            type(operations).execute_sql_flush(operations, statements)
            emptied_aliases.append(alias)

        operations.execute_sql_flush = execute_sql_flush
        try:
            super().handle(**options)
        finally:
            del operations.execute_sql_flush
        for database in databases_of(alias) if emptied_aliases else ():
            with database.transaction() as jobs:
                jobs.empty()


Command = Flush
"""The name that Django requires."""
