"""Connections to an SQLite file: transactions that wait for their lock, threads, and forks.

write   BEGIN IMMEDIATE … COMMIT. A write waits for the lock, at most a minute. A deferred transaction that upgrades
        is never used, because SQLite refuses it at once, whatever the busy timeout.
read    plain statements.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from stowhand.clock import stopwatch
from stowhand.errors import StoreError, StoreUnreachable
from stowhand.stores.database import sqlite_errors
from stowhand.stores.database.refused_rows import RETRY_PAUSES_SECONDS
from stowhand.stores.database.sqlite_file import FileIdentity, check_replacement, file_identity, record_opened

T = TypeVar("T")


class OnConnection(Protocol):
    """The argument of a unit of work: the connection in its transaction, with the additions of a store."""

    @property
    def raw(self) -> sqlite3.Connection: ...


X = TypeVar("X", bound=OnConnection)
Explain = Callable[[sqlite3.Error, Path], StoreError]

BUSY_DEADLINE_SECONDS = 60.0
"""Maximum time to wait for other writers."""


class SqliteConnection(Generic[X]):
    """A lazily opened connection that threads use one at a time.

    ``dial`` opens a connection, and ``prepare`` is called with it first. ``make_context`` makes the argument of a unit
    of work in every transaction, once it has the lock. ``explain`` converts an error. ``on_opened`` is called with the
    identity of each opened file. If another file replaces the first one, the connection uses the new one.
    """

    is_on_file = True
    retry_pauses = RETRY_PAUSES_SECONDS
    """Pauses before further attempts of a refused write, since other programs may have removed the cause."""

    def __init__(
        self,
        path: Path,
        open_raw: Callable[[], sqlite3.Connection],
        make_context: Callable[[sqlite3.Connection], X],
        *,
        prepare: Callable[[sqlite3.Connection], None] = lambda _: None,
        explain: Explain = sqlite_errors.explain,
        timeout_seconds: float | None = None,
        on_opened: Callable[[FileIdentity], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._open_raw = open_raw
        self._make_context = make_context
        self._prepare = prepare
        self._explain = explain
        self._timeout_seconds = timeout_seconds
        self._on_opened = on_opened
        self._raw: sqlite3.Connection | None = None
        self._lock = threading.RLock()
        self._is_forbidden = False
        self._file: FileIdentity = None
        self.open_count = 0
        """The number of connections opened so far. Counters of different connections are not comparable."""
        _connections.add(self)

    def open(self) -> None:
        """Connect, and check that the file can be written.

        Do not wait for another writer: it may be the caller's own transaction, which continues after this returns.
        """
        with self._lock:
            try:
                raw = self._connected(timeout_seconds=0.0)
                raw.execute("BEGIN IMMEDIATE")
                raw.execute("ROLLBACK")
            except sqlite3.Error as error:
                if sqlite_errors.is_client_error(error):
                    raise
                if not sqlite_errors.is_busy(error):
                    raise self._explain(error, self._path) from error

    def write(self, work: Callable[[X], T]) -> T:
        """Run ``work`` in one transaction, which is rolled back if it raises. Other writers wait meanwhile."""
        with self._lock:
            try:
                return self._with_lenient_text(lambda: self._transact(self._connected(), work))
            except sqlite3.Error as error:
                if sqlite_errors.is_client_error(error):
                    raise
                raise self._explain(error, self._path) from error

    def read(self, work: Callable[[X], T]) -> T:
        """Run ``work`` without a transaction. Each statement sees one committed state."""
        with self._lock:
            try:
                return self._with_lenient_text(
                    lambda: self._retry_while_busy(lambda: work(self._make_context(self._connected())))
                )
            except sqlite3.Error as error:
                if sqlite_errors.is_client_error(error):
                    raise
                raise self._explain(error, self._path) from error

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        with self._lock:
            if self._raw is not None:
                self._raw.close()
                self._raw = None

    def _transact(self, raw: sqlite3.Connection, work: Callable[[X], T]) -> T:
        self._retry_while_busy(lambda: raw.execute("BEGIN IMMEDIATE"))
        try:
            # Read the time once the lock is held: the wait for it may have been long.
            result = work(self._make_context(raw))
            # Without write-ahead logging a commit waits for current readers.
            self._retry_while_busy(lambda: raw.execute("COMMIT"))
        except BaseException:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raise
        return result

    def _connected(self, timeout_seconds: float | None = None) -> sqlite3.Connection:
        self._check_fork()
        if self._raw is not None and self._file != file_identity(self._path):
            self.close()
        if self._raw is None:
            check_replacement(self._path)
            self._file = file_identity(self._path)
            raw = self._open_raw()
            try:
                self._retry_while_busy(lambda: self._prepare(raw), timeout_seconds)
            except BaseException:
                raw.close()
                raise
            self._raw = raw
            self.open_count += 1
            record_opened(self._path, self._file)
            self._on_opened(self._file)
        return self._raw

    def _check_fork(self) -> None:
        if self._is_forbidden:
            raise StoreError(
                f"{self._path}: this process was forked during a transaction, so it can no longer use SQLite on this"
                " file: open the store after the fork, or start processes by spawn"
            )

    def _with_lenient_text(self, step: Callable[[], T]) -> T:
        """Repeat a step that read a text that is not UTF-8 (written by another program), decoding it leniently.

        Its bytes become lone surrogates, which JSON must not contain. So that job fails alone and blocks no other.
        """
        try:
            return step()
        except sqlite3.OperationalError as error:
            if self._raw is None or not sqlite_errors.is_undecodable(error):
                raise
        # Decode leniently from now on, although it costs more per text, as the row is still in the file.
        self._raw.text_factory = sqlite_errors.decode_leniently
        return step()

    def _retry_while_busy(self, step: Callable[[], T], timeout_seconds: float | None = None) -> T:
        """Repeat a step while others hold the lock. Each attempt waits inside SQLite, so this is not a busy loop."""
        timeouts = (timeout_seconds, self._timeout_seconds, BUSY_DEADLINE_SECONDS)
        deadline = stopwatch() + next(timeout for timeout in timeouts if timeout is not None)
        while True:
            try:
                return step()
            except sqlite3.OperationalError as error:
                if not sqlite_errors.is_busy(error) or stopwatch() > deadline:
                    raise

    # -- fork -------------------------------------------------------------------------------------
    # SQLite keeps its locks in memory, and a child inherits that memory but not the locks: it would write into a file
    # that it believes locked. So no connection is open during a fork; both sides open new ones afterwards.

    def before_fork(self) -> bool:
        """Close the connection and block other threads. Return False if a transaction does not end in time."""
        if not self._lock.acquire(timeout=FORK_TIMEOUT_SECONDS):
            return False
        self.close()
        return True

    def after_fork(self) -> None:
        """Let other threads use the connection again."""
        self._lock.release()

    def forbid_use(self) -> None:
        """Refuse all use in a child forked during a transaction. Never touch or close the inherited connection."""
        if self._raw is not None:
            _never_closed.append(self._raw)
        self._raw = None
        self._lock = threading.RLock()
        self._is_forbidden = True


class OwnThreads:
    """One thread for each connection, so that no event loop waits for a file. Calls run in their order."""

    def __init__(self) -> None:
        self._threads: dict[SqliteConnection[Any], ThreadPoolExecutor] = {}
        self._pid = os.getpid()

    async def run(self, connection: SqliteConnection[Any], call: Callable[[], T]) -> T:
        """Run ``call`` on the thread of this connection."""
        if self._pid != os.getpid():
            # Threads do not survive a fork.
            self._threads = {}
            self._pid = os.getpid()
        thread = self._threads.get(connection)
        if thread is None:
            thread = self._threads[connection] = ThreadPoolExecutor(1, thread_name_prefix="stowhand-sqlite")
        return await asyncio.get_running_loop().run_in_executor(thread, call)

    async def close(self, *connections: SqliteConnection[Any]) -> None:
        """Close these connections and stop every thread."""
        for connection in connections:
            await self.run(connection, connection.close)
        for thread in self._threads.values():
            thread.shutdown(wait=False)
        self._threads.clear()


class WriteProbe:
    """A check that the file can be written. It has its own connection, which caches almost nothing."""

    def __init__(self, connection: SqliteConnection[Any]) -> None:
        self._connection = connection

    def look(self) -> None:
        """Raise StoreUnreachable as a commit would: the disk is full, or the file is no longer writable.

        This takes 0.1 to 0.3 ms and no fsync. It does not wait for the lock: its holder is writing, and if that fails,
        the next check reports it.
        """
        try:
            self._connection.write(_write_and_undo)
        except _Undone:
            pass
        except StoreUnreachable as error:
            if not (isinstance(error.__cause__, sqlite3.Error) and sqlite_errors.is_busy(error.__cause__)):
                raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class _Undone(Exception):
    """Raised after a successful write, to roll it back."""


def _write_and_undo(context: OnConnection) -> None:
    # Pages wait in memory for the commit, so an empty or rolled back transaction never touches the disk. Without a
    # cache they go to the -wal file at once, behind its last commit, where the next commit overwrites them.
    # A rollback journal is written to the disk anyway, and spilled pages would block the application's readers.
    if context.raw.execute("PRAGMA journal_mode").fetchone() == ("wal",):
        context.raw.execute("PRAGMA cache_size = 1")
        context.raw.execute("PRAGMA cache_spill = 1")
    # This is about as much as a claim and a settlement write. No other connection ever sees the table.
    context.raw.execute("CREATE TABLE stowhand_write_probe AS SELECT zeroblob(32768) AS pages")
    raise _Undone


def write_in_savepoint(connection: sqlite3.Connection, write: Callable[[], object]) -> Exception | None:
    """Write under a savepoint. Return the error if the file refuses it; then nothing was written."""
    connection.execute("SAVEPOINT stowhand_one")
    try:
        write()
    except (sqlite3.Error, ValueError, OverflowError) as error:
        # After a full disk or a trigger's RAISE(ROLLBACK), the transaction no longer exists: raise that error.
        if sqlite_errors.concerns_call(error) or not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO stowhand_one")
        connection.execute("RELEASE stowhand_one")
        return error
    connection.execute("RELEASE stowhand_one")
    return None


def check_written(cursor: sqlite3.Cursor, expected: int = 1) -> None:
    """Raise an error if a trigger kept a row unchanged by RAISE(IGNORE), which SQLite does not report."""
    if cursor.rowcount < expected:
        raise sqlite3.IntegrityError(f"a trigger leaves {expected - cursor.rowcount} of {expected} rows unchanged")


# -- forks of all connections -------------------------------------------------------------------

FORK_TIMEOUT_SECONDS = 2.0
_connections: WeakSet[SqliteConnection[Any]] = WeakSet()
_locked: list[SqliteConnection[Any]] = []
_not_locked: list[SqliteConnection[Any]] = []
_never_closed: list[sqlite3.Connection] = []


def _before_fork() -> None:
    for connection in list(_connections):
        (_locked if connection.before_fork() else _not_locked).append(connection)


def _after_fork_in_parent() -> None:
    for connection in _locked:
        connection.after_fork()
    _locked.clear()
    _not_locked.clear()


def _after_fork_in_child() -> None:
    # One inherited lock table makes the file unsafe for every connection of this process.
    unsafe_paths = {connection._path for connection in _not_locked if connection.is_on_file}  # noqa: SLF001 - this module's own
    for connection in _not_locked:
        connection.forbid_use()
    for connection in _locked:
        connection.after_fork()
        if connection.is_on_file and connection._path in unsafe_paths:  # noqa: SLF001
            connection.forbid_use()
    _locked.clear()
    _not_locked.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
