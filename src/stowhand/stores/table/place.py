"""The backend for a place. Each is imported only then, so that the other one's driver is not needed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import PurePath
from typing import Any

from stowhand.errors import ConfigurationError, a_type
from stowhand.stores.table.backend import Backend, Notices
from stowhand.stores.table.names import Shape, read_shape
from stowhand.stores.table.options import TableOptions
from stowhand.stores.url import scheme_of, store_url

Pinned = Callable[[], datetime]
"""Tests only: the database's idea of now."""


def backend_of(
    place: str | object, options: TableOptions[Any], pinned: Pinned | None, notices: Notices
) -> tuple[Backend, Shape]:
    """The backend, and the names it was made with. Raises ConfigurationError."""
    if not isinstance(options, TableOptions):
        raise ConfigurationError(f"options: {a_type(options)} given; give TableOptions(…)")
    if isinstance(place, str):
        place = store_url(place)
        if (scheme := scheme_of(place)) == "sqlite":
            return _sqlite(place, options, pinned, notices)
        if scheme != "postgresql":
            raise ConfigurationError(f"a table of yours is in PostgreSQL or SQLite, not at {scheme}://")
    if isinstance(place, PurePath):
        raise ConfigurationError(f"a path given; for an SQLite file write {f'sqlite:///{place}'!r}")
    try:
        import psycopg  # noqa: F401 - the driver may be absent; that it is there says nothing about our own modules
    except ImportError as error:
        raise ConfigurationError(f"PostgreSQL needs a driver: pip install 'stowhand[binary]' ({error})") from error
    from stowhand.stores.postgres.table import PostgresTable

    shape = _shape(options, folds=True)
    return PostgresTable(place, options, shape, pinned=pinned, notices=notices), shape


def _sqlite(url: str, options: TableOptions[Any], pinned: Pinned | None, notices: Notices) -> tuple[Backend, Shape]:
    path = url.removeprefix("sqlite:///").partition("?")[0]
    problems = ["a path cannot hold NUL"] if "\0" in path else []
    if options.transactional:
        problems.append(
            "transactional: it needs locks of single rows, which SQLite has not; take PostgreSQL, or leave it out"
        )
    if options.notify_channel is not None:
        problems.append("notify_channel: SQLite has no channels, and is polled; leave it out")
    if options.unique_ids:
        problems.append("unique_ids: SQLite has no partitions, so a unique index can be made; leave it out")
    if problems:
        raise ConfigurationError("; ".join(problems))
    from stowhand.stores.sqlite.table import SqliteTable

    shape = _shape(options, folds=False)
    return SqliteTable(path, options, shape, pinned=pinned, notices=notices), shape


def _shape(options: TableOptions[Any], *, folds: bool) -> Shape:
    return read_shape(options.table_name, options.view_name, options.alternate_column_names, folds=folds)
