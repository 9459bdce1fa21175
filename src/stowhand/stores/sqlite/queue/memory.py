"""A store in memory, for tests and trials: the SQLite queue on a private database.

All calls share one connection. They run on the calling thread, under the connection's lock. Temporary triggers record
whether a transaction made jobs claimable, so that only such a transaction wakes workers.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from stowhand.clock import Clock, SystemClock, wall_clock
from stowhand.errors import ConfigurationError, StoreError, StoreUnreachable
from stowhand.protocols.queue_store import Notices
from stowhand.protocols.store import StoreOptions
from stowhand.stores.database.sqlite_connection import SqliteConnection
from stowhand.stores.database.sqlite_errors import code
from stowhand.stores.database.sqlite_wake import DirectWake
from stowhand.stores.sqlite.queue import error_translation, moment, schema
from stowhand.stores.sqlite.queue.after_commit import AfterCommit
from stowhand.stores.sqlite.queue.connections import Connections, Work
from stowhand.stores.sqlite.queue.store import EmbeddedStore
from stowhand.stores.sqlite.queue.transaction import Transaction
from stowhand.stores.sqlite.queue.workflows import SqliteWorkflows

T = TypeVar("T")
DATABASE_NAME = "memory"

_IS_WAITING = "NEW.state IN ('queued', 'errored')"
_FREES_OTHERS = "OLD.state = 'processing' AND (OLD.serial IS NOT NULL OR OLD.limit_slot IS NOT NULL)"
_CLAIMABLE_EVENTS = (
    f"INSERT ON stowhand_jobs WHEN {_IS_WAITING}",
    f"UPDATE OF state, run_at ON stowhand_jobs WHEN {_IS_WAITING} OR ({_FREES_OTHERS} AND NEW.state = 'failed')",
    # The worker that runs the job checks for the request when it is woken.
    "UPDATE OF cancel_requested ON stowhand_jobs WHEN NEW.cancel_requested",
    f"DELETE ON stowhand_jobs WHEN {_FREES_OTHERS}",
    "DELETE ON stowhand_paused",
    "DELETE ON stowhand_pauses",
    "UPDATE OF override ON stowhand_limits WHEN NEW.override <> OLD.override OR NEW.held_until IS NULL",
)


class MemoryStore(EmbeddedStore):
    """Store in the memory of this process. It keeps every rule of the stores in files and on servers.

    Several workers share jobs by sharing one ``MemoryStore``. Heartbeats may be sent from another thread.
    """

    def __init__(
        self, clock: Clock | None = None, options: StoreOptions | None = None, *, supports_enqueue_in: bool = False
    ) -> None:
        """``supports_enqueue_in``: accept ``enqueue_in`` in tests, and enqueue after the commit."""
        clock, options, notices = clock or SystemClock(), options or StoreOptions(), Notices()
        if options.pinned is None and clock.pinned() is not None:
            options = msgspec.structs.replace(options, pinned=lambda: clock.pinned() or wall_clock())
        connections = PrivateConnections(clock, options)
        absent = {
            "transactions": "a memory store has no transactions; use enqueue()",
            "connections": "a memory store has no connections for tasks; use PostgreSQL",
        }
        super().__init__(connections, options, notices, description=DATABASE_NAME, absent=absent)
        self.transactions = AfterCommit(connections.connection, options, notices) if supports_enqueue_in else None
        write_in = _refuse_write_in if self.transactions is None else self.transactions.write_in
        self.workflows = SqliteWorkflows(connections, write_in)

    async def close(self) -> None:
        """Do nothing: the jobs stay."""


def _refuse_write_in(_connection: object, _work: Work[T], *, call: str) -> T:
    raise ConfigurationError(f"{call}: a memory store has no transactions; leave out the connection")


class PrivateConnections(Connections):
    """The one connection of a memory store. Calls run on the calling thread."""

    retry_pauses = ()
    waits_for_disk = False

    def __init__(self, clock: Clock, options: StoreOptions) -> None:
        super().__init__(Path(DATABASE_NAME), options)
        self.wake = DirectWake(clock)
        self.connection = PrivateConnection(self.make_transaction, self.wake)

    def create(self) -> None:
        pass

    def exists(self) -> bool:
        return True

    def connect(self, timeout_seconds: float | None = None) -> SqliteConnection[Transaction]:
        return self.connection

    @contextmanager
    def unchecked(self, *, writes: bool = False) -> Iterator[SqliteConnection[Transaction]]:
        yield self.connection
        if writes:
            self.connection.write(lambda tx: _create_triggers(tx.raw))

    def probe(self) -> None:
        return None

    def commit_wake(self) -> None:
        return None

    async def open(self) -> None:
        self.connection.read(lambda tx: schema.check(tx.raw, self.path))

    async def write(self, work: Work[T], *, wakes: bool = False) -> T:
        return self.connection.write(work)

    async def read(self, work: Work[T]) -> T:
        return self.connection.read(work)

    async def read_all(self, work: Work[T]) -> T:
        return self.connection.read(work)

    async def on_writer(self, call: Callable[[], T]) -> T:
        return call()

    async def on_reader(self, call: Callable[[], T]) -> T:
        return call()

    async def close(self) -> None:
        pass


class PrivateConnection(SqliteConnection[Transaction]):
    """Connection to a database in memory that lives as long as this object. A forked process has a copy of it."""

    is_on_file = False
    retry_pauses = ()

    def __init__(self, make_context: Callable[[sqlite3.Connection], Transaction], wake: DirectWake) -> None:
        super().__init__(Path(DATABASE_NAME), self._open_database, make_context, explain=_explain)
        self._wake = wake
        self._has_claimable_jobs = threading.Event()
        """Set by a trigger if the current transaction makes jobs claimable."""

    def write(self, work: Work[T]) -> T:
        with self._lock:
            self._has_claimable_jobs.clear()
            result = super().write(work)
            has_claimable_jobs = self._has_claimable_jobs.is_set()
        if has_claimable_jobs:
            self._wake.ring()
        return result

    def close(self) -> None:
        """Do nothing: closing would delete the database."""

    def _connected(self, timeout_seconds: float | None = None) -> sqlite3.Connection:
        if self._raw is None:
            self._check_fork()
            self._raw = self._open_raw()
        return self._raw

    def _open_database(self) -> sqlite3.Connection:
        raw = _connect()
        # SQLite's function must not refer to this object: the garbage collector cannot follow that reference.
        weakref.finalize(self, raw.close)
        raw.deserialize(_template())
        for setting in ("trusted_schema = OFF", "temp_store = MEMORY"):
            raw.execute(f"PRAGMA {setting}")
        raw.create_function("stowhand_claimable", 0, self._has_claimable_jobs.set)
        _create_triggers(raw)
        return raw


def _explain(error: sqlite3.Error, path: Path) -> StoreError:
    if code(error) == sqlite3.SQLITE_FULL:
        return StoreUnreachable(
            "the memory store is full: SQLite allows at most 1 GiB for a database in memory; committed jobs are kept."
            " Purge ended jobs, or store jobs in a file (sqlite:///jobs.db)"
        )
    return error_translation.explain(error, path)


@cache
def _template() -> bytes:
    """Return a database with empty tables, in SQLite's file format."""
    raw = _connect()
    try:
        raw.execute("BEGIN")
        schema.install(Transaction(raw, moment.clock(None)(), keeps_history=True))
        raw.execute("COMMIT")
        return raw.serialize()
    finally:
        raw.close()


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=256)


def _create_triggers(raw: sqlite3.Connection) -> None:
    # Temporary triggers belong to the connection, so the schema is the same as in a file.
    for number, event in enumerate(_CLAIMABLE_EVENTS):
        raw.execute(
            f"CREATE TEMP TRIGGER IF NOT EXISTS claimable_{number} AFTER {event} BEGIN SELECT stowhand_claimable(); END"
        )
