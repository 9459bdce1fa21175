"""Attempts that a store encloses in a transaction: how they end, whatever the transaction says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from stowhand.clock import Clock
from stowhand.errors import StoreUnreachable
from stowhand.events import Events, JobEnded, JobStarted, JobUnknown
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import AttemptOutcome, Retry, Settlement, settle
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.store import Reply, Verdict
from stowhand.testing import FakeClock
from tests.worker.worker_harness import FaultyStore, at_work, nothing, taking


class Enclosing(FaultyStore):
    """Every attempt has a transaction, which can be made to fail as the rest of the store."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.enclosing = self
        self.recorded: Settlement | None = None
        self.busy = 0

    async def validate(self, events: Events | None = None) -> None: ...

    def around(self, attempt: Attempt[Any]) -> AbstractAsyncContextManager[None]:
        return self._around(attempt)

    @asynccontextmanager
    async def _around(self, attempt: Attempt[Any]) -> AsyncIterator[None]:
        self.before("begin")
        control_of(attempt).transaction = Enclosed(self, attempt)
        yield


class Enclosed:
    def __init__(self, store: Enclosing, attempt: Attempt[Any]) -> None:
        self.store, self.attempt = store, attempt

    async def settle(self, settlement: Settlement) -> Reply:
        self.store.before("commit")
        if "commit" in self.store.gates:
            await self.store.gates["commit"].wait()
        if self.store.busy:
            self.store.busy -= 1
            return Verdict.BUSY
        recorded = self.store.recorded
        (reply,) = await self.store.settle([(self.attempt.lease, recorded or settlement)])
        return recorded or reply

    async def rollback(self) -> None:
        self.store.before("rollback")


async def test_an_unknown_outcome_is_reported_and_delays_no_other_job() -> None:
    store = Enclosing(clock := FakeClock())
    async with at_work(nothing, clock=clock, store=store) as harness:
        store.down.add("commit")
        await harness.does()
        assert (len(harness.events(JobUnknown)), harness.events(JobEnded)) == (1, [])
        store.down.clear()
        assert (await harness.does()).state is State.COMPLETED
        harness.worker.stop()
        assert await harness.ended() < 1


async def test_the_event_has_the_recorded_outcome() -> None:
    store = Enclosing(clock := FakeClock())
    store.recorded = settle(Retry("could not be committed"), attempts=1, max_attempts=5, backoff=lambda n: 60.0)
    async with at_work(nothing, clock=clock, store=store) as harness:
        assert (await harness.does()).state is State.ERRORED
        assert [(told.outcome, told.error) for told in harness.events(JobEnded)] == [
            (AttemptOutcome.RETRY, "could not be committed")
        ]


async def test_a_busy_record_is_settled_again_in_its_transaction() -> None:
    store = Enclosing(clock := FakeClock())
    store.busy = 2
    async with at_work(nothing, clock=clock, store=store) as harness:
        assert (await harness.does(seconds=2)).state is State.COMPLETED
        assert len(store.called("commit")) == 3


async def test_the_slot_is_held_until_the_transaction_has_ended() -> None:
    store = Enclosing(clock := FakeClock())
    store.gates["commit"] = asyncio.Event()
    async with at_work(taking(clock, 1), clock=clock, store=store, concurrency=2) as harness:
        await harness.add(count=5)
        await clock.advance(5)
        assert len(harness.events(JobStarted)) == 2
        store.gates["commit"].set()
        await clock.advance(5)
        assert len(harness.events(JobEnded)) == 5


async def test_an_unsettled_attempt_is_rolled_back_and_returned() -> None:
    store = Enclosing(clock := FakeClock())
    async with at_work(taking(clock, 1000), clock=clock, store=store, grace=1.0) as harness:
        job_id = await harness.add()
        await clock.advance(1)
        store.down.add("rollback")
        harness.worker.stop()
        await harness.ended()
        assert len(store.called("rollback")) == 1
        assert (harness.row(job_id).state, harness.row(job_id).attempts) == (State.QUEUED, 0)


async def test_an_attempt_that_could_not_be_enclosed_is_not_begun_and_costs_nothing() -> None:
    store = Enclosing(clock := FakeClock())
    ran: list[int] = []

    async def act(ctx: Attempt[Job]) -> None:
        ran.append(ctx.lease.job_id)

    async with at_work(act, clock=clock, store=store) as harness:
        store.down.add("begin")
        job = await harness.does()
        assert (job.state, job.attempts, ran) == (State.QUEUED, 0, [])
        store.down.clear()
        await clock.advance(5)
        assert (await harness.job(job.id)).state is State.COMPLETED


async def test_a_store_that_does_not_admit_a_worker_ends_it_before_a_claim() -> None:
    class Unfit(Enclosing):
        async def validate(self, events: Events | None = None) -> None:
            raise StoreUnreachable("not like this")

    store = Unfit(clock := FakeClock())
    async with at_work(nothing, clock=clock, store=store, jobs=[NewJob(task="act")]) as harness:
        assert isinstance(harness.ending.exception(), StoreUnreachable)
        assert store.called("claim") == []
