"""Trials: measurements under one condition, and the table of all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from benchmarks import probe
from benchmarks.report import Runs
from benchmarks.sites import NAP_SECONDS, PostgresSite, Site, new_store
from stowhand.app.settings.settings import WorkerSettings
from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.events import Events
from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import RESERVED_CONNECTIONS, ClaimRequest, Heartbeats, StoreOptions
from stowhand.service.supervisor import Supervisor
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.new_jobs import plain_values

TO_START, TO_END = 120.0, 600.0
LOOK_EVERY = 0.002
"""Seconds between two looks at something that is awaited."""
OURS = ("noop",)
"""The tasks of a worker of ``benchmarks.noop``."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements."""

    jobs: int = 60_000
    serial: int = 20_000
    million: int = 1_000_000
    finished: int = 10_000_000
    filling: float = 60.0
    held: float = 60.0
    enqueued: int = 4_000
    claims: int = 30
    sqlite: int = 10_000
    runs: int = 3

    def quick(self) -> Sizes:
        """Return a twentieth of these sizes."""
        return Sizes(3_000, 1_000, 50_000, 500_000, 3.0, 3.0, 200, 5, 500, 1)


@dataclass
class Table:
    """Table of runs by measure and case. The first case is the plain one."""

    runs: Runs = field(default_factory=dict)
    bounds: dict[str, str] = field(default_factory=dict)

    def add(self, measure: str, case: str, figure: float, bound: str = "") -> None:
        """Add one run."""
        self.runs.setdefault(measure, {}).setdefault(case, []).append(figure)
        self.bounds[measure] = bound or self.bounds.get(measure, "")
        print(f"{measure:<58} {case:<40}{figure:>12,.6g}", file=sys.stderr, flush=True)

    def lines(self) -> Iterator[str]:
        """Return medians, and the ratio case / plain, of rates and of times."""
        for measure, cases in self.runs.items():
            yield f"\n{measure}{'   [' + self.bounds[measure] + ']' if self.bounds[measure] else ''}"
            plain = statistics.median(next(iter(cases.values())))
            for number, (case, runs) in enumerate(cases.items()):
                median = statistics.median(runs)
                ratio = f"{median / plain:>8.2f}x" if number and plain else " " * 9
                yield f"  {case:<40}{median:>12,.5g}{ratio}   ({', '.join(f'{run:,.4g}' for run in runs)})"


class Workers:
    """Workers that run inside ``async with`` and have ended after it."""

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
        """Wait for a condition that the workers cause. Raises StoreError when it takes too long."""
        assert self._running is not None
        deadline = self._clock.monotonic() + seconds
        while not reached():
            if self._running.done():
                raise StoreError(f"the worker processes ended by themselves, with code {self._running.result()}")
            if self._clock.monotonic() > deadline:
                raise StoreError(f"gave up waiting {seconds:g} s for this: {what}")
            await self._clock.sleep(every)


class WorkerRuns:
    """Runs of worker processes, read from their probes."""

    def __init__(self, probes: Path) -> None:
        self._probes = probes
        os.environ[probe.FOLDER] = str(probes)

    @property
    def begun(self) -> int:
        """Return the number of started handlers."""
        return probe.look(self._probes).count

    @property
    def lasted(self) -> float:
        """Return the mean seconds of the first naps, from start to end in the handler."""
        return statistics.mean(probe.look(self._probes).delays)

    async def drain(
        self, site: Site, jobs: int, first: int | None, *, app: str = "benchmarks.noop:app", slots: int = 24
    ) -> tuple[float, float]:
        """Jobs a second, from the beginning of the first handler until none from ``first`` on is left (``None``: until
        so many have begun); and the microseconds of processor time of the workers and the server that one job took."""
        async with self._at_work(site, app, slots) as workers:
            await workers.until(lambda: self.begun > 0, TO_START, "the first job begins", every=LOOK_EVERY)
            cpu, early = _cpu(), self.begun
            await workers.until(lambda: self.begun >= jobs, TO_END, "all jobs have begun", every=0.01)
            if first is not None:
                await workers.until(lambda: not site.left(first), TO_END, "all jobs are settled")
            seconds = time.monotonic() - probe.look(self._probes).first
            return jobs / seconds, _each(cpu, jobs - early)

    async def sustain(
        self, site: PostgresSite, backlog: int, seconds: float, condition: AbstractContextManager[None]
    ) -> list[tuple[float, float]]:
        """At full rate for so long; of each sixth of the time: jobs a second, and microseconds of processor time of the
        workers and the server (the producer's share too) for each job."""
        site.fill(backlog)
        found: list[tuple[float, float]] = []
        async with self._at_work(site, "benchmarks.noop:app", 24) as workers:
            await workers.until(lambda: self.begun > backlog // 10, TO_START, "the first jobs begin")
            with site.feeder(lambda: self.begun, backlog), condition:
                for _ in range(6):
                    began, before, cpu = time.monotonic(), self.begun, _cpu()
                    await asyncio.sleep(seconds / 6)
                    jobs = self.begun - before
                    found.append((jobs / (time.monotonic() - began), _each(cpu, jobs)))
        return found

    def idle(self, site: Site) -> Workers:
        """Run a worker inside ``async with``."""
        return self._at_work(site, "benchmarks.noop:app", 24)

    def _at_work(self, site: Site, app: str, slots: int) -> Workers:
        for file in self._probes.iterdir():
            file.unlink()
        options = WorkerOptions(concurrency=slots)
        settings = WorkerSettings(store=site.settings, worker=options, app=app, log_level="error")
        return Workers(settings, new_store(site).heartbeats)


@dataclass(frozen=True)
class ClaimCost:
    """Milliseconds of a claim and of a settlement."""

    first: float
    """A hundred jobs, by a store that has just been opened."""
    later: float
    """The median of those after it."""
    slowest: float
    empty: float
    """The median of claims that find nothing."""
    single: float
    """A claim when one job is there, after one that found nothing."""
    next_due: float


async def cost_of_claims(site: PostgresSite, count: int) -> ClaimCost:
    """Measure claims one by one, as a worker makes them, without a worker."""
    first = site.fill(100 * count)
    store = new_store(site)
    await store.open()
    try:
        times = [await _timed_claim(store, 100) for _ in range(count)]
        while site.left(first):
            await _timed_claim(store, 100)
        empty, singles, naps = [], [], []
        for _ in range(5):  # as an idle worker does: look, ask how long to sleep, and then there is a job
            empty.append(await _timed_claim(store, 100))
            began = time.perf_counter()
            await store.next_due(OURS)
            naps.append(1000 * (time.perf_counter() - began))
            await store.jobs.enqueue(NewJob(task="noop", payload='{"number":1}'))
            singles.append(await _timed_claim(store, 100))
    finally:
        await store.close()
    middle = statistics.median
    return ClaimCost(times[0], middle(times[1:]), max(times[1:]), middle(empty), middle(singles), middle(naps))


async def _timed_claim(store: QueueStore, limit: int) -> float:
    began = time.perf_counter()
    claims = await store.claim(request(limit))
    took = 1000 * (time.perf_counter() - began)
    if claims:
        await store.settle([(claim.lease, COMPLETED) for claim in claims])
    return took


def request(limit: int, lease: float = 30.0) -> ClaimRequest:
    """Return the claim request of a worker of the benchmark's tasks."""
    return ClaimRequest(worker="bench", token=str(uuid.uuid4()), limit=limit, lease=lease, tasks=OURS)


async def hold_queue(site: PostgresSite) -> str:
    """Claim the first job and hold it for an hour. Return its serial key."""
    store = new_store(site)
    await store.open()
    try:
        claims = await store.claim(request(1, lease=3600.0))
        serial = claims[0].serial
        assert serial is not None
        return serial
    finally:
        await store.close()


async def commit(
    site: PostgresSite,
    jobs: int,
    *,
    notify: bool = True,
    delay: float | None = 86_400,
    committers: int = 8,
) -> float:
    """Return the jobs per second that this many connections enqueue, each job in its own transaction.

    ``notify``: with what wakes a sleeping worker, as always.
    """
    site.clear()
    options = StoreOptions(pool_size=committers + RESERVED_CONNECTIONS)
    home = PostgresContext(site.url, options)
    statement = home.statements["enqueue_plain"]
    if not notify:
        statement = re.sub(r"case when pg_catalog.pg_try_advisory_lock.*? end", "null", statement, flags=re.DOTALL)
    values = plain_values(NewJob(task="noop", payload='{"number":12345}', delay=delay), None)

    async def work(count: int) -> None:
        for _ in range(count):
            await home.pool.rows("enqueue", statement, values)

    try:
        await asyncio.gather(*(work(5) for _ in range(committers)))
        began = time.perf_counter()
        await asyncio.gather(*(work(jobs // committers) for _ in range(committers)))
        return jobs / (time.perf_counter() - began)
    finally:
        await home.pool.close()


async def bare_naps(count: int, slots: int = 100) -> float:
    """Return the naps per second of an event loop without a queue, this many at once."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await asyncio.sleep(NAP_SECONDS)

    began = time.monotonic()
    await asyncio.gather(*(work() for _ in range(slots)))
    return count / (time.monotonic() - began)


def start_and_stop(site: Site) -> tuple[float, float, float]:
    """Return milliseconds: bare Python; ``stowhand worker`` from start to ready; and from TERM to its end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    bare = time.perf_counter() - began
    command = [sys.executable, "-m", "stowhand.cli", "worker", "-c", site.settings.url]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--app", "benchmarks.noop:app"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            said = next((line for line in worker.stdout if "looking for jobs" in line), None)
            ready = time.perf_counter() - began
            assert said is not None, "the worker ended by itself"
            time.sleep(0.3)  # it has settled into its first wait
            began = time.perf_counter()
            worker.send_signal(signal.SIGTERM)
            worker.wait(30.0)
            ended = time.perf_counter() - began
        finally:
            worker.kill()
    return 1000 * bare, 1000 * ready, 1000 * ended


def _cpu() -> dict[int, float]:
    """Return the processor seconds of each process started here: workers, and the server with its backends."""
    spent: dict[int, float] = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            spent[child.pid] = times.user + times.system
    return spent


def _each(before: dict[int, float], jobs: int) -> float:
    """Return the microseconds since then, for each of this many jobs."""
    spent = sum(seconds - before.get(pid, 0.0) for pid, seconds in _cpu().items())
    return 1e6 * spent / max(jobs, 1)
