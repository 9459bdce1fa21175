"""A worker on a memory store that can be made to fail, a clock that the test moves, and the events that it emitted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from stowhand import events as all_events
from stowhand.clock import Clock
from stowhand.errors import StoreUnreachable
from stowhand.events import Event, Events
from stowhand.jobs.conditions import SUM_OPERATOR
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease, Pair, ResetJob
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import Handler, Isolate, handler
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Claim, ClaimRequest, Foreign, Pulse, Reply, StoreOptions, Verdict
from stowhand.stores.sqlite.queue.heartbeats import SqliteHeartbeats
from stowhand.testing import FakeClock, MemoryStore
from stowhand.worker.host import Host, resident_bytes
from stowhand.worker.worker import Worker
from tests.support import memory_rows
from tests.support.memory_rows import Row

E = TypeVar("E", bound=Event)
Act = Callable[[Attempt[Job]], Coroutine[Any, Any, object]]
KINDS = [kind for kind in vars(all_events).values() if isinstance(kind, type) and issubclass(kind, Event)]


class FaultyStore(MemoryStore):
    """A real store; what a test names in ``down`` does not answer, in ``mute`` does it and then loses the reply."""

    def __init__(self, clock: Clock, options: StoreOptions | None = None) -> None:
        super().__init__(clock, options)
        self.is_listening = True
        self.down: set[str] = set()
        self.mute: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        """A call of this name waits here first."""
        self.locked: set[int] = set()
        """Rows that another open transaction has locked."""
        self.passed_over: set[int] = set()
        """Rows that claims do not see, although they are due: another transaction locks them."""
        self.calls: list[tuple[str, float, Any]] = []
        self.time = clock
        self.broken: dict[str, Exception] = {}
        """A bug in the store: calls of this name raise this."""

    def called(self, name: str) -> list[Any]:
        """The arguments of each call of this name."""
        return [request for one, _, request in self.calls if one == name]

    def moments(self, name: str) -> list[float]:
        """When calls of this name came."""
        return [moment for one, moment, _ in self.calls if one == name]

    def before(self, name: str, request: Any = None) -> None:
        self.calls.append((name, self.time.monotonic(), request))
        if name in self.broken:
            raise self.broken[name]
        if name in self.down:
            raise StoreUnreachable(f"{name}: the store does not answer")

    def after(self, name: str) -> None:
        if name in self.mute:
            self.mute.remove(name)
            raise StoreUnreachable(f"{name}: the connection was cut")

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        self.before("claim", request)
        with memory_rows.shifted(self, "run_at", self.passed_over):
            claims = await super().claim(request)
        if "claim" in self.gates:
            await self.gates["claim"].wait()
        self.after("claim")
        return claims

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        self.before("settle", ([lease.job_id for lease, _ in batch], repeat))
        if "settle" in self.gates:
            await self.gates["settle"].wait()
        free = [pair for pair in batch if pair[0].job_id not in self.locked]
        verdicts = dict(zip((lease for lease, _ in free), await super().settle(free, repeat=repeat), strict=True))
        if "after settle" in self.gates:
            await self.gates["after settle"].wait()
        self.after("settle")
        return [verdicts.get(lease, Verdict.BUSY) for lease, _ in batch]

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        self.before("next_due")
        if "next_due" in self.gates:
            await self.gates["next_due"].wait()
        return await super().next_due(tasks, queues)

    async def wait(self, timeout: float) -> bool:
        self.before("wait", timeout)
        return await super().wait(timeout)

    def heartbeats(self) -> FaultyHeartbeats:
        return FaultyHeartbeats(self)

    def rows(self) -> list[Row]:
        """All rows, those in the history too, leases included."""
        return memory_rows.rows_of(self)


class ChoosyStore(FaultyStore):
    """A store that takes a condition on the priority, which stands for a size here."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.conditions: list[tuple[Any, ...]] = []
        """Of each claim."""

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        most = min(fits.value for fits in request.conditions) if request.conditions else 2**31
        # It sums nothing: of those that are to fit together it gives one.
        limit = 1 if any(fits.op == SUM_OPERATOR for fits in request.conditions) else request.limit
        larger = [row.id for row in self.rows() if row.priority > most and row.state is State.QUEUED]
        self.conditions.append(request.conditions)
        with memory_rows.shifted(self, "run_at", larger):
            return await super().claim(msgspec.structs.replace(request, conditions=(), limit=limit))


class FaultyHeartbeats(SqliteHeartbeats):
    """The same faults for the heartbeats."""

    def __init__(self, store: FaultyStore) -> None:
        connection = store._connections.connect()
        super().__init__(connection, connection, None, store._options.history)
        self._faulty = store

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        self._faulty.before("beat", [one.job_id for one in leases])
        locked = self._faulty.locked
        pulse = await super().beat([one for one in leases if one.job_id not in locked], lease)
        self._faulty.after("beat")
        busy = frozenset((one.job_id, one.token) for one in leases if one.job_id in locked)
        return msgspec.structs.replace(pulse, busy=pulse.busy | busy)

    async def find_canceled(self, leases: Sequence[Lease]) -> frozenset[Pair]:
        self._faulty.before("find_canceled", [one.job_id for one in leases])
        return await super().find_canceled(leases)

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        self._faulty.before("release", [one.job_id for one in leases])
        locked = self._faulty.locked
        await super().release([one for one in leases if one.job_id not in locked])
        return [one for one in leases if one.job_id in locked]

    async def abandon(self, token: str) -> bool:
        self._faulty.before("abandon", token)
        return await super().abandon(token)

    async def foreign(self, own_leases: Sequence[Lease], slack: float) -> Foreign | None:
        self._faulty.before("foreign", slack)
        return await super().foreign(own_leases, slack)

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        self._faulty.before("reset_stalled", slack)
        with memory_rows.shifted(self._faulty, "lease_until", self._faulty.locked):
            return await super().reset_stalled(slack)

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        self._faulty.before("reset_lease", lease)
        return await super().reset_lease(lease)

    async def close(self) -> None:
        self._faulty.before("close")


class WorkerHarness:
    """One running worker and its surroundings."""

    def __init__(self, worker: Worker, store: FaultyStore, clock: FakeClock, emitted: list[Event]) -> None:
        self.worker, self.store, self.clock, self.emitted = worker, store, clock, emitted
        self.ending: asyncio.Task[None] = asyncio.get_running_loop().create_task(worker.run())

    def events(self, kind: type[E]) -> list[E]:
        """Events of one kind, so far."""
        return [event for event in self.emitted if isinstance(event, kind)]

    async def add(self, task: str = "act", *, count: int = 1, **details: Any) -> int:
        """Enqueue; the id of the last."""
        return [(await self.store.jobs.enqueue(NewJob(task=task, **details))).id for _ in range(count)][-1]

    async def does(self, task: str = "act", seconds: float = 0.0, **details: Any) -> Job:
        """Enqueue one, let time pass, and show what became of it."""
        job_id = await self.add(task, **details)
        await self.clock.advance(seconds)
        return await self.job(job_id)

    async def job(self, job_id: int) -> Job:
        job = await self.store.jobs.get(job_id)
        assert job is not None
        return job

    def row(self, job_id: int) -> Row:
        return next(row for row in self.store.rows() if row.id == job_id)

    async def ended(self, timeout: float = 60.0) -> float:
        """Let time pass until the worker has ended, and raise what it raised. How long that took."""
        began = self.clock.monotonic()
        while not self.ending.done() and self.clock.monotonic() - began < timeout:
            await self.clock.advance(0.25)
        assert self.ending.done(), f"the worker had not ended after {timeout} s"
        self.ending.result()
        return self.clock.monotonic() - began


@asynccontextmanager
async def at_work(
    acts: Act | Mapping[str, Act] | Handler,
    *,
    store: FaultyStore | None = None,
    clock: FakeClock | None = None,
    isolate: Isolate | None = None,
    resident: Callable[[], int] = resident_bytes,
    jobs: Sequence[NewJob] = (),
    **options: Any,
) -> AsyncIterator[WorkerHarness]:
    """A worker that runs for as long as the block lasts, and must leave nothing behind."""
    clock = clock or FakeClock()
    store = store or FaultyStore(clock)
    for job in jobs:
        await store.jobs.enqueue(job)
    emitted: list[Event] = []
    events = Events()
    for kind in KINDS:
        events.on(kind, emitted.append)
    before = asyncio.all_tasks()
    host = Host(isolate, resident=resident)
    worker = Worker(store, handler_of(acts), WorkerOptions(name="w", **options), clock=clock, events=events, host=host)
    harness = WorkerHarness(worker, store, clock, emitted)
    await clock.settle()
    try:
        yield harness
    finally:
        if not harness.ending.done():
            worker.stop(now=True)
            await harness.ended()
    await clock.settle()
    assert asyncio.all_tasks() <= before, "a task outlived its worker"


def handler_of(acts: Act | Mapping[str, Act] | Handler) -> Handler:
    """One function for every task, one for each, or a whole handler."""
    if hasattr(acts, "handle"):
        return acts
    if callable(acts):
        return handler(lambda ctx, record: acts(ctx))

    async def by_task(attempt: Attempt[Job], job: Job) -> object:
        return await acts[job.task](attempt)

    return handler(by_task)


def taking(clock: Clock, seconds: float) -> Act:
    """A handler that takes so long."""

    async def act(attempt: Attempt[Job]) -> None:
        await clock.sleep(seconds)

    return act


async def nothing(attempt: Attempt[Job]) -> None:
    """A handler that never waits."""
