"""``stowhand top``: what a queue is doing, looked at again and again until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from textwrap import wrap
from typing import Any

import click

from stowhand.cli.columns import Column, table
from stowhand.cli.counted import counted_lines
from stowhand.cli.job_views import ATTEMPTS, JOB
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.screen import Screen, output_width
from stowhand.cli.session import with_store
from stowhand.cli.stats import TASK, Stats, read_stats, serial_columns, state_line, worker_columns
from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.jobs.job import Job, State
from stowhand.jobs.moments import say, say_span
from stowhand.observe.job_logger import core_logger
from stowhand.observe.safe_text import escape
from stowhand.protocols.figures import LiveCounts
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.service.run_all import run_all

MAX_RUNNING = 10
MAX_TASKS = 10
MAX_SERIALS = 5
LAST_LOOK = 2.0
"""Seconds that a look under way has to end."""
REST = 4.0
"""It rests so many times as long as a look took, at least: the store is busy with it a fifth of the time at most."""


@click.command()
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print once and exit.")
@store_options
def command(interval: float, once: bool, **typed: Any) -> None:
    """Show what the queue is doing, every few seconds, until Ctrl-C: jobs by state, task and serial key, throughput,
    who works, what runs.
    """

    async def watch(store: QueueStore) -> None:
        # A single page is for reading, not for looking at: whole, below what the terminal shows already.
        top = _Top(store, interval, Screen(in_place=False if once else None))
        if once:
            await top.look()
        else:
            await run_all(top, grace=LAST_LOOK)

    with_store(settings_of(typed).store, watch)


class _Top:
    """A routine for ``run_all``."""

    def __init__(self, store: QueueStore, interval: float, screen: Screen) -> None:
        self._store = store
        self._interval = interval
        self._screen, self._clock = screen, SystemClock()
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
        """One page. Raises StoreError."""
        stats = await read_stats(self._store)
        running = await self._store.inspect.list(JobFilter(states=(State.PROCESSING,), limit=MAX_RUNNING))
        self._screen.show(list(self._page(stats, running)))

    def _page(self, stats: Stats, running: Sequence[Job]) -> Iterator[str]:
        width = output_width() or 10_000
        yield f"{self._store.description}  {say(stats.now)}"
        yield from wrap(state_line(stats), width)
        due = say_span(stats.oldest_due) if stats.oldest_due else "nothing"
        rates = ", ".join(f"{ended.rate:.1f}/s in {minutes}m" for minutes, ended in stats.counted.lately.items())
        yield f"oldest due: {due}   ended: {rates}"
        if paused := [*stats.figures.paused, *stats.figures.pauses.names()]:
            yield from wrap(f"paused: {', '.join(map(escape, paused))}", width)
        yield ""
        yield from _tasks(stats)
        yield from counted_lines(stats.counted, MAX_TASKS)
        if stats.figures.serials:
            yield ""
            yield from _serials(stats)
        yield ""
        yield from _workers(stats)
        if running:
            yield ""
            yield from table(_running(stats.now), running)


def pause_after(took: float, interval: float) -> float:
    """Seconds until the next look begins."""
    return max(interval, REST * took)


def _tasks(stats: Stats) -> Iterator[str]:
    busiest = sorted(stats.figures.tasks, key=_by_business)
    yield from table(TASK, busiest[:MAX_TASKS]) if busiest else ["No jobs."]
    if len(busiest) > MAX_TASKS:
        yield f"and {len(busiest) - MAX_TASKS} more tasks"


def _serials(stats: Stats) -> Iterator[str]:
    fullest = sorted(stats.figures.serials, key=_by_business)
    yield from table(serial_columns(stats.figures), fullest[:MAX_SERIALS])
    if len(fullest) > MAX_SERIALS:
        yield f"and {len(fullest) - MAX_SERIALS} more serial keys"


def _by_business(one: LiveCounts) -> tuple[object, ...]:
    return (*(-amount.number for amount in (one.processing, one.due, one.waiting)), one.name or "")


def _workers(stats: Stats) -> Iterator[str]:
    alive = [line for line in stats.workers if line.row.alive]
    yield from table(worker_columns(stats.now), alive) if alive else ["No workers are alive."]


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
