"""The connections of a store, each on a thread of its own.

writer    everything that writes, in the order in which it was asked for
reader    looking never waits for writing
counter   looking at every row, which takes as long as there are rows: nobody else waits for that
wake      on the loop's own thread: a number that tells whether somebody committed
heart     on the worker's other thread
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from stowhand.errors import SchemaMissing
from stowhand.stores.database import sqlite_file
from stowhand.stores.database.sqlite_connection import Connection
from stowhand.stores.database.sqlite_replacement import Replacement
from stowhand.stores.database.sqlite_threads import OwnThreads
from stowhand.stores.database.sqlite_wake import Wake
from stowhand.stores.sqlite.queue import schema, trouble
from stowhand.stores.sqlite.queue.moment import Moment, Now

T = TypeVar("T")
Work = Callable[[sqlite3.Connection, Moment], T]
STEPS = 100_000
"""Of SQLite's machine, some milliseconds, between two looks whether an answer is still wanted."""


class Threads:
    """What a store stands on: its file, and the ways to work on it."""

    def __init__(self, path: Path, synchronous: str, now: Now) -> None:
        self._path, self._synchronous, self._now = path, synchronous, now
        self._replacement = Replacement()
        self._writer, self._reader, self._counter = self._connect(), self._connect(), self._connect()
        # It is used on the loop's own thread, which must not be kept waiting.
        self._wake = Wake(self._connect(patience=0.0))
        self._threads = OwnThreads()

    @property
    def on_warning(self) -> Callable[[str, str], None] | None:
        """Told that another file has taken the place of this one."""
        return self._replacement.on_warning

    @on_warning.setter
    def on_warning(self, told: Callable[[str, str], None] | None) -> None:
        self._replacement.on_warning = told

    @property
    def description(self) -> str:
        """Where it is, for people."""
        return f"sqlite:///{self._path}"

    def _connect(self, patience: float | None = None) -> Connection[Moment]:
        return self._connection(lambda raw: schema.prepare(raw, self._path), patience)

    def _connection(
        self, prepare: Callable[[sqlite3.Connection], None], patience: float | None = None
    ) -> Connection[Moment]:
        return Connection(
            self._path,
            self._dial,
            self._now,
            prepare=prepare,
            explain=trouble.explain,
            patience=patience,
            opened=self._replacement.opened,
        )

    def _dial(self) -> sqlite3.Connection:
        settings = (f"synchronous = {self._synchronous}", "trusted_schema = OFF", "temp_store = MEMORY", *_SIZES)
        try:
            return sqlite_file.connect(self._path, settings)
        except FileNotFoundError:
            raise SchemaMissing(
                f"{self._path} does not exist: run `stowhand migrate` or start a worker, which makes it"
            ) from None

    @contextmanager
    def _unchecked(
        self, prepare: Callable[[sqlite3.Connection], None] = lambda _: None
    ) -> Iterator[Connection[Moment]]:
        """For work on the schema itself: a connection that does not ask for one."""
        with closing(self._connection(prepare)) as connection:
            yield connection

    async def _write(self, work: Work[T]) -> T:
        return await self._on_thread(self._writer, lambda: self._writer.write(work))

    async def _read(self, work: Work[T]) -> T:
        return await self._on_thread(self._reader, lambda: self._reader.read(work))

    async def _read_all(self, work: Work[T]) -> T:
        """Read beside all others; given up soon after nobody waits for it any more."""
        over = threading.Event()

        def counted(connection: sqlite3.Connection, now: Moment) -> T:
            connection.set_progress_handler(over.is_set, STEPS)
            try:
                return work(connection, now)
            finally:
                connection.set_progress_handler(None, 0)

        try:
            return await self._on_thread(self._counter, lambda: self._counter.read(counted))
        finally:
            over.set()

    async def _on_thread(self, connection: Connection[Moment], call: Callable[[], T]) -> T:
        return await self._threads.run(connection, call)

    async def _close_threads(self) -> None:
        await self._threads.close(self._reader, self._counter, self._writer)


_SIZES = (
    "cache_size = -16000",
    # What a burst made of the -wal file is given back.
    "journal_size_limit = 67108864",
)
