"""Installing and checking the tables. The version is in a table of ours: the file may be the application's."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from stowhand.errors import ConfigurationError, SchemaMissing, SchemaOutdated, SchemaTooNew, StoreUnreachable
from stowhand.protocols.queue_store import SchemaStatus
from stowhand.stores.sqlite.queue.transaction import SQL, Transaction

_MIGRATIONS = files("stowhand.stores.sqlite.queue").joinpath("migrations")
VERSIONS = sorted(int(file.name[:4]) for file in _MIGRATIONS.iterdir() if file.name.endswith(".sql"))
VERSION = VERSIONS[-1]
OLDEST_SQLITE = (3, 35, 0)
"""RETURNING."""


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make a new connection ready for jobs, or say why it cannot be."""
    check(connection, path)
    write_ahead(connection, path)


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise unless the installed schema suits this package."""
    found = status(connection)
    if found.installed is None:
        raise SchemaMissing(f"{path}: nothing is installed{_foreign(connection)}: run `stowhand migrate`")
    if found.installed < VERSION:
        raise SchemaOutdated(
            f"{path}: its schema is {found.installed}, this package needs {VERSION}: run `stowhand migrate`"
        )
    if found.breaking:
        raise _too_new(str(path), found)


def check_newer(connection: sqlite3.Connection) -> None:
    """Raise when a newer version has made the file its own meanwhile."""
    found = status(connection)
    if found.breaking:
        raise _too_new("the file", found)


def _too_new(what: str, found: SchemaStatus) -> SchemaTooNew:
    return SchemaTooNew(
        f"{what}: its schema is {found.installed}, this package knows {VERSION}, and the change between them is"
        " breaking: upgrade this package"
    )


def status(connection: sqlite3.Connection) -> SchemaStatus:
    """What is there."""
    if connection.execute(SQL["is_installed"]).fetchone() is None:
        return SchemaStatus(None, VERSION)
    versions = connection.execute(SQL["versions"]).fetchall()
    if not versions:
        return SchemaStatus(None, VERSION)
    return SchemaStatus(
        max(version for version, _ in versions),
        VERSION,
        any(breaking for version, breaking in versions if version > VERSION),
    )


def install(tx: Transaction) -> SchemaStatus:
    """Apply what is missing, inside the caller's write transaction: another install waits, then finds it done.

    Raises SchemaTooNew.
    """
    check_newer(tx.raw)
    for version in missing(status(tx.raw)):
        for statement in migration(version):
            tx.raw.execute(statement)
        tx.run("record", version=version, breaking=_text(version).startswith("-- breaking"))
    return status(tx.raw)


def missing(found: SchemaStatus) -> list[int]:
    """The migrations yet to be applied."""
    return [version for version in VERSIONS if version > (found.installed or 0)]


def migration(version: int) -> Iterator[str]:
    """The statements of one migration. A trigger holds semicolons of its own, so SQLite says where one ends."""
    statement = ""
    for line in _text(version).splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""


def _text(version: int) -> str:
    return _MIGRATIONS.joinpath(f"{version:04}.sql").read_text("utf-8")


def plan(found: SchemaStatus) -> str:
    """What ``install`` would run. Raises SchemaTooNew."""
    if found.breaking:
        raise _too_new("the file", found)
    return "\n\n".join(statement for version in missing(found) for statement in migration(version))


def refuse_roles(roles: bool) -> None:
    """A file's rights are its owner's."""
    if roles:
        raise ConfigurationError("SQLite has no roles: who may read and write the file is up to its permissions")


def uninstall(connection: sqlite3.Connection) -> None:
    """Drop everything of ours, and nothing else. The file stays: it may hold an application's tables."""
    for kind, name in connection.execute(SQL["ours"]).fetchall():
        connection.execute(f"DROP {_plain(kind)} IF EXISTS {_plain(name)}")


def empty(connection: sqlite3.Connection) -> None:
    """Delete all rows of ours, but for those of migrations and of workers."""
    tables = [name for kind, name in connection.execute(SQL["ours"]).fetchall() if kind.lower() == "table"]
    for name in sorted({*tables} - {"stowhand_schema", "stowhand_workers", "stowhand_app_versions"}):
        connection.execute(f"DELETE FROM {_plain(name)}")


def write_ahead(connection: sqlite3.Connection, path: Path) -> None:
    """Readers and the writer do not wait for each other; a kill leaves a sound file."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise ConfigurationError(f"Python's SQLite is {sqlite3.sqlite_version}; 3.35 or newer is needed")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnreachable(f"{path}: write-ahead logging is not possible on this file system (it stays {mode!r})")


def _foreign(connection: sqlite3.Connection) -> str:
    others = [name for (name,) in connection.execute(SQL["others"])]
    return f" (it holds other tables: {', '.join(others)}; ours would be added beside them)" if others else ""


def _plain(name: str) -> str:
    if not re.fullmatch(r"\w+", name):
        raise ValueError(f"not a plain name: {name!r}")
    return name
