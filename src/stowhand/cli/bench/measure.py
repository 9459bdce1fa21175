"""The measurements, one after another, on tables that hold nothing else.

A drain is timed from the beginning of the first handler until no job is left: counting only handlers would flatter
workers that fetch much and record late.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Self

import msgspec

from stowhand.app.app import adopt_store
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.cli.bench import probe
from stowhand.cli.bench.plan import Plan, Row
from stowhand.cli.bench.tasks import app, noop
from stowhand.clock import SystemClock, stopwatch
from stowhand.errors import StoreError
from stowhand.events import Events
from stowhand.jobs.job import State
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import Heartbeats
from stowhand.service.supervisor import Supervisor
from stowhand.stores.url import open_store

LIVE = (State.QUEUED, State.PROCESSING, State.ERRORED)
WARM_UP = 5
"""First jobs of an idle worker, which are not counted."""
TO_START, TO_END = 30.0, 600.0
RATE = "jobs/s"


class Bench:
    """``async for row in bench.rows()``. Everything that it started or made is gone at the end, however it ends."""

    def __init__(self, store: StoreSettings, plan: Plan) -> None:
        self._plan = plan
        self._store = store
        self._clock = SystemClock()
        self._settings = WorkerSettings(
            store=store,
            worker=WorkerOptions(concurrency=plan.concurrency),
            app="stowhand.cli.bench.tasks:app",
            log_level="error",
        )
        self._folder = Path()

    async def rows(self) -> AsyncIterator[Row]:
        """Measure. Raises StoreUnreachable, StoreError."""
        adopt_store(app, self._store.url, self._store.options)
        with tempfile.TemporaryDirectory(prefix="stowhand-bench-") as folder:
            os.environ[probe.FOLDER] = folder
            self._folder = Path(folder)
            try:
                for measure in self._measures():
                    async for row in measure():
                        yield row
            finally:
                await app.close()
                await self._clean()

    def _measures(self) -> list[Callable[[], AsyncIterator[Row]]]:
        known = {"enqueue": self._enqueue, "many": self._many, "drain": self._drain, "latency": self._latency}
        return [measure for name, measure in known.items() if name in self._plan.measures]

    # -- enqueue ---------------------------------------------------------------------------------

    async def _enqueue(self) -> AsyncIterator[Row]:
        async def run() -> float:
            await self._fresh()
            began = stopwatch()
            for number in range(self._plan.enqueued):
                await noop.enqueue(number=number)
            return self._plan.enqueued / (stopwatch() - began)

        yield await self._median("enqueue, one by one", run)

    async def _many(self) -> AsyncIterator[Row]:
        async def run() -> float:
            await self._fresh()
            return await self._fill(self._plan.many)

        yield await self._median(f"enqueue, {self._plan.many} in one call", run)

    async def _fill(self, jobs: int) -> float:
        began = stopwatch()
        await app.enqueue_many(noop.new_job(number=number) for number in range(jobs))
        return jobs / (stopwatch() - began)

    # -- drain -----------------------------------------------------------------------------------

    async def _drain(self) -> AsyncIterator[Row]:
        memory = 0.0
        for processes in self._plan.processes:

            async def run(processes: int = processes) -> float:
                nonlocal memory
                store = await self._fresh()
                await self._fill(self._plan.jobs)
                async with self._workers(store, processes) as workers:
                    rate = await self._time_drain(store, workers)
                    memory = max(memory, workers.memory())
                return rate

            what = "1 process" if processes == 1 else f"{processes} processes"
            yield await self._median(f"drain, {what}", run)
        yield Row(measure="memory of a worker after a drain", value=round(memory, 1), unit="MB")

    async def _time_drain(self, store: QueueStore, workers: Workers) -> float:
        wanted = self._plan.jobs
        await workers.until(lambda: probe.look(self._folder).count > 0, TO_START, "the first job begins")
        await workers.until(lambda: probe.look(self._folder).count >= wanted, TO_END, "every job has begun", every=0.01)
        while await _live(store):
            await self._clock.sleep(LOOK_EVERY)
        return wanted / (self._clock.monotonic() - probe.look(self._folder).first)

    # -- latency ---------------------------------------------------------------------------------

    async def _latency(self) -> AsyncIterator[Row]:
        """Measure the delays of jobs that are sent to an idle worker, one after another."""
        store = await self._fresh()
        async with self._workers(store, 1) as workers:
            for number in range(self._plan.samples + WARM_UP):
                await noop.enqueue(number=number, sent=self._clock.monotonic())
                await workers.until(
                    lambda number=number: probe.look(self._folder).count > number,  # type: ignore[misc]
                    TO_START,
                    "an idle worker begins a job",
                )
                await self._clock.sleep(_gap(number))
        delays = sorted(1000 * delay for delay in probe.look(self._folder).delays[WARM_UP:])
        name = f"enqueue to start on an idle queue, {len(delays)} jobs"
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            yield Row(measure=f"{name}, {label}", value=round(delays[int(len(delays) * share)], 2), unit="ms")

    # -- the place -------------------------------------------------------------------------------

    async def _median(self, measure: str, run: Callable[[], Awaitable[float]]) -> Row:
        runs = [round(await run()) for _ in range(self._plan.runs)]
        return Row(measure=measure, value=statistics.median(runs), unit=RATE, runs=[float(one) for one in runs])

    async def _fresh(self) -> QueueStore:
        """Empty tables, as just installed, and no trace of earlier workers."""
        await app.close()
        for file in self._folder.iterdir():
            file.unlink()
        await self._clean()
        return await app.open(install=True)

    async def _clean(self) -> None:
        store = open_store(self._store.url, self._store.options)
        try:
            await store.schema.uninstall()
        finally:
            await store.close()

    def _workers(self, store: QueueStore, processes: int) -> Workers:
        return Workers(msgspec.structs.replace(self._settings, processes=processes), store.heartbeats)


async def _live(store: QueueStore) -> int:
    counts = await store.inspect.counts()
    return sum(counts[state] for state in LIVE)


def _gap(number: int) -> float:
    """Between 4 and 24 ms, spread evenly without a pattern that a poll could fall in step with (golden ratio)."""
    return 0.004 + 0.020 * (number * 0.6180339887 % 1)


LOOK_EVERY = 0.002
"""Seconds between two looks at something that is awaited."""


class Workers:
    """``async with``: they run inside the block, and have ended after it."""

    def __init__(self, settings: WorkerSettings, heartbeats: Callable[[], Heartbeats]) -> None:
        self._supervisor = Supervisor(settings, heartbeats, Events())
        self._clock = SystemClock()
        self._running: asyncio.Task[int] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._supervisor.run())
        return self

    async def __aexit__(self, *raised: object) -> None:
        assert self._running is not None
        self._supervisor.request_stop()
        await self._running

    async def until(self, reached: Callable[[], bool], seconds: float, what: str, *, every: float = LOOK_EVERY) -> None:
        """Wait for what only the workers can bring about. Raises StoreError when it takes too long."""
        assert self._running is not None
        deadline = self._clock.monotonic() + seconds
        while not reached():
            if self._running.done():
                raise StoreError(f"the worker processes ended by themselves, with code {self._running.result()}")
            if self._clock.monotonic() > deadline:
                raise StoreError(f"gave up waiting {seconds:g} s for this: {what}")
            await self._clock.sleep(every)

    def memory(self) -> float:
        """Megabytes (10^6 bytes) resident in the largest of them."""
        pids = [slot.child.pid for slot in self._supervisor.children.slots if slot.child is not None]
        return max(resident(pid) for pid in pids)


def resident(pid: int) -> float:
    """Megabytes that a process has in memory, as the system counts them."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
        kilobytes = line.split()[1]
    else:
        kilobytes = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True
        ).stdout.decode()
    return int(kilobytes) * 1024 / 1e6
