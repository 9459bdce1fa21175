"""``stowhand top``: show the figures and running jobs of a store until Ctrl-C."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

import click
import msgspec

from stowhand.cli.columns import Column, table
from stowhand.cli.help import Command
from stowhand.cli.job_views import ATTEMPTS_COLUMN, JOB_COLUMNS
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.screen import Screen
from stowhand.cli.session import with_store
from stowhand.cli.stats import read_stats, stats_lines
from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.jobs.durations import format_span, format_time
from stowhand.jobs.job import Job, State
from stowhand.observe.job_logger import core_logger
from stowhand.protocols.queue_store import JobFilter, QueueStore

MAX_ROWS = 10
"""Maximum number of rows of each table."""
MIN_PAUSE_RATIO = 4.0
"""Minimum pause, as a multiple of an update's time: the store spends at most a fifth of its time on updates."""


@click.command(cls=Command)
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds.")
@store_options
def command(interval: float, **option_values: Any) -> None:
    """Show the page of stats and the running jobs, live.

    It updates every few seconds until Ctrl-C.
    """

    with suppress(KeyboardInterrupt):
        with_store(settings_of(option_values).store, lambda store: _show(store, interval))


async def _show(store: QueueStore, interval: float) -> None:
    """Show a page repeatedly. An outage is logged, and the next page is tried later."""
    screen, clock = Screen(), SystemClock()
    while True:
        started_at = clock.monotonic()
        try:
            screen.show(await _page(store))
        except StoreError as error:
            core_logger().error(f"No update: {error}")
        await clock.sleep(pause_after(clock.monotonic() - started_at, interval))


async def _page(store: QueueStore) -> list[str]:
    stats = await read_stats(store)
    stats = msgspec.structs.replace(stats, workers=[line for line in stats.workers if line.row.is_alive])
    running = await store.inspect.list(JobFilter(states=(State.PROCESSING,), limit=MAX_ROWS))
    lines = [f"{store.description}  {format_time(stats.now)}", *stats_lines(stats, MAX_ROWS)]
    return [*lines, "", *table(_running_columns(stats.now), running)] if running else lines


def pause_after(duration: float, interval: float) -> float:
    """Return the seconds until the next update."""
    return max(interval, MIN_PAUSE_RATIO * duration)


def _running_columns(now: datetime) -> list[Column[Job]]:
    def running_for(job: Job) -> str:
        return "-" if job.started_at is None else format_span((now - job.started_at).total_seconds())

    def progress(job: Job) -> str:
        return "-" if job.progress is None else f"{job.progress:.0%} {job.progress_text or ''}".strip()

    return [
        Column("id", "RUNNING", is_right_aligned=True),
        JOB_COLUMNS["task"],
        ATTEMPTS_COLUMN,
        Column(heading="FOR", text=running_for),
        JOB_COLUMNS["serial"],
        JOB_COLUMNS["key"],
        JOB_COLUMNS["worker"],
        Column(heading="PROGRESS", text=progress, can_shrink=True),
    ]
