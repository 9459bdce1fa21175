"""``stowhand top``: what a queue is doing, looked at again and again until Ctrl-C."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Any

import click
import msgspec

from stowhand.cli.columns import Column, table
from stowhand.cli.help import Command
from stowhand.cli.job_views import ATTEMPTS, JOB
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.screen import Screen
from stowhand.cli.session import with_store
from stowhand.cli.stats import read_stats, stats_lines
from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.jobs.durations import say, say_span
from stowhand.jobs.job import Job, State
from stowhand.observe.job_logger import core_logger
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.service.run_all import run_all

MAX_ROWS = 10
"""Rows of each table."""
LAST_LOOK = 2.0
"""Seconds that a look under way has to end."""
REST = 4.0
"""Minimum pause as a multiple of the time of a look: the store is busy with it a fifth of the time at most."""


@click.command(cls=Command)
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds.")
@store_options
def command(interval: float, **typed: Any) -> None:
    """Show the page of stats and the running jobs, live.

    Every few seconds, until Ctrl-C.
    """

    with_store(settings_of(typed).store, lambda store: run_all(_Top(store, interval), grace=LAST_LOOK))


class _Top:
    """A routine for ``run_all``."""

    def __init__(self, store: QueueStore, interval: float) -> None:
        self._store = store
        self._interval = interval
        self._screen = Screen()
        self._clock = SystemClock()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Look until stopped. An outage is logged and waited out."""
        while not self._stopping.is_set():
            began, took = self._clock.monotonic(), 0.0
            try:
                await self.look()
                took = self._clock.monotonic() - began
            except StoreError as error:
                core_logger().error(f"No look: {error}")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_after(took, self._interval)):
                    await self._stopping.wait()

    def stop(self, *, now: bool = False) -> None:
        """End soon."""
        self._stopping.set()

    async def look(self) -> None:
        """Show one page. Raises StoreError."""
        stats = await read_stats(self._store)
        stats = msgspec.structs.replace(stats, workers=[line for line in stats.workers if line.row.alive])
        running = await self._store.inspect.list(JobFilter(states=(State.PROCESSING,), limit=MAX_ROWS))
        lines = [f"{self._store.description}  {say(stats.now)}", *stats_lines(stats, MAX_ROWS)]
        if running:
            lines += ["", *table(_running(stats.now), running)]
        self._screen.show(lines)


def pause_after(took: float, interval: float) -> float:
    """Seconds until the next look begins."""
    return max(interval, REST * took)


def _running(now: datetime) -> list[Column[Job]]:
    def running_for(job: Job) -> str:
        return "-" if job.started_at is None else say_span((now - job.started_at).total_seconds())

    def progress(job: Job) -> str:
        return "-" if job.progress is None else f"{job.progress:.0%} {job.progress_text or ''}".strip()

    return [
        Column("id", "RUNNING", right=True),
        JOB["task"],
        ATTEMPTS,
        Column(heading="FOR", text=running_for),
        JOB["serial"],
        JOB["key"],
        JOB["worker"],
        Column(heading="PROGRESS", text=progress, squeezed=True),
    ]
