"""Installation and checks of the tables. Our own table holds the version, as the file may be the application's."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from stowhand.errors import ConfigurationError, SchemaMissing, StoreUnreachable
from stowhand.protocols.queue_store import SchemaStatus
from stowhand.stores.database.migrations import HOW_TO_INSTALL, Migrations
from stowhand.stores.sqlite.queue.transaction import STATEMENTS, Transaction

MIGRATIONS = Migrations(files("stowhand.stores.sqlite.queue") / "migrations")
OLDEST_SQLITE = (3, 35, 0)
"""The first version with RETURNING."""
REMOVAL_ADVICE = "delete the file, or its tables and views whose names begin with stowhand_"
DEFAULT_PLACE = "the schema of this file"


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Prepare a new connection for jobs. Raise an error if this is not possible."""
    check(connection, path)
    write_ahead(connection, path)


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise unless the installed schema suits this package."""
    schema_status = status(connection, f"{path}: the schema")
    if schema_status.installed is None:
        raise SchemaMissing(f"{path}: nothing is installed{_other_tables(connection)}: {HOW_TO_INSTALL}")
    MIGRATIONS.check(schema_status, f"{path}: the schema")


def check_newer(connection: sqlite3.Connection) -> None:
    """Raise SchemaTooNew when a newer version has changed the schema beyond this one."""
    MIGRATIONS.refuse_newer(status(connection), DEFAULT_PLACE)


def status(
    connection: sqlite3.Connection, place: str = DEFAULT_PLACE, migrations: Migrations = MIGRATIONS
) -> SchemaStatus:
    """Return the status of the installed schema. ``place``: the schema's name in errors. Raise SchemaError."""
    if connection.execute(STATEMENTS["is_installed"]).fetchone() is None:
        return SchemaStatus(None, migrations.newest)
    # Read all columns: a schema from before the first release has no fingerprints.
    rows = connection.execute(STATEMENTS["ledger"]).fetchall()
    applied = [(version, bool(breaking), rest[0] if rest else None) for version, breaking, _, *rest in rows]
    return migrations.status(applied, place, REMOVAL_ADVICE)


def install(tx: Transaction, place: str = DEFAULT_PLACE, migrations: Migrations = MIGRATIONS) -> SchemaStatus:
    """Apply missing migrations in the caller's write transaction. Another install waits and then has nothing to do.

    Raise SchemaError.
    """
    old_status = status(tx.raw, place, migrations)
    migrations.refuse_newer(old_status, place)
    for migration in migrations.missing(old_status):
        for statement in statements(migration.text):
            tx.raw.execute(statement)
        values = {"version": migration.number, "breaking": migration.breaking, "fingerprint": migration.fingerprint}
        tx.run("record", **values)
    return status(tx.raw, place, migrations)


def statements(text: str) -> Iterator[str]:
    """Yield the statements of a migration. A trigger contains semicolons, so SQLite determines where one ends."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""


def refuse_roles(roles: bool) -> None:
    """Raise ConfigurationError if roles are requested, which SQLite does not have."""
    if roles:
        raise ConfigurationError("SQLite has no roles: the permissions of the file decide who may read and write it")


def uninstall(connection: sqlite3.Connection) -> None:
    """Drop all our tables and views, and nothing else. The file stays, as it may hold an application's tables."""
    for kind, name in connection.execute(STATEMENTS["own_objects"]).fetchall():
        connection.execute(f"DROP {_checked_name(kind)} IF EXISTS {_checked_name(name)}")


def empty(connection: sqlite3.Connection) -> None:
    """Delete all our rows, except those of migrations and of workers."""
    tables = [
        name for kind, name in connection.execute(STATEMENTS["own_objects"]).fetchall() if kind.lower() == "table"
    ]
    for name in sorted({*tables} - {"stowhand_schema", "stowhand_workers", "stowhand_app_versions"}):
        connection.execute(f"DELETE FROM {_checked_name(name)}")


def write_ahead(connection: sqlite3.Connection, path: Path) -> None:
    """Enable write-ahead logging: readers and the writer do not wait for each other, and a kill is harmless."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise ConfigurationError(f"Python's SQLite is {sqlite3.sqlite_version}; 3.35 or newer is needed")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnreachable(
            f"{path}: write-ahead logging is not possible on this file system (the journal mode stays {mode!r})"
        )


def _other_tables(connection: sqlite3.Connection) -> str:
    names = [name for (name,) in connection.execute(STATEMENTS["other_tables"])]
    return f" (it has other tables: {', '.join(names)}; ours would be added beside them)" if names else ""


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"\w+", name):
        raise ValueError(f"not a plain name: {name!r}")
    return name
