"""The harness: one store under test, its heartbeats, a clock that stands still, and the verbs of the suite."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, Self

from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, Cancel, Fail, Outcome, Retry, Settlement, Snooze, settle
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.protocols.store import SECONDS_PER_DAY, Claim, ClaimRequest, Heartbeats, Reply, StoreOptions, Verdict
from stowhand.testing import FakeClock
from stowhand.worker.heartbeat_thread import HeartbeatThread
from tests.contract.backends import Backend, Image

LEASE = 30.0
STATES = tuple(State)


class StoreHarness:
    """A store with an empty set of jobs. Opened by the test's own loop, closed after the test."""

    def __init__(self, backend: Backend, options: StoreOptions, clock: FakeClock, *, opened: bool = True) -> None:
        self.backend = backend
        self.clock = clock
        self._options = options
        self._opened = opened
        self._stack = AsyncExitStack()
        self._numbers = itertools.count(1)
        self.store: QueueStore
        self.heartbeats: Heartbeats

    async def __aenter__(self) -> Self:
        if not self._opened:
            self.store = self.backend.store(self._options)
            self._stack.push_async_callback(self.store.close)
            return self
        self.store = await self.another()
        self.heartbeats = self.another_heartbeats(self.store)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def another(self) -> QueueStore:
        """One more store on the same jobs, as another process would open it."""
        store = self.backend.store(self._options)
        await store.open()
        self._stack.push_async_callback(store.close)
        return store

    def another_heartbeats(self, store: QueueStore) -> Heartbeats:
        """A heart of that store, closed after the test."""
        heartbeats = store.heartbeats()
        self._stack.push_async_callback(heartbeats.close)
        return heartbeats

    def heartbeat_thread(self, store: QueueStore) -> HeartbeatThread:
        """Its heartbeats on a loop of their own, as a worker makes them, so that they race; closed after the test."""
        thread = HeartbeatThread("heartbeats of a test", store.heartbeats)
        self._stack.push_async_callback(thread.close)
        return thread

    def unopened(self) -> QueueStore:
        """A store that has not been opened; the test closes it."""
        return self.backend.store(self._options)

    @property
    def now(self) -> datetime:
        return self.clock.now()

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        if (passed := getattr(self.backend, "passed", None)) is not None:
            passed(seconds)  # a place whose server cannot be told what time it is

    async def add(self, task: str = "t", **details: Any) -> Job:
        return await self.store.jobs.enqueue(NewJob(task=task, **details))

    async def claim(
        self, limit: int = 1, *, worker: str = "w1", token: str | None = None, lease: float = LEASE, **asked: Any
    ) -> Sequence[Claim[Job]]:
        return await self.store.claim(
            ClaimRequest(worker=worker, token=token or new_token(), limit=limit, lease=lease, **asked)
        )

    async def take(self, **asked: Any) -> Lease:
        """Claim exactly one job, and give its lease."""
        (claim,) = await self.claim(**asked)
        return claim.lease

    async def start(self, task: str = "t", **details: Any) -> Lease:
        """A new job, running."""
        job = await self.add(task, **details)
        lease = await self.take(tasks=(task,), suspects=False)
        assert lease.job_id == job.id, "another job was due: use it a task of its own"
        return lease

    async def settle(self, lease: Lease, settlement: Settlement = COMPLETED, *, repeat: bool = False) -> Reply:
        (verdict,) = await self.store.settle([(lease, settlement)], repeat=repeat)
        return verdict

    async def job(self, job_id: int) -> Job:
        job = await self.store.jobs.get(job_id)
        assert job is not None, f"job {job_id} is nowhere"
        return job

    async def image(self, job_id: int) -> Image | None:
        """Everything the store keeps of a job, wherever it lies."""
        return await asyncio.to_thread(self.backend.image, job_id)

    async def in_state(self, state: State, *, task: str | None = None, **details: Any) -> Job:
        """A job that has come to stand there on the ordinary way."""
        task = task or f"made{next(self._numbers)}"
        job = await self.add(task, **details)
        if state is State.QUEUED:
            return job
        (claim,) = await self.claim(tasks=(task,))
        if state is not State.PROCESSING:
            assert await self.settle(claim.lease, WAYS[state]) is Verdict.SETTLED
        return await self.job(job.id)

    async def lose(self, lease: Lease) -> None:
        """The worker of this lease dies, and somebody saw it."""
        (reset,) = await self.heartbeats.reset_lease(lease)
        assert reset.job_id == lease.job_id

    async def make_suspect(self, task: str = "killer", times: int = 2, **details: Any) -> Job:
        """A waiting job whose worker has died that often."""
        job = await self.add(task, **details)
        for deaths in range(times):
            await self.lose(await self.take(tasks=(task,), suspects=deaths >= 2))
        return await self.job(job.id)

    async def everything(self) -> Sequence[Job]:
        """All jobs, the history too."""
        return await self.store.inspect.list(JobFilter(states=STATES, limit=10_000))


def harness_at(backend: Backend, *, history: float | None = SECONDS_PER_DAY, opened: bool = True) -> StoreHarness:
    """A harness on the jobs of a backend, with a clock of its own."""
    clock = FakeClock()
    return StoreHarness(backend, StoreOptions(history=history, pinned=clock.now), clock, opened=opened)


def judged(outcome: Outcome, attempts: int = 1, max_attempts: int = 25) -> Settlement:
    """What the law says of an outcome."""
    return settle(outcome, attempts=attempts, max_attempts=max_attempts, backoff=lambda attempt: 60.0)


ERRORED = judged(Retry("it failed", 60.0))
FAILED = judged(Fail("it is broken"))
SNOOZED = judged(Snooze(60.0))
CANCELED = judged(Cancel("not wanted"))

WAYS = {State.ERRORED: ERRORED, State.FAILED: FAILED, State.CANCELED: CANCELED, State.COMPLETED: COMPLETED}
"""How a running job comes to each state."""

SETTLEMENTS = {"complete": COMPLETED, "retry": ERRORED, "fail": FAILED, "snooze": SNOOZED, "cancel": CANCELED}


def new_token() -> str:
    return str(uuid.uuid4())
