"""The connections to an application's file, and what work on them is passed: the time, and what is known of the table.

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
from stowhand.stores.sqlite.table import moments
from stowhand.stores.sqlite.table.composer import Kinds
from stowhand.stores.sqlite.table.moments import parameters
from stowhand.stores.sqlite.table.user_sql import Queries, Query
from stowhand.stores.table.arguments import KeyType
from stowhand.stores.table.names import Shape
from stowhand.stores.table.options import TableOptions


class Table(msgspec.Struct, frozen=True):
    """Options, and the statements that they and the catalog lead to."""

    options: TableOptions[Any]
    shape: Shape
    kinds: Kinds
    key: KeyType
    names: tuple[str, ...]
    """Of a record's columns."""
    statements: Mapping[str, str]
    queries: Queries
    walks: bool = False
    """There is an index of the very order in which records are claimed, of what waits alone."""


class TableTransaction:
    """What all work on the file is passed: the connection, the time (microseconds since 1970), and the table."""

    __slots__ = ("_known", "now", "raw", "times")

    def __init__(self, raw: sqlite3.Connection, now: int, known: Callable[[], Table]) -> None:
        self.raw = raw
        self.now = now
        self.times = parameters("now", now)
        self._known = known

    @property
    def table(self) -> Table:
        """Raises StoreError before the catalog has been read."""
        return self._known()

    def run(self, name: str, /, *, due: int | None = None, **values: Any) -> sqlite3.Cursor:
        """Change one record. ``due``: when it is to be due again; ``None``: at once."""
        when = _AT_ONCE if due is None else parameters("due", due, not_before=True)
        return self.raw.execute(self.table.statements[name], {**self.times, **when, **values})

    def look(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        """Run a statement that asks for no time but what it is given."""
        return self.raw.execute(self.table.statements[name], values)

    def select(self, query: Query, **values: Any) -> sqlite3.Cursor:
        """Run one that the user's own expressions or conditions are part of."""
        return self.raw.execute(query.text, {**query.values, **values})


_AT_ONCE = dict.fromkeys(parameters("due", 0))


T = TypeVar("T")
Work = Callable[[TableTransaction], T]


class TableConnections:
    """The file of one table, and the ways to work on it."""

    retry_pauses = RETRY_PAUSES_SECONDS

    def __init__(
        self, path: Path, pinned: Callable[[], datetime] | None, on_replaced: Callable[[str, str], None]
    ) -> None:
        self.path = path
        self.now = moments.clock(pinned)
        self._found: Table | None = None
        self._replacement = ReplacementReporter(on_replaced)
        self._writer, self._reader = self.connect(), self.connect()
        # On the loop's own thread, which must not be kept waiting.
        self.wake = Wake(self.connect(timeout_seconds=0.0, settings=("busy_timeout = 0",)))
        self._threads = OwnThreads()

    def learn(self, table: Table) -> None:
        """What the catalog has shown: from now on statements can be run."""
        self._found = table
        self.wake.look()

    @property
    def table(self) -> Table:
        """Raises StoreError before the store is open."""
        if self._found is None:
            raise StoreError(f"sqlite:///{self.path}: the table's store is not open")
        return self._found

    def connect(
        self, timeout_seconds: float | None = None, settings: Sequence[str] = ()
    ) -> SqliteConnection[TableTransaction]:
        """A further connection, for a thread of the caller's."""

        def dial() -> sqlite3.Connection:
            try:
                return sqlite_file.connect(self.path, settings)
            except FileNotFoundError:
                raise StoreUnreachable(
                    f"{self.path} does not exist: the file and its table are the application's to make"
                    " (stowhand table ddl --dialect sqlite)"
                ) from None

        def prepare(connection: sqlite3.Connection) -> None:
            connection.create_function("stowhand_micros", 1, moments.stored_micros, deterministic=True)

        # The file is the application's: it may put another one in its place, from a backup, say.
        return SqliteConnection(
            self.path,
            dial,
            lambda raw: TableTransaction(raw, self.now(), lambda: self.table),
            prepare=prepare,
            explain=_explain,
            timeout_seconds=timeout_seconds,
            on_opened=self._replacement.on_opened,
        )

    async def write(self, work: Work[T]) -> T:
        """In one transaction."""
        return await self._threads.run(self._writer, lambda: self._writer.write(work))

    async def read(self, work: Work[T]) -> T:
        return await self._threads.run(self._reader, lambda: self._reader.read(work))

    async def close(self) -> None:
        await self._threads.close(self._reader, self._writer)
        self.wake.close()


_CHANGED = (
    *("no such table", "no such column", "has no column named", "ambiguous column"),
    *("no such function", "unknown function", "no such collation"),
)


def _explain(error: sqlite3.Error, path: Path) -> StoreError:
    """As an error of ours: the table is unsuitable, or refuses a write, or SQLite itself has a problem."""
    text = str(error)
    if any(words in text for words in _CHANGED):
        return TableUnsuitable(f"{path}: {text}: table, view or expressions do not go together (stowhand table check)")
    if isinstance(error, sqlite3.IntegrityError):
        return StoreError(f"{path}: the table refuses what a worker writes: {text} (stowhand table check)")
    return sqlite_errors.explain(error, path)
