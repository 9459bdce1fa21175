"""``stowhand top``: what a queue is doing, looked at again and again until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import click

from stowhand.cli.moments import say, say_span
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.screen import Screen
from stowhand.cli.session import with_store
from stowhand.cli.stats import Stats, read_stats, stats_json
from stowhand.cli.tables import table
from stowhand.clock import SystemClock, wall_clock
from stowhand.errors import StoreError
from stowhand.job import Job, State
from stowhand.observe.job_logger import core_logger
from stowhand.queue_store import JobFilter, QueueStore
from stowhand.service.run_all import run_all

RUNNING_SHOWN = 10
TASKS_SHOWN = 10
LAST_LOOK = 2.0
"""Seconds that a look under way has to end."""
REST = 4.0
"""It rests so many times as long as a look took, at least: the store is busy with it a fifth of the time at most."""


@click.command()
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="One look, and end.")
@click.option("as_json", "--json", is_flag=True, help="One JSON object per look, as of 'stowhand stats'.")
@store_options
def command(interval: float, once: bool, as_json: bool, **typed: Any) -> None:
    """Show what the queue is doing, every few seconds: jobs by state and task, throughput, who works, what runs.

    It ends at Ctrl-C. It counts every job, the history too: where that takes long, it looks less often.
    """

    async def watch(store: QueueStore) -> None:
        # A single page is for reading, not for looking at: whole, below what the terminal shows already.
        top = _Top(store, interval, Screen(in_place=False if once else None), as_json=as_json)
        await (top.look() if once else run_all(top, grace=LAST_LOOK))

    with_store(settings_of(typed).store, watch)


class _Top:
    """A routine for ``run_all``."""

    def __init__(self, store: QueueStore, interval: float, screen: Screen, *, as_json: bool) -> None:
        self._store, self._interval, self._as_json = store, interval, as_json
        self._screen, self._clock = screen, SystemClock()
        self._stopping, self._tick = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Look until stopped. An outage is waited out, and told."""
        while not self._stopping.is_set():
            began, took = self._clock.monotonic(), 0.0
            try:
                await self.look()
                took = self._clock.monotonic() - began
            except StoreError as error:
                core_logger().error(f"No look: {error}")
            timer = self._clock.call_later(pause_after(took, self._interval), self._tick.set)
            await self._tick.wait()
            self._tick.clear()
            timer.cancel()

    def stop(self, *, now: bool = False) -> None:
        """End soon."""
        self._stopping.set()
        self._tick.set()

    async def look(self) -> None:
        """One page. Raises StoreError."""
        if self._as_json:
            click.echo(stats_json(await read_stats(self._store)))
            return
        stats = await read_stats(self._store, (1,))
        running = await self._store.list(JobFilter(states=(State.PROCESSING,), limit=RUNNING_SHOWN))
        self._screen.show(list(self._page(stats, running)))

    def _page(self, stats: Stats, running: Sequence[Job]) -> Iterator[str]:
        due = say_span(stats.oldest_due) if stats.oldest_due else "nothing"
        yield f"{self._store.description}  {say(wall_clock())}"
        yield ", ".join(f"{number} {state.value}" for state, number in stats.states.items())
        yield f"oldest due: {due}   ended in the last minute: {sum(stats.finished[1].values()) / 60:.1f}/s"
        if stats.paused:
            yield f"paused: {', '.join(stats.paused)}"
        yield ""
        yield from _tasks(stats)
        yield ""
        yield from _workers(stats)
        if running:
            yield ""
            yield from _running(running)


def pause_after(took: float, interval: float) -> float:
    """Seconds until the next look begins."""
    return max(interval, REST * took)


def _tasks(stats: Stats) -> Iterator[str]:
    heads = ("TASK", "WAITING", "DUE", "RUNNING", "FAILED", "COMPLETED")
    busiest = sorted(stats.tasks, key=lambda row: (-row.running, -row.due, -row.waiting, row.task))
    rows = [
        (row.task, *map(str, (row.waiting, row.due, row.running, row.failed, row.completed)))
        for row in busiest[:TASKS_SHOWN]
    ]
    yield from table(heads, rows, right=heads[1:]) if rows else ["No jobs."]
    if len(busiest) > TASKS_SHOWN:
        yield f"and {len(busiest) - TASKS_SHOWN} more tasks"


def _workers(stats: Stats) -> Iterator[str]:
    alive = [row for row in stats.workers if row.alive]
    if not alive:
        yield "No workers are alive."
        return
    heads = ("WORKER", "JOBS AT ONCE", "SEEN", "TASKS")
    rows = [
        (
            row.card.name + (" (stopping)" if row.card.stopping else ""),
            str(row.card.concurrency),
            say(row.seen_at),
            "any" if row.card.tasks is None else ", ".join(row.card.tasks),
        )
        for row in alive
    ]
    yield from table(heads, rows, right=("JOBS AT ONCE",))


def _running(jobs: Sequence[Job]) -> Iterator[str]:
    heads = ("RUNNING", "TASK", "ATTEMPT", "SINCE", "WORKER")
    rows = [
        (str(job.id), job.task, f"{job.attempts} of {job.max_attempts}", say(job.started_at), job.worker or "-")
        for job in jobs
    ]
    yield from table(heads, rows, right=("RUNNING",))
