"""The database of ``DATABASES`` that stores the jobs: its URL for a worker, and the queue on Django's connection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import quote

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db import transaction as django_transaction
from django.utils.connection import ConnectionDoesNotExist

from stowhand.errors import ConfigurationError, SchemaMissing
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.producer import JobsOnConnection
from stowhand.protocols.store import StoreOptions

_MISSING_OBJECT_CODES = ("3F000", "42883", "42P01")
"""SQLSTATEs for a missing schema, function or table."""
_DJANGO_OPTIONS = {"pool", "isolation_level", "server_side_binding", "assume_role", "sslcert_env"}
"""Keys of OPTIONS on PostgreSQL that are not connection parameters."""


class Database:
    """The database of one alias. Its settings are read at each use, because a test run changes its name."""

    def __init__(self, alias: str, options: StoreOptions) -> None:
        self.alias = alias
        self.options = options
        self._jobs: JobsOnConnection | None = None

    @property
    def connection(self) -> Any:
        """Django's own connection of this thread. Raises ConfigurationError."""
        try:
            return connections[self.alias]
        except ConnectionDoesNotExist:
            raise ConfigurationError(
                f"OPTIONS['database'] of TASKS is {self.alias!r}, which DATABASES lacks; name one of"
                f" {', '.join(map(repr, connections.settings))}"
            ) from None

    @property
    def vendor(self) -> str:
        """``postgresql`` or ``sqlite``. Raises ConfigurationError for other databases."""
        vendor: str = self.connection.vendor
        if vendor not in ("postgresql", "sqlite"):
            raise ConfigurationError(
                f"DATABASES[{self.alias!r}] is {vendor}: jobs need PostgreSQL or SQLite; name the alias of such a"
                " database in OPTIONS['database']"
            )
        return vendor

    @property
    def is_in_memory(self) -> bool:
        """True if the database is in the memory of this process, so that no other process can read the jobs."""
        return self.vendor == "sqlite" and bool(self.connection.is_in_memory_db())

    @property
    def url(self) -> str:
        """The URL for the command line, which may contain a password."""
        django_settings = self.connection.settings_dict
        if self.vendor == "sqlite":
            name = str(django_settings["NAME"])
            if self.is_in_memory:
                raise ConfigurationError(f"DATABASES[{self.alias!r}] is in memory: a worker needs a file or a server")
            return f"sqlite:///{name.removeprefix('file:').partition('?')[0]}"
        return _postgres_url(django_settings)

    @property
    def jobs(self) -> JobsOnConnection:
        """The queue on the connection of the calling thread. Raises ConfigurationError."""
        if self._jobs is None:
            if self.vendor == "sqlite":
                from stowhand.stores.sqlite.queue.on_connection import SqliteOnConnection

                self._jobs = SqliteOnConnection(self._driver_connection, self.options)
            else:
                try:
                    from stowhand.stores.postgres.queue.on_connection import PostgresOnConnection
                except ImportError as error:  # Django uses psycopg2.
                    raise ConfigurationError(
                        f"DATABASES[{self.alias!r}] is PostgreSQL, and jobs there need psycopg 3, even if Django"
                        f" uses psycopg2: pip install 'stowhand[django,binary]' ({error})"
                    ) from error
                self._jobs = PostgresOnConnection(
                    lambda: self.connection.cursor(), self._driver_connection, self.options
                )
        return self._jobs

    def enqueue(self, job: NewJob) -> Job:
        """Write a job in the caller's ``atomic()``, or in a new one. Raises InvalidJob, SchemaMissing."""
        with self.transaction() as jobs:
            return jobs.enqueue_in(self.connection, job)

    @contextmanager
    def transaction(self) -> Iterator[JobsOnConnection]:
        """Use the caller's ``atomic()``, or a new one. Raises SchemaMissing."""
        with self.explained():
            if self.connection.in_atomic_block:
                yield self.jobs
            else:
                with django_transaction.atomic(using=self.alias):
                    yield self.jobs

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise SchemaMissing, with the fix, if the tables are missing."""
        try:
            with self.connection.wrap_database_errors:
                yield
        except SchemaMissing as error:
            raise self._no_tables(error) from error
        except Error as error:
            cause: Any = error.__cause__
            state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
            if state in _MISSING_OBJECT_CODES or "no such table: stowhand_" in str(error):
                raise self._no_tables(error) from error
            raise

    def _no_tables(self, error: Exception) -> SchemaMissing:
        return SchemaMissing(
            f"DATABASES[{self.alias!r}] has no tables of stowhand ({str(error).splitlines()[0]}): add"
            f" 'stowhand.django' to INSTALLED_APPS, and run `{self._migrate_command}`"
        )

    @property
    def _migrate_command(self) -> str:
        """The command that migrates this database. Django migrates one database at a time."""
        if self.alias == DEFAULT_DB_ALIAS:
            return "manage.py migrate"
        return f"manage.py migrate --database {self.alias}"

    def _driver_connection(self) -> Any:
        self.connection.ensure_connection()
        return self.connection.connection


def _postgres_url(django_settings: dict[str, Any]) -> str:
    """Return the libpq URL of Django's settings, with the connection parameters of OPTIONS."""
    options = {name: value for name, value in django_settings.get("OPTIONS", {}).items() if name not in _DJANGO_OPTIONS}
    settings_by_parameter = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    parameters = {name: django_settings[key] for name, key in settings_by_parameter.items() if django_settings.get(key)}
    connection_options = {name: value for name, value in options.items() if isinstance(value, str | int | float)}
    if role := django_settings.get("OPTIONS", {}).get("assume_role"):
        quoted_role = re.sub(r"([\\\s])", r"\\\1", str(role))  # The server needs blanks and backslashes quoted.
        connection_options["options"] = f"{connection_options.get('options', '')} -c role={quoted_role}".strip()
    fields = (
        f"{name}={quote(str(value), safe='')}"
        for name, value in cast("dict[str, Any]", connection_options | parameters).items()
    )
    return f"postgresql://?{'&'.join(fields)}"
