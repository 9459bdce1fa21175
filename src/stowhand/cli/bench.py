"""``stowhand bench``: measure start, load and latency of a store with real worker processes on this machine."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from stowhand.app.app import App, use_worker_store
from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.resolver import resolve_store_url
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.cli.columns import json_line
from stowhand.cli.help import Command
from stowhand.cli.session import remove_file
from stowhand.clock import SystemClock, stopwatch
from stowhand.errors import ConfigurationError, StoreError
from stowhand.events import Events
from stowhand.observe.logs import configure_logging
from stowhand.observe.safe_text import scrub
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import StoreOptions
from stowhand.service.exit_codes import OK
from stowhand.service.supervisor import Supervisor
from stowhand.stores.url import open_store

BENCH_SCHEMA_NAME = "stowhand_bench"
MAX_SINGLE_JOBS = 1000
"""Maximum number of jobs enqueued one by one."""
LATENCY_JOBS = 200
"""Number of measured jobs for an idle worker."""
WARM_UP_JOBS = 5
"""Number of jobs before the measured ones."""
POSITIVE_INTEGER = click.IntRange(min=1)

app = App()
_start_times: asyncio.Queue[float] = asyncio.Queue()
"""Start times of the jobs of the latency test."""


class Measurement(msgspec.Struct, frozen=True):
    """One measured figure."""

    measure: str
    value: float
    unit: str


@app.task
async def noop(number: int) -> None:
    """Do nothing."""


@app.task
async def start(number: int) -> None:  # noqa: ARG001
    """Record the start time."""
    _start_times.put_nowait(stopwatch())


@click.command("bench", cls=Command)
@click.option("-c", "--connection", metavar="STORE", help="Store to measure; its own jobs are not touched.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("--jobs", type=POSITIVE_INTEGER, default=20_000, show_default=True, help="Jobs of the load test.")
@click.option(
    "--processes", type=POSITIVE_INTEGER, default=1, show_default=True, help="Worker processes of the load test."
)
@click.option(
    "--concurrency", type=POSITIVE_INTEGER, default=24, show_default=True, help="Jobs that a process runs at once."
)
def command(connection: str | None, as_json: bool, jobs: int, processes: int, concurrency: int) -> None:
    """Measure how fast the store is on this machine.

    It measures worker start, enqueueing, a load of jobs, and the latency of single jobs.

    It uses its own schema (stowhand_bench) or its own file beside the SQLite file, and removes it afterwards.
    """
    configure_logging("error", "text")
    resolved = resolve_store_url(connection)
    if resolved.is_lent:
        raise ConfigurationError(
            f"{resolved.url} only lends its jobs: bench needs the store itself, by its own URL (postgresql://… or sqlite:///…)"
        )
    if not as_json:
        click.echo(
            f"{scrub(resolved.url)} ({resolved.source})\nPython {platform.python_version()}, {os.cpu_count()} cores\n"
        )

    async def measure(settings: WorkerSettings) -> None:
        async for row in _measure(settings, jobs):
            click.echo(json_line(row) if as_json else f"{row.measure:<48}{row.value:>10,.6g} {row.unit}")

    with _own_store(resolved) as store:
        worker = WorkerOptions(concurrency=concurrency, once=True)
        settings = WorkerSettings(
            store=store, worker=worker, app="stowhand.cli.bench:app", processes=processes, log_level="error"
        )
        asyncio.run(measure(settings))


@contextmanager
def _own_store(resolved: ResolvedStore) -> Iterator[StoreSettings]:
    """Yield the settings of a separate schema, or of a separate SQLite file that is removed afterwards."""
    options = StoreOptions(schema=BENCH_SCHEMA_NAME, history=None)
    if resolved.scheme != "sqlite":
        yield StoreSettings(connection=resolved, options=options)
        return
    file = (
        Path(resolved.url.removeprefix("sqlite:///").partition("?")[0]).absolute().with_name(f"{BENCH_SCHEMA_NAME}.db")
    )
    try:
        yield StoreSettings(connection=ResolvedStore(f"sqlite:///{file}", resolved.source), options=options)
    finally:
        remove_file(file)


async def _measure(settings: WorkerSettings, jobs: int) -> AsyncIterator[Measurement]:
    use_worker_store(app, settings.store.url, settings.store.options)
    await _clean(settings.store)
    await app.open(install=True)
    try:
        seconds = await _drain(msgspec.structs.replace(settings, processes=1))
        yield Measurement("start and stop of a worker with nothing to do", round(1000 * seconds), "ms")
        single_jobs = min(jobs, MAX_SINGLE_JOBS)
        started_at = stopwatch()
        for number in range(single_jobs):
            await noop.enqueue(number)
        yield _rate("enqueue, one by one", single_jobs, stopwatch() - started_at)
        started_at = stopwatch()
        await app.enqueue_many(noop.new_job(number) for number in range(jobs))
        yield _rate(f"enqueue, {jobs} in one call", jobs, stopwatch() - started_at)
        load = f"run {jobs + single_jobs}, with the start of {settings.processes} worker(s)"
        yield _rate(load, jobs + single_jobs, await _drain(settings))
        delays = await _latencies()
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            yield Measurement(
                f"enqueue to start on an idle queue, {name}", round(delays[int(len(delays) * share)], 2), "ms"
            )
    finally:
        await app.close()
        await _clean(settings.store)


async def _clean(settings: StoreSettings) -> None:
    store = open_store(settings.url, settings.options)
    try:
        await store.schema.uninstall()
    finally:
        await store.close()


def _rate(measure: str, jobs: int, seconds: float) -> Measurement:
    return Measurement(measure, round(jobs / seconds), "jobs/s")


async def _drain(settings: WorkerSettings) -> float:
    """Return the seconds that worker processes take to start, run all jobs, and exit."""
    supervisor = Supervisor(settings, (await app.open()).heartbeats, Events())
    started_at = stopwatch()
    worker_run = asyncio.create_task(supervisor.run())
    try:
        code = await asyncio.shield(worker_run)
    finally:
        supervisor.request_stop()
        await worker_run
    if code != OK:
        raise StoreError(f"the worker processes exited unexpectedly with code {code}")
    return stopwatch() - started_at


async def _latencies() -> list[float]:
    """Return the sorted milliseconds from enqueueing a job to its start in an idle worker of this process."""
    delays = []
    async with app.run_in_background(tasks=["start"]):
        for number in range(LATENCY_JOBS + WARM_UP_JOBS):
            sent_at = stopwatch()
            await start.enqueue(number)
            delays.append(1000 * (await _start_times.get() - sent_at))
            # Sleep 4 to 24 ms. The golden ratio spreads the pauses evenly, without a pattern that polls could match.
            await SystemClock().sleep(0.004 + 0.020 * (number * 0.6180339887 % 1))
    return sorted(delays[WARM_UP_JOBS:])
