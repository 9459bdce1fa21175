"""The connections to an application's file, and the time. ``writer``, ``reader`` and each worker's heartbeats have a
connection and a thread of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from stowhand.errors import StoreError, StoreUnreachable, TableUnsuitable
from stowhand.stores.database import sqlite_file, sqlite_trouble
from stowhand.stores.database.refused_rows import PAUSES_SECONDS
from stowhand.stores.database.sqlite_connection import OwnThreads, SqliteConnection
from stowhand.stores.database.sqlite_file import Replacement
from stowhand.stores.database.sqlite_wake import Wake
from stowhand.stores.sqlite.table import moments
from stowhand.stores.sqlite.table.transaction import Table, TableTransaction

T = TypeVar("T")
Work = Callable[[TableTransaction], T]


class TableConnections:
    """The file of one table, and the ways to work on it."""

    retry_pauses = PAUSES_SECONDS

    def __init__(
        self, path: Path, pinned: Callable[[], datetime] | None, on_replaced: Callable[[str, str], None]
    ) -> None:
        self.path = path
        self.now = moments.clock(pinned)
        self._found: Table | None = None
        self._replacement = Replacement(on_replaced)
        self._writer, self._reader = self.connect(), self.connect()
        # On the loop's own thread, which must not be kept waiting.
        self.wake = Wake(self.connect(patience=0.0, settings=("busy_timeout = 0",)))
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
        self, patience: float | None = None, settings: Sequence[str] = ()
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
            patience=patience,
            opened=self._replacement.opened,
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
    return sqlite_trouble.explain(error, path)
