"""A user's table in an SQLite file of the application's: one writer at a time, short writes, no lock on any row.

The file stays as it is: its journal mode and whatever else is kept in it are its owner's. Written is in transactions
that take the write lock at once (BEGIN IMMEDIATE), and only where a look without it has found something to write.
``writer``, ``reader`` and each worker's heartbeats have a connection and a thread of their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, StoreError, StoreUnreachable, TableUnsuitable
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.handler import Attempt
from stowhand.protocols.queue_store import Answer
from stowhand.protocols.store import ClaimRequest, Reply
from stowhand.stores.database import sqlite_file, sqlite_trouble
from stowhand.stores.database.sqlite_connection import SqliteConnection
from stowhand.stores.database.sqlite_replacement import Replacement
from stowhand.stores.database.sqlite_threads import OwnThreads
from stowhand.stores.database.sqlite_wake import Wake
from stowhand.stores.database.sqlite_writable import WriteProbe
from stowhand.stores.sqlite.table import claiming, finish, looking, moments
from stowhand.stores.sqlite.table.heartbeats import TableHeartbeats
from stowhand.stores.sqlite.table.reading import check, read_table
from stowhand.stores.sqlite.table.table import Abandoned, Table, TableConnection
from stowhand.stores.table.backend import Finding, Taken
from stowhand.stores.table.keys import Key
from stowhand.stores.table.names import Shape
from stowhand.stores.table.notices import Notices
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.passed_over import PassedOver
from stowhand.stores.table.record_view import ShownRecord

T = TypeVar("T")
AT_ONCE = 500
"""Settlements in one transaction; more are written in several, so that the application gets its turn."""


class SqliteTable:
    """The backend for ``sqlite:///file``."""

    def __init__(
        self,
        place: str | Path,
        options: TableOptions[Any],
        shape: Shape,
        *,
        pinned: Callable[[], datetime] | None = None,
        notices: Notices | None = None,
    ) -> None:
        # As SQLite names its -wal: by the file itself, wherever a link to it is.
        self._path = Path(place).resolve()
        self._options = options
        self._shape = shape
        self._now = moments.clock(pinned)
        notices = notices or Notices(options.name)
        self._replacement = Replacement(notices.say)
        self._writer, self._reader = self._connect(), self._connect()
        # On the loop's own thread, which must not be kept waiting.
        self._wake = Wake(self._connect(patience=0.0, settings=("busy_timeout = 0",)))
        self._threads = OwnThreads()
        self._abandoned = Abandoned(options.stalled)
        self._passed = PassedOver(notices)
        self._clock = SystemClock()
        self._found: Table | None = None
        self.warnings: Sequence[Finding] = ()

    @property
    def description(self) -> str:
        """Where it is, for people."""
        return f"sqlite:///{self._path}"

    @property
    def key(self) -> Key:
        """What the id column holds."""
        return self._table.key

    @property
    def names(self) -> tuple[str, ...]:
        """Of a record's columns."""
        return self._table.names

    @property
    def is_listening(self) -> bool:
        """Always: commits are counted in the file itself."""
        return True

    async def open(self) -> None:
        """Connect and look at the catalog."""
        self._found, self.warnings = await self._read(
            lambda connection, _: read_table(connection, self._path, self._options, self._shape)
        )
        self._wake.look()

    async def close(self) -> None:
        """Close every connection. Harmless when repeated; the next use opens them again."""
        await self._threads.close(self._reader, self._writer)
        self._wake.close()

    async def check(self) -> Sequence[Finding]:
        """Compare table and view with the options."""
        return await self._read(lambda connection, _: check(connection, self._path, self._options, self._shape))

    # -- a worker's ------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Sequence[Taken]:
        """Due records in order, now processing under the token."""
        table = self._table
        self._abandoned.begun.note(request.token)

        passed = self._passed.keys()

        def claim(connection: sqlite3.Connection, now: int) -> claiming.Claimed:
            if request.token in self._abandoned:
                return claiming.Claimed()
            return claiming.claim(connection, table, now, request, passed)

        if request.limit < 1 or not await self._read(
            lambda connection, now: claiming.is_worth_it(connection, table, now, request, passed)
        ):
            return ()
        claimed = await self._write(claim)
        for key, why in claimed.refused.items():
            self._passed.refused(str(key), why)
        return claimed.taken

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record how attempts ended."""
        table, replies = self._table, list[Reply]()
        for start in range(0, len(batch), AT_ONCE):
            part = batch[start : start + AT_ONCE]
            replies += await self._write(
                lambda connection, now, part=part: finish.settle(connection, table, now, part, repeat=repeat)  # type: ignore[misc]
            )
        return replies

    async def next_due(self) -> float | None:
        """Seconds until the earliest waiting record is due."""
        table = self._table
        return await self._read(lambda connection, now: looking.next_due(connection, table, now))

    async def wait(self, timeout: float) -> bool:
        """Until a commit by anyone, if something is due then: most commits to the file may concern other tables."""
        table, deadline = self._table, self._clock.monotonic() + timeout
        while await self._wake.wait(max(deadline - self._clock.monotonic(), 0.0)):
            if await self._read(lambda connection, now: claiming.is_due(connection, table, now)):
                return True
        return False

    def heartbeats(self) -> TableHeartbeats:
        """With a connection of its own, and one that only tries whether the file can be written."""
        probe = WriteProbe(self._connect(patience=0.0))
        return TableHeartbeats(self._connect(), probe, lambda: self._table, self._abandoned)

    # -- a running handler's ---------------------------------------------------------------------

    async def begin(self, attempt: Attempt[Any]) -> NoReturn:
        """Raises ConfigurationError."""
        raise ConfigurationError(
            "transactional handlers need PostgreSQL: an SQLite file has one writer at a time, and a handler would keep"
            " everybody else from writing, the heartbeats of its own worker too"
        )

    async def add_log(self, lease: Lease, entry: str) -> int:
        """Append an entry."""
        table = self._table
        return await self._write(lambda connection, now: looking.add_log(connection, table, now, lease, entry))

    async def update_log(self, lease: Lease, number: int, entry: str) -> None:
        """Put it in the place of entry ``number``."""
        table = self._table
        await self._write(lambda connection, now: looking.update_log(connection, table, now, lease, number, entry))

    async def seconds_until(self, moment: datetime) -> float:
        """From now."""
        return (moments.to_micros(moment) - self._now()) / moments.SECOND

    # -- people's --------------------------------------------------------------------------------

    async def requeue(self, record_id: JobId, after: datetime | float | None) -> Answer:
        """To queued."""
        table = self._table
        return await self._write(lambda connection, now: looking.requeue(connection, table, now, record_id, after))

    async def page(self, states: Sequence[State], after: JobId | None, limit: int) -> Sequence[ShownRecord]:
        """Records in these states, by id, above ``after``."""
        table = self._table
        return await self._read(lambda connection, _: looking.page(connection, table, states, after, limit))

    async def find(self, record_id: JobId) -> ShownRecord | None:
        """One record."""
        table = self._table
        return await self._read(lambda connection, _: looking.find(connection, table, record_id))

    async def retry(self, record_id: JobId) -> Answer:
        """To queued, as if it had never been tried."""
        table = self._table
        return await self._write(lambda connection, now: looking.retry(connection, table, now, record_id))

    async def cancel(self, record_id: JobId) -> Answer:
        """What waits is canceled, what runs is asked to end."""
        table = self._table
        return await self._write(lambda connection, now: looking.cancel(connection, table, now, record_id))

    async def count(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> dict[State, int]:
        """How many are in each of these states."""
        table = self._table
        return await self._read(lambda connection, _: looking.count(connection, table, states, conditions))

    async def exists(self, states: Sequence[State], conditions: Sequence[Any] = ()) -> bool:
        """Is there one?"""
        table = self._table
        return await self._read(lambda connection, _: looking.exists(connection, table, states, conditions))

    async def longest_wait(self) -> float:
        """Seconds that the one due longest has been due."""
        table = self._table
        return await self._read(lambda connection, now: looking.longest_wait(connection, table, now))

    async def longest_run(self) -> float:
        """Seconds since the oldest record in processing was claimed."""
        table = self._table
        return await self._read(lambda connection, now: looking.longest_run(connection, table, now))

    async def logs(self, record_id: JobId) -> Sequence[str] | None:
        """Its execution log."""
        table = self._table
        return await self._read(lambda connection, _: looking.logs(connection, table, record_id))

    # --------------------------------------------------------------------------------------------

    @property
    def _table(self) -> Table:
        if self._found is None:
            raise StoreError(f"{self.description}: the table's store is not open")
        return self._found

    def _connect(self, patience: float | None = None, settings: Sequence[str] = ()) -> TableConnection:
        def dial() -> sqlite3.Connection:
            try:
                return sqlite_file.connect(self._path, settings)
            except FileNotFoundError:
                raise StoreUnreachable(
                    f"{self._path} does not exist: the file and its table are the application's to make"
                    " (stowhand table ddl --dialect sqlite)"
                ) from None

        def prepare(connection: sqlite3.Connection) -> None:
            connection.create_function("stowhand_micros", 1, moments.stored_micros, deterministic=True)

        # The file is the application's: it may put another one in its place, from a backup, say.
        return SqliteConnection(
            self._path,
            dial,
            self._now,
            prepare=prepare,
            explain=_explain,
            patience=patience,
            opened=self._replacement.opened,
        )

    async def _write(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        return await self._threads.run(self._writer, lambda: self._writer.write(work))

    async def _read(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        return await self._threads.run(self._reader, lambda: self._reader.read(work))


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
    if sqlite_trouble.code(error) in (0, sqlite3.SQLITE_ERROR):  # 0: raised by Python's sqlite3 module
        return StoreError(f"{path}: {text}")
    return sqlite_trouble.explain(error, path)
