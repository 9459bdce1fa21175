"""Threads that outlive their attempts: counted, reported, and at the concurrency the worker claims nothing more."""

from __future__ import annotations

import asyncio
import threading

from stowhand.events import ThreadAbandoned, ThreadEnded, ThreadsExhausted
from stowhand.jobs.job import Job, State
from stowhand.observe.prometheus import CollectorRegistry
from stowhand.observe.worker_metrics import WorkerMetrics
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.testing import FakeClock
from tests.worker.worker_harness import WorkerHarness, at_work


class Hanging:
    """A handler whose threads run until the test ends them."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.threads: list[threading.Event] = []

    async def __call__(self, attempt: Attempt[Job]) -> None:
        try:
            await self._clock.sleep(1000)
        except asyncio.CancelledError:
            ended = control_of(attempt).abandoned_thread = threading.Event()
            self.threads.append(ended)
            raise


async def _worker_threads(harness: WorkerHarness) -> int:
    (row,) = await harness.store.inspect.workers()
    return row.description.abandoned_threads


async def test_with_as_many_abandoned_threads_as_slots_nothing_is_claimed_until_one_ends() -> None:
    clock = FakeClock()
    hanging = Hanging(clock)
    async with at_work(hanging, clock=clock, concurrency=2, timeout=5.0) as harness:
        liveness = harness.worker.controls.liveness
        await harness.add(max_attempts=1)
        await clock.advance(10)
        assert await _worker_threads(harness) == 1
        assert liveness.unready() is None
        await harness.add(max_attempts=1)
        await clock.advance(10)
        assert await _worker_threads(harness) == 2
        assert [event.threads for event in harness.events(ThreadsExhausted)] == [2]
        assert liveness.unready() == "threads: 2 outlived their timeouts and still run, as many as jobs may run at once"
        third = await harness.add(max_attempts=1)
        await clock.advance(60)
        assert harness.row(third).state is State.QUEUED
        hanging.threads[0].set()
        await clock.advance(1)
        assert harness.row(third).state is State.PROCESSING
        assert [event.remaining for event in harness.events(ThreadEnded)] == [1]
        assert liveness.unready() is None
        assert await _worker_threads(harness) == 1


async def test_the_metric_counts_threads_that_still_run() -> None:
    clock, registry = FakeClock(), CollectorRegistry()
    hanging = Hanging(clock)
    async with at_work(hanging, clock=clock, concurrency=2, timeout=5.0) as harness:
        WorkerMetrics(registry).of(harness.worker.events)
        await harness.add(max_attempts=1)
        await clock.advance(10)
        assert registry.get_sample_value("stowhand_worker_abandoned_threads") == 1
        hanging.threads[0].set()
        await clock.advance(1)
        assert registry.get_sample_value("stowhand_worker_abandoned_threads") == 0
        assert len(harness.events(ThreadAbandoned)) == 1
