"""Threads of ``def`` tasks that are canceled or time out: they have five seconds to end by themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stowhand.app.app import App, task_handler
from stowhand.events import LeaseExpiring, ThreadAbandoned, ThreadEnded, ThreadsExhausted
from stowhand.jobs.job import Job, State
from stowhand.jobs.lifecycle import Cancel, Fail, Retry, Snooze
from stowhand.tasks.context import Context
from stowhand.testing import FakeClock, MemoryStore
from tests.worker.worker_harness import WorkerHarness, at_work

DEADLINE = 20.0
"""Seconds of real time for a thread to do what the test waits for."""


class Work:
    """A task whose threads go on until the test ends them."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.saw: list[bool] = []
        """What ``ctx.canceled`` was at the end."""
        self.end: Callable[[], object] = lambda: None

    def act(self, ctx: Context) -> object:
        self.began.set()
        assert self.may_end.wait(DEADLINE)
        self.saw.append(ctx.canceled)
        return self.end()


def nothing() -> None:
    """A task that ends at once."""


def raising(error: Exception) -> Callable[[], object]:
    def end() -> object:
        raise error

    return end


@asynccontextmanager
async def threaded(work: Work, **options: Any) -> AsyncIterator[WorkerHarness]:
    app = App(store=MemoryStore())
    app.task(name="act")(work.act)
    app.task(name="next")(nothing)
    handler = task_handler(app)
    try:
        async with at_work(handler, clock=FakeClock(), **options) as harness:
            yield harness
    finally:
        work.may_end.set()
        handler.close()


async def running(harness: WorkerHarness, work: Work, **details: Any) -> int:
    """A job whose thread is at work."""
    job_id = await harness.add(**details)
    await harness.clock.settle()
    assert await asyncio.to_thread(work.began.wait, DEADLINE)
    return job_id


async def canceled(harness: WorkerHarness, work: Work, **details: Any) -> int:
    """One that was canceled a moment ago, and its worker knows."""
    job_id = await running(harness, work, **details)
    await harness.store.admin.cancel(job_id)
    await harness.clock.advance(1)
    assert harness.row(job_id).state is State.PROCESSING
    return job_id


async def ended(harness: WorkerHarness, job_id: int) -> Job:
    """The job, once its thread has reported."""
    async with asyncio.timeout(DEADLINE):
        while harness.row(job_id).state is State.PROCESSING:
            await asyncio.to_thread(threading.Event().wait, 0.001)
            await harness.clock.settle()
    return await harness.job(job_id)


@pytest.mark.parametrize(
    ("end", "max_attempts", "state", "error"),
    [
        (lambda: None, 5, State.COMPLETED, None),
        (raising(Cancel("stopped")), 5, State.CANCELED, "stopped"),
        (raising(ValueError("stopped")), 5, State.CANCELED, "ValueError: stopped"),
        (raising(ValueError("stopped")), 1, State.FAILED, "ValueError: stopped"),
        (raising(Retry("later")), 5, State.CANCELED, "later"),
        (raising(Snooze("1h")), 5, State.CANCELED, None),
        (raising(Fail("never")), 5, State.FAILED, "never"),
    ],
    ids=["returns", "cancels", "raises", "raises at last", "retries", "snoozes", "fails"],
)
async def test_a_canceled_thread_that_ends_in_time_decides_what_is_recorded(
    end: Callable[[], object], max_attempts: int, state: State, error: str | None
) -> None:
    work = Work()
    work.end = end
    async with threaded(work, concurrency=1) as harness:
        job_id = await canceled(harness, work, max_attempts=max_attempts)
        work.may_end.set()
        job = await ended(harness, job_id)
        assert job.state is state
        assert error is None or error in str(job.last_error)
        assert work.saw == [True]
        following = await harness.does("next")
        await ended(harness, following.id)
        assert harness.row(following.id).state is State.COMPLETED
        assert harness.events(ThreadAbandoned) == []


async def test_a_canceled_thread_that_ends_in_time_overlaps_no_job_of_its_serial_key() -> None:
    work = Work()
    async with threaded(work, concurrency=2, lease=3.0) as harness:
        job_id = await canceled(harness, work, serial="k")
        following = await harness.add("next", serial="k")
        await harness.clock.advance(3.9)
        assert harness.row(job_id).state is State.PROCESSING
        assert harness.row(following).state is State.QUEUED
        assert harness.events(LeaseExpiring) == [], "the lease, shorter than the pause, is renewed"
        work.may_end.set()
        await ended(harness, job_id)
        await harness.clock.advance(3)
        await ended(harness, following)
        assert harness.row(following).state is State.COMPLETED


async def test_a_canceled_thread_that_continues_is_abandoned_after_five_seconds() -> None:
    work = Work()
    async with threaded(work, concurrency=1) as harness:
        job_id = await canceled(harness, work)
        await harness.clock.advance(5)
        job = await ended(harness, job_id)
        assert (job.state, job.last_error) == (State.CANCELED, "canceled while running")
        assert len(harness.events(ThreadAbandoned)) == len(harness.events(ThreadsExhausted)) == 1
        following = await harness.add("next")
        await harness.clock.advance(60)
        assert harness.row(following).state is State.QUEUED
        work.may_end.set()
        async with asyncio.timeout(DEADLINE):
            while not harness.events(ThreadEnded):
                await harness.clock.advance(0.25)
        await ended(harness, following)
        assert (await harness.job(job_id)).state is State.CANCELED


@pytest.mark.parametrize("end", [lambda: None, raising(Fail("never"))], ids=["returns", "fails"])
async def test_a_thread_that_ends_soon_after_its_timeout_is_not_abandoned_and_its_end_is_ignored(
    end: Callable[[], object],
) -> None:
    work = Work()
    work.end = end
    async with threaded(work, concurrency=1, timeout=10.0) as harness:
        job_id = await running(harness, work)
        await harness.clock.advance(11)
        assert harness.row(job_id).state is State.PROCESSING
        work.may_end.set()
        job = await ended(harness, job_id)
        assert (job.state, job.last_error) == (State.ERRORED, "timed out: the attempt took longer than 10 s")
        assert harness.events(ThreadAbandoned) == []


async def test_a_timed_out_thread_that_continues_is_abandoned_after_five_seconds() -> None:
    work = Work()
    async with threaded(work, concurrency=1, timeout=10.0) as harness:
        job_id = await running(harness, work, max_attempts=1)
        await harness.clock.advance(14.9)
        assert harness.row(job_id).state is State.PROCESSING
        await harness.clock.advance(0.2)
        assert (await harness.job(job_id)).state is State.FAILED
        assert "its thread cannot be stopped" in str((await harness.job(job_id)).last_error)
        assert len(harness.events(ThreadAbandoned)) == 1


async def test_a_worker_that_stops_at_once_does_not_wait_for_a_canceled_thread() -> None:
    work = Work()
    async with threaded(work, concurrency=1) as harness:
        job_id = await canceled(harness, work)
        harness.worker.stop(now=True)
        assert await harness.ended() < 1
        assert (await harness.job(job_id)).state is State.CANCELED
        assert len(harness.events(ThreadAbandoned)) == 1


async def test_a_lost_lease_ends_the_wait_for_a_canceled_thread() -> None:
    work = Work()
    async with threaded(work, concurrency=1, lease=3.0) as harness:
        await canceled(harness, work)
        harness.store.down.add("beat")
        await harness.clock.advance(3)
        assert len(harness.events(LeaseExpiring)) == len(harness.events(ThreadAbandoned)) == 1
        harness.store.down.clear()
