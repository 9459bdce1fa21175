"""The connections of a store. On a file each has its own thread.

writer    all writes, in the order of the calls
reader    short reads, which never wait for writes
counter   long reads, whose duration grows with the number of rows; they must not delay short reads
wake      used on the thread of the event loop; it reads a number that changes with every commit

Heartbeats run in the worker's heartbeat thread, with a connection from ``connect``.
"""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from stowhand.clock import stopwatch
from stowhand.errors import SchemaMissing, StoreError, StoreRefused, StoreTooSlow
from stowhand.protocols.store import StoreOptions
from stowhand.stores.database import sqlite_file
from stowhand.stores.database.migrations import HOW_TO_INSTALL
from stowhand.stores.database.refused_rows import RETRY_PAUSES_SECONDS
from stowhand.stores.database.sqlite_connection import OwnThreads, SqliteConnection, WriteProbe
from stowhand.stores.database.sqlite_errors import code, is_interrupted
from stowhand.stores.database.sqlite_file import ReplacementReporter
from stowhand.stores.database.sqlite_wake import DirectWake, Wake
from stowhand.stores.sqlite.queue import error_translation, moment, schema
from stowhand.stores.sqlite.queue.transaction import Transaction

T = TypeVar("T")
Work = Callable[[Transaction], T]
PROGRESS_CHECK_INSTRUCTIONS = 100_000
"""Instructions of SQLite's virtual machine between two checks for a timeout or a cancelled caller: a few ms."""


class Connections(ABC):
    """Connections to the database of one store. ``path``: its name in messages."""

    wake: DirectWake
    retry_pauses = RETRY_PAUSES_SECONDS
    waits_for_disk = True
    """Whether a commit waits for the disk, so that callers share commits."""

    def __init__(self, path: Path, options: StoreOptions) -> None:
        self.path = path
        self.now = moment.clock(options.pinned)
        self._options = options

    def make_transaction(self, raw: sqlite3.Connection) -> Transaction:
        """Return a transaction on this connection, at the current time."""
        return Transaction(raw, self.now(), keeps_history=self._options.history is not None)

    async def row(self, name: str, /, **values: Any) -> Any:
        """Return the first row of a statement, or ``None``."""
        return await self.read(lambda tx: tx.row(name, **values))

    async def column(self, name: str, /, **values: Any) -> list[Any]:
        """Return the values of a statement with one column."""
        return await self.read(lambda tx: tx.column(name, **values))

    @abstractmethod
    def create(self) -> None:
        """Create an empty database if it does not exist."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the database exists. Its schema may be missing."""

    @abstractmethod
    def connect(self, timeout_seconds: float | None = None) -> SqliteConnection[Transaction]:
        """Return a connection for a thread of the caller. It checks the schema when it opens."""

    @abstractmethod
    def unchecked(self, *, writes: bool = False) -> AbstractContextManager[SqliteConnection[Transaction]]:
        """Open a connection that requires no schema, for work on the schema itself."""

    @abstractmethod
    def probe(self) -> WriteProbe | None:
        """Return a probe that tests whether the database is writable; ``None`` if it always is."""

    @abstractmethod
    def commit_wake(self) -> Wake | None:
        """Return a wake-up for commits of other connections; ``None`` if there is no other connection."""

    @abstractmethod
    async def open(self) -> None:
        """Check the schema, and that the database is writable."""

    @abstractmethod
    async def write(self, work: Work[T], *, wakes: bool = False) -> T:
        """Run work in one write transaction. ``wakes``: jobs may become claimable, so wake workers of this process."""

    @abstractmethod
    async def read(self, work: Work[T]) -> T:
        """Run a short read."""

    @abstractmethod
    async def read_all(self, work: Work[T]) -> T:
        """Run a read whose time grows with the number of rows."""

    @abstractmethod
    async def on_writer(self, call: Callable[[], T]) -> T:
        """Run a call after all earlier writes."""

    @abstractmethod
    async def on_reader(self, call: Callable[[], T]) -> T:
        """Run a call among short reads."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection. The next use opens them again."""


class FileConnections(Connections):
    """Connections to a file. Reads run concurrently with writes, and commits of other processes are detected."""

    def __init__(self, path: Path, options: StoreOptions, on_replaced: Callable[[str, str], None]) -> None:
        super().__init__(path, options)
        self._replacement = ReplacementReporter(on_replaced)
        self._writer, self._reader, self._counter = self.connect(), self._read_connection(), self._read_connection()
        # This connection is used on the thread of the event loop, which must not block.
        self.wake = Wake(self._read_connection(timeout_seconds=0.0))
        self._threads = OwnThreads()

    def create(self) -> None:
        """Create a file that only its owner can read."""
        sqlite_file.create(self.path)

    def exists(self) -> bool:
        """Return whether the file exists. Raise ConfigurationError for an invalid path."""
        sqlite_file.check_path(self.path)
        return self.path.exists()

    def connect(self, timeout_seconds: float | None = None) -> SqliteConnection[Transaction]:
        prepare = schema.check if self._options.read_only else schema.prepare
        return self._connection(lambda raw: prepare(raw, self.path), timeout_seconds)

    def _read_connection(self, timeout_seconds: float | None = None) -> SqliteConnection[Transaction]:
        """Return a connection for reads. It keeps the journal mode, since a change waits for every transaction."""
        return self._connection(lambda raw: schema.check(raw, self.path), timeout_seconds)

    @contextmanager
    def unchecked(self, *, writes: bool = False) -> Iterator[SqliteConnection[Transaction]]:
        def prepare(raw: sqlite3.Connection) -> None:
            if writes:
                schema.write_ahead(raw, self.path)

        with closing(self._connection(prepare)) as connection:
            yield connection

    def probe(self) -> WriteProbe:
        return WriteProbe(self.connect(timeout_seconds=0.0))

    def commit_wake(self) -> Wake:
        return Wake(self.connect(timeout_seconds=0.0))

    async def open(self) -> None:
        await self.read(lambda tx: schema.check(tx.raw, self.path))
        if not self._options.read_only:
            await self.on_writer(self._writer.open)

    async def write(self, work: Work[T], *, wakes: bool = False) -> T:
        result = await self.on_writer(lambda: self._writer.write(work))
        if wakes:
            self.wake.ring()
        return result

    async def read(self, work: Work[T]) -> T:
        return await self.on_reader(lambda: self._reader.read(work))

    async def read_all(self, work: Work[T]) -> T:
        """Run a long read beside all others. It is interrupted soon after its caller is cancelled.

        Raise StoreTooSlow if the store is read-only and the read took too long.
        """
        is_caller_gone = threading.Event()

        def read(tx: Transaction) -> T:
            deadline = stopwatch() + self._options.read_timeout if self._options.read_only else inf
            tx.raw.set_progress_handler(
                lambda: is_caller_gone.is_set() or stopwatch() > deadline, PROGRESS_CHECK_INSTRUCTIONS
            )
            try:
                return work(tx)
            except sqlite3.OperationalError as error:
                if stopwatch() > deadline and is_interrupted(error):
                    raise StoreTooSlow(
                        f"{self.path}: no answer within {self._options.read_timeout:g} s, the limit of one read"
                        " (read_timeout)"
                    ) from error
                raise
            finally:
                tx.raw.set_progress_handler(None, 0)

        try:
            return await self._threads.run(self._counter, lambda: self._counter.read(read))
        finally:
            is_caller_gone.set()

    async def on_writer(self, call: Callable[[], T]) -> T:
        """Run a call on the writer's thread."""
        return await self._threads.run(self._writer, call)

    async def on_reader(self, call: Callable[[], T]) -> T:
        return await self._threads.run(self._reader, call)

    async def close(self) -> None:
        await self._threads.close(self._reader, self._counter, self._writer)
        self.wake.close()

    def _connection(
        self, prepare: Callable[[sqlite3.Connection], None], timeout_seconds: float | None = None
    ) -> SqliteConnection[Transaction]:
        return SqliteConnection(
            self.path,
            self._open_raw,
            self.make_transaction,
            prepare=prepare,
            explain=self._explain,
            timeout_seconds=timeout_seconds,
            on_opened=self._replacement.on_opened,
        )

    def _explain(self, error: sqlite3.Error, path: Path) -> StoreError:
        if self._options.read_only and code(error) == sqlite3.SQLITE_READONLY:
            return StoreRefused(f"{path}: {error}: the store was opened for reading only (read_only)")
        return error_translation.explain(error, path)

    def _open_raw(self) -> sqlite3.Connection:
        synchronous = f"synchronous = {self._options.synchronous}"
        read_only = ("query_only = ON",) if self._options.read_only else ()
        try:
            return sqlite_file.connect(self.path, (synchronous, *_PRAGMAS, *read_only))
        except FileNotFoundError:
            raise SchemaMissing(f"{self.path} does not exist: {HOW_TO_INSTALL}") from None


_PRAGMAS = (
    "trusted_schema = OFF",
    "temp_store = MEMORY",
    "cache_size = -16000",
    # The -wal file shrinks to this size again after a burst.
    "journal_size_limit = 67108864",
)
