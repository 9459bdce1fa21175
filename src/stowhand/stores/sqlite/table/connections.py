"""The connections to an application's file, and the context of work on them: the time and the table.

Writer, reader and each worker's heartbeats have a connection and a thread of their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stowhand.errors import StoreError, StoreUnreachable, TableUnsuitable
from stowhand.stores.database import sqlite_errors, sqlite_file
from stowhand.stores.database.refused_rows import RETRY_PAUSES_SECONDS
from stowhand.stores.database.sqlite_connection import OwnThreads, SqliteConnection
from stowhand.stores.database.sqlite_file import ReplacementReporter
from stowhand.stores.database.sqlite_wake import Wake
from stowhand.stores.sqlite.table import timestamps
from stowhand.stores.sqlite.table.composer import Kinds
from stowhand.stores.sqlite.table.timestamps import parameters
from stowhand.stores.sqlite.table.user_sql import Queries, Query
from stowhand.stores.table.arguments import KeyType
from stowhand.stores.table.names import Shape
from stowhand.stores.table.options import TableOptions


class Table(msgspec.Struct, frozen=True):
    """A table's options, and the statements composed by its catalog."""

    options: TableOptions[Any]
    shape: Shape
    kinds: Kinds
    key: KeyType
    names: tuple[str, ...]
    """The names of a record's columns."""
    statements: Mapping[str, str]
    queries: Queries
    walks: bool = False
    """Whether an index has only waiting records, in the order of claims."""


class TableTransaction:
    """The context of work on the file: the connection, the time (microseconds since 1970), and the table."""

    __slots__ = ("_get_table", "now", "raw", "times")

    def __init__(self, raw: sqlite3.Connection, now: int, get_table: Callable[[], Table]) -> None:
        self.raw = raw
        self.now = now
        self.times = parameters("now", now)
        self._get_table = get_table

    @property
    def table(self) -> Table:
        """The table. Raises StoreError before the catalog has been read."""
        return self._get_table()

    def run(self, name: str, /, *, due: int | None = None, **values: Any) -> sqlite3.Cursor:
        """Change one record. ``due``: when it is due again; ``None``: now."""
        due_parameters = _AT_ONCE if due is None else parameters("due", due, not_before=True)
        return self.raw.execute(self.table.statements[name], {**self.times, **due_parameters, **values})

    def read(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        """Run a statement without the transaction's time."""
        return self.raw.execute(self.table.statements[name], values)

    def select(self, query: Query, **values: Any) -> sqlite3.Cursor:
        """Run a query that contains the user's own expressions or conditions."""
        return self.raw.execute(query.text, {**query.values, **values})


_AT_ONCE = dict.fromkeys(parameters("due", 0))


T = TypeVar("T")
Work = Callable[[TableTransaction], T]


class TableConnections:
    """The connections to the file of one table, and their threads."""

    retry_pauses = RETRY_PAUSES_SECONDS

    def __init__(
        self, path: Path, pinned: Callable[[], datetime] | None, on_replaced: Callable[[str, str], None]
    ) -> None:
        self.path = path
        self.now = timestamps.clock(pinned)
        self._table: Table | None = None
        self._replacement = ReplacementReporter(on_replaced)
        self._writer, self._reader = self.connect(), self.connect()
        # This connection is used on the thread of the event loop, which must not wait for a lock.
        self.wake = Wake(self.connect(timeout_seconds=0.0, settings=("busy_timeout = 0",)))
        self._threads = OwnThreads()

    def set_table(self, table: Table) -> None:
        """Set the table, once the catalog has been read. Statements cannot run before."""
        self._table = table
        self.wake.look()

    @property
    def table(self) -> Table:
        """The table. Raises StoreError before the store is open."""
        if self._table is None:
            raise StoreError(f"sqlite:///{self.path}: the table's store is not open")
        return self._table

    def connect(
        self, timeout_seconds: float | None = None, settings: Sequence[str] = ()
    ) -> SqliteConnection[TableTransaction]:
        """Return a further connection, for a thread of the caller."""

        def open_raw() -> sqlite3.Connection:
            try:
                return sqlite_file.connect(self.path, settings)
            except FileNotFoundError:
                raise StoreUnreachable(
                    f"{self.path} does not exist: the application creates the file and its table"
                    " (stowhand table ddl --dialect sqlite)"
                ) from None

        def prepare(connection: sqlite3.Connection) -> None:
            connection.create_function("stowhand_micros", 1, timestamps.stored_micros, deterministic=True)

        # The application owns the file, and may replace it, for example with a backup.
        return SqliteConnection(
            self.path,
            open_raw,
            lambda raw: TableTransaction(raw, self.now(), lambda: self.table),
            prepare=prepare,
            explain=_explain,
            timeout_seconds=timeout_seconds,
            on_opened=self._replacement.on_opened,
        )

    async def write(self, work: Work[T]) -> T:
        """Run ``work`` in one transaction."""
        return await self._threads.run(self._writer, lambda: self._writer.write(work))

    async def read(self, work: Work[T]) -> T:
        return await self._threads.run(self._reader, lambda: self._reader.read(work))

    async def close(self) -> None:
        await self._threads.close(self._reader, self._writer)
        self.wake.close()


_SCHEMA_ERRORS = (
    *("no such table", "no such column", "has no column named", "ambiguous column"),
    *("no such function", "unknown function", "no such collation"),
)


def _explain(error: sqlite3.Error, path: Path) -> StoreError:
    """Return our error: the table is unsuitable, or refuses a write, or SQLite itself has a problem."""
    text = str(error)
    if any(message in text for message in _SCHEMA_ERRORS):
        return TableUnsuitable(f"{path}: {text}: table, view and expressions do not match (stowhand table check)")
    if isinstance(error, sqlite3.IntegrityError):
        return StoreError(f"{path}: the table refuses a worker's write: {text} (stowhand table check)")
    return sqlite_errors.explain(error, path)
