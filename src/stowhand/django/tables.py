"""The tables as Django migrations. Each runs the installer in its own transaction, which installs missing parts.

They can run before or after ``stowhand migrate``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.db.migrations import CreateModel, Migration
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.operations.base import Operation
from django.db.models import BigAutoField

from stowhand.app.settings.resolver import read_store
from stowhand.django.application import APP_SETTING, HAS_TASKS, project_app
from stowhand.django.database import Database


class Install(Operation):
    """Migration operation for the tables of one schema number. ``first``: undoing it removes all tables."""

    reduces_to_sql = False
    reversible = True

    def __init__(self, postgres: int, sqlite: int, *, first: bool = False) -> None:
        self.postgres, self.sqlite, self.first = postgres, sqlite, first

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Do nothing: there are no models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        for database in databases_of(schema_editor.connection.alias):
            with database.explained():
                database.jobs.install()

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Remove the tables if this is the first migration. Otherwise older workers use the newer schema."""
        for database in databases_of(schema_editor.connection.alias) if self.first else ():
            if live := database.jobs.count_unfinished():
                raise IrreversibleError(
                    f"{live} jobs are not finished in DATABASES[{database.alias!r}]; before removing the tables, let a"
                    " worker run these jobs, or remove them (manage.py stowhand jobs)"
                )
            database.jobs.uninstall()

    def describe(self) -> str:
        return f"Tables of background jobs (number {self.postgres} in PostgreSQL, {self.sqlite} in SQLite)"


_ADMIN_MODEL = CreateModel(
    "Job",
    [("id", BigAutoField(primary_key=True))],
    {
        "verbose_name": "background job",
        "managed": False,
        "base_manager_name": "objects",
        "default_permissions": ("view", "add", "change"),
        "permissions": (("payloads_job", "Can view payloads and results of background jobs"),),
    },
)
"""The model of the admin (models.py), without a table."""


def numbered(postgres: int, sqlite: int, after: str | None = None) -> type[Migration]:
    """Return the migration of one schema number. ``after``: the name of the previous one."""

    class Numbered(Migration):
        initial = after is None
        dependencies = [] if after is None else [("stowhand", after)]
        operations = [Install(postgres, sqlite, first=after is None), *([] if after else [_ADMIN_MODEL])]  # noqa: RUF012 - as above

    return Numbered


def databases_of(alias: str) -> list[Database]:
    """Return the databases of this alias in which the project stores jobs, each schema once.

    Raises ConfigurationError, also if the App that the settings name cannot be imported. Otherwise Django would record
    a migration that has installed nothing.
    """
    databases: dict[str, Database] = {}
    for database in (*_databases_of_backends(), *_databases_of_app()):
        if database.alias == alias:
            databases.setdefault(database.options.schema, database)
    return list(databases.values())


def _databases_of_backends() -> Iterator[Database]:
    if HAS_TASKS:
        from django.tasks import task_backends

        from stowhand.django.backend import StowhandBackend

        yield from (backend.database for backend in task_backends.all() if isinstance(backend, StowhandBackend))


def _databases_of_app() -> Iterator[Database]:
    """Yield the database of the App that the settings name, if its URL is one of ``database_url``."""
    if getattr(settings, APP_SETTING, None) is not None:
        own_store = project_app().own_store
        if own_store.alias is not None:
            _, options = read_store(own_store)
            yield Database(own_store.alias, options)
