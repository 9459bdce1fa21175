"""A store in memory: the specification as an example, and the fastest store for tests of your own.

The rules are plain functions over the one state, ``rows.Rows``: ``enqueueing``, ``leasing`` (claim, settle, beat,
reset), ``acting`` (what each call does in each state), ``timetable`` and ``operating``. Beside them stand the parts
that call them. Here they get a lock, a clock and a way to wake workers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import datetime

from stowhand.clock import Clock, SystemClock, wall_clock
from stowhand.errors import ConfigurationError, SchemaMissing
from stowhand.jobs.conditions import refuse_conditions
from stowhand.jobs.job import MAX_ATTEMPTS, Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement, slack
from stowhand.protocols.handler import EnclosingStore
from stowhand.protocols.notices import Notices
from stowhand.protocols.queue_store import SchemaStatus, Transactions
from stowhand.protocols.sleepers import Sleepers
from stowhand.protocols.store import Capabilities, Claim, ClaimRequest, Foreign, Reply, StoreOptions, Terms
from stowhand.protocols.validation import NO_DEFAULT_ATTEMPTS
from stowhand.stores.memory import leasing
from stowhand.stores.memory.acting import Administrator
from stowhand.stores.memory.after_commit import AfterCommit
from stowhand.stores.memory.enqueueing import Producer
from stowhand.stores.memory.flow_tables import MemoryFlowTables
from stowhand.stores.memory.heartbeats import MemoryHeartbeats
from stowhand.stores.memory.inspecting import Inspector
from stowhand.stores.memory.operating import Operator
from stowhand.stores.memory.results import Results
from stowhand.stores.memory.rows import Refuses, Row, Rows
from stowhand.stores.memory.timetable import Timetable

SCHEMA = 1


class MemoryStore:
    """Jobs in this process, gone with it. Behaves as every other store of ours does.

    Several workers share jobs by sharing one ``MemoryStore``. Its heartbeats may be used from another thread.
    """

    description = "memory"
    capabilities = Capabilities(
        absent={
            "transactions": "a memory store has no transactions; use enqueue()",
            "settings": NO_DEFAULT_ATTEMPTS,
            "connections": "a memory store has none to lend; PostgreSQL has",
        }
    )
    is_listening = True
    terms: Terms | None = None
    enclosing: EnclosingStore | None = None
    settings = None
    connections = None

    def __init__(
        self, clock: Clock | None = None, options: StoreOptions | None = None, *, hears_commits: bool = False
    ) -> None:
        """``hears_commits``: ``enqueue_in`` is for tests, too: see ``after_commit``."""
        self._clock = clock or SystemClock()
        self._options = options or StoreOptions()
        self._rows = Rows(self._options.history, self._options.max_attempts)
        self._asked: ClaimRequest | None = None
        """The last claim that asked for foreign leases, until it is answered."""
        self._lock = threading.RLock()
        self._sleepers = Sleepers(self._clock)
        self._wakes_before = 0
        """When ``wait`` was last called: a hint that came since is kept for the next call."""
        self.jobs = Producer(self.transaction)
        self.notices = Notices()
        hearing = AfterCommit(self.transaction, self.notices) if hears_commits else None
        self.transactions: Transactions | None = hearing
        self.inspect = Inspector(self.transaction)
        self.admin = Administrator(self.transaction)
        self.operate = Operator(self.transaction)
        self.timetable = Timetable(self.transaction, self._now)
        self.schema = Installer(self._erase)
        self.flows = MemoryFlowTables(self.transaction, keeps=self._options.history is not None)
        self.results = Results(self.transaction)

    async def open(self) -> None:
        with self.transaction():
            pass

    async def close(self) -> None:
        pass

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        refuse_conditions(request.conditions)
        if request.ours is not None:
            self._asked = request
        with self.transaction() as rows:
            return [claimed(row) for row in leasing.claim(rows, request)]

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        with self.transaction() as rows:
            return [leasing.settle(rows, lease, what, repeat=repeat) for lease, what in batch]

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        with self.transaction() as rows:
            waiting = [row for row in rows.live.values() if row.waits() and (tasks is None or row.task in tasks)]
            due = [row.run_at for row in waiting if not rows.is_paused(row)]
            if rows.expiring:
                due += leasing.expiries(rows)
            return max((min(due) - rows.now).total_seconds(), 0.0) if due else None

    def foreign(self) -> Foreign | None:
        asked, self._asked = self._asked, None
        if asked is None or asked.ours is None:
            return None
        with self.transaction() as rows:
            return Foreign(ends_in=leasing.foreign(rows, asked.ours, slack(asked.lease)).ends_in)

    async def wait(self, timeout: float) -> bool:
        since, self._wakes_before = self._wakes_before, self._sleepers.wakes
        return await self._sleepers.wait(since, timeout)

    @property
    def failed_retention(self) -> float | None:
        return self._options.failed_retention

    def refuse(self, refuses: Refuses) -> None:
        """Behave as a database whose owner's trigger refuses to write some jobs."""
        with self.transaction() as rows:
            rows.refuses = refuses

    def heartbeats(self) -> MemoryHeartbeats:
        return MemoryHeartbeats(self)

    def rows(self) -> Sequence[Row]:
        """Copies of all rows, those in the history too, leases included: for tests that look inside."""
        with self.transaction() as rows:
            return [copy(row) for row in rows.every()]

    @contextmanager
    def transaction(self) -> Iterator[Rows]:
        """The rows, for one caller at a time; then wakes workers if something became claimable."""
        with self._lock:
            if not self.schema.installed:
                raise SchemaMissing("nothing is installed in this memory store: call install()")
            self._rows.now = self._now()
            yield self._rows
            if self._rows.take_news():
                self._sleepers.wake()

    def _erase(self) -> None:
        with self._lock:
            self._rows = Rows(self._options.history, self._options.max_attempts)
            self.flows.clear()

    def _now(self) -> datetime:
        if self._options.pinned is not None:
            return self._options.pinned()
        return self._clock.pinned() or wall_clock()


class Installer:
    """Nothing but a mark. ``erase``: called when it is taken away."""

    def __init__(self, erase: Callable[[], None]) -> None:
        self.installed = True
        self._erase = erase

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        _refuse_roles(roles)
        self.installed = True
        return await self.status()

    async def status(self) -> SchemaStatus:
        return SchemaStatus(installed=SCHEMA if self.installed else None, expected=SCHEMA)

    async def plan(self, *, roles: bool = False) -> str:
        _refuse_roles(roles)
        return "" if self.installed else "-- a memory store runs no statements"

    async def foreign_changes(self) -> Sequence[str]:
        return []

    async def default_max_attempts(self) -> int:
        return MAX_ATTEMPTS

    async def find_damage(self) -> None:
        return None

    async def uninstall(self) -> None:
        self.installed = False
        self._erase()


def _refuse_roles(roles: bool) -> None:
    if roles:
        raise ConfigurationError("a memory store has no roles")


def claimed(row: Row) -> Claim[Job]:
    """What a worker receives."""
    lease = Lease(row.id, str(row.token), row.epoch)
    return Claim(lease, row.job(), row.task, row.attempts, row.max_attempts, row.queue, row.resets)
