"""``stowhand stats``: show jobs by state, throughput, and workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from textwrap import wrap
from typing import Any, TypeVar

import click
import msgspec

from stowhand.cli.columns import Column, fields, json_line, table
from stowhand.cli.help import Command
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.recent_counts import (
    OTHERS_LABEL,
    TASK_COUNT_COLUMNS,
    RecentCounts,
    SpanCounts,
    rate_column,
    read_recent_counts,
    recent_counts_object,
)
from stowhand.cli.screen import output_width
from stowhand.cli.session import with_store
from stowhand.clock import wall_clock
from stowhand.jobs.durations import ago, format_span
from stowhand.jobs.job import State
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.observe.safe_text import escape
from stowhand.protocols.counts import BoundedCount, Figures, LiveCounts
from stowhand.protocols.operator import WorkerDescription, WorkerRow
from stowhand.protocols.queue_store import QueueStore

T = TypeVar("T")


class WorkerLine(msgspec.Struct, frozen=True):
    """A worker and its number of claimed jobs."""

    row: WorkerRow
    claimed: BoundedCount
    """Number of jobs that the worker has claimed."""

    @property
    def busy(self) -> BoundedCount:
        """Number of slots that run a job."""
        slots = self.row.description.concurrency
        return BoundedCount(
            min(self.claimed.number, slots), self.claimed.is_lower_bound and self.claimed.number < slots
        )

    @property
    def ahead(self) -> BoundedCount:
        """Number of jobs that the worker has claimed and not started."""
        return BoundedCount(self.claimed.number - self.busy.number, self.claimed.is_lower_bound)


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a store at one time."""

    figures: Figures
    oldest_due: float
    """Seconds for which the oldest due job has been due; 0 if none is due."""
    workers: Sequence[WorkerLine]
    counted: RecentCounts = RecentCounts()
    """Counts of the last minutes."""
    now: datetime
    """Time of the read, by this machine's clock."""

    @property
    def ahead(self) -> BoundedCount:
        """Number of jobs that are claimed and not started."""
        return sum((line.ahead for line in self.workers), BoundedCount())


@click.command(cls=Command)
@click.option("as_json", "--json", is_flag=True, help="One JSON object.")
@store_options
def command(as_json: bool, **option_values: Any) -> None:
    """Show jobs by state and task, throughput, and workers.

    It also shows how long the oldest job has been due, and how long jobs waited and ran.

    Numbers are exact up to 10,000. Larger ones are "more than 10,000", in tables >10000.
    """
    stats = with_store(settings_of(option_values).store, read_stats)
    click.echo(json_line(_object(stats)) if as_json else "\n".join(stats_lines(stats)))


async def read_stats(store: QueueStore) -> Stats:
    """Read the figures with a few queries, one after another."""
    figures, workers = await store.inspect.figures(), await store.inspect.workers()
    claimed = {count.name: count.processing for count in figures.workers}
    unlisted = BoundedCount(0, is_lower_bound=None in claimed)
    return Stats(
        figures=figures,
        oldest_due=max((await store.inspect.oldest_due()).values(), default=0.0),
        workers=[WorkerLine(row, claimed.get(row.description.name, unlisted)) for row in workers],
        counted=await read_recent_counts(store),
        now=wall_clock(),
    )


def state_line(stats: Stats) -> str:
    """Return ``3 queued, 8 processing (5 of them claimed ahead), …``."""
    parts = []
    for state, amount in stats.figures.states.items():
        ahead = ""
        if state is State.PROCESSING and stats.ahead.number:
            ahead = f" ({stats.ahead.text} of them claimed ahead)"
        parts.append(f"{amount.text} {state.value}{ahead}")
    return ", ".join(parts)


def stats_lines(stats: Stats, max_rows: int | None = None) -> Iterator[str]:
    """Yield the figures as a page. ``max_rows`` limits the tables of tasks, queues and serial keys, busiest first."""
    yield from wrap(state_line(stats), output_width() or sys.maxsize)
    yield f"oldest due: {format_span(stats.oldest_due)}" if stats.oldest_due else "oldest due: nothing is due"
    if paused := [*stats.figures.paused, *stats.figures.pauses.names()]:
        yield from wrap(f"paused: {', '.join(map(escape, paused))}", output_width() or sys.maxsize)
    yield from table(TOTAL_COLUMNS, stats.counted.totals.items())
    yield from _table_of_busiest(TASK_COLUMNS, sorted(stats.figures.tasks, key=_sort_key), max_rows)
    yield from _table_of_busiest(TASK_COUNT_COLUMNS, [*stats.counted.tasks.items()], max_rows)
    if any(count.name != DEFAULT_QUEUE for count in stats.figures.queues):
        yield from _table_of_busiest(QUEUE_COLUMNS, sorted(stats.figures.queues, key=_sort_key), max_rows)
    yield from _table_of_busiest(serial_columns(stats.figures), sorted(stats.figures.serials, key=_sort_key), max_rows)
    yield ""
    yield from table(worker_columns(stats.now), stats.workers) if stats.workers else ["No workers."]


def _table_of_busiest(columns: Sequence[Column[T]], rows: Sequence[T], max_rows: int | None) -> Iterator[str]:
    visible = rows[:max_rows]
    if visible:
        yield ""
        yield from table(columns, visible)
    if len(visible) < len(rows):
        yield f"and {len(rows) - len(visible)} more"


def _sort_key(count: LiveCounts) -> tuple[object, ...]:
    return (*(-amount.number for amount in (count.processing, count.due, count.waiting)), count.name or "")


def _object(stats: Stats) -> dict[str, Any]:
    """Return the figures for JSON. ``more_than`` names the numbers that are lower bounds."""
    states = stats.figures.states
    more_than = [state.value for state, amount in states.items() if amount.is_lower_bound]
    if stats.ahead.is_lower_bound:
        more_than.append("claimed_ahead")
    serial = serial_columns(stats.figures)
    tasks = sorted(stats.figures.tasks, key=lambda count: (count.name is None, count.name or ""))
    return {
        "states": states,
        "more_than": more_than,
        "claimed_ahead": stats.ahead,
        "tasks": [fields(TASK_COLUMNS, count) for count in tasks],
        "serials": [fields(serial, count) for count in stats.figures.serials],
        "queues": [fields(QUEUE_COLUMNS, count) for count in stats.figures.queues],
        "oldest_due": stats.oldest_due,
        "finished": {
            f"{minutes}m": fields(TOTAL_COLUMNS, (minutes, ended)) for minutes, ended in stats.counted.totals.items()
        },
        "counted": recent_counts_object(stats.counted),
        "paused": list(stats.figures.paused),
        "paused_tasks": list(stats.figures.pauses.tasks),
        "paused_queues": list(stats.figures.pauses.queues),
        "workers": [fields(worker_columns(stats.now), line) for line in stats.workers],
    }


TOTAL_COLUMNS: list[Column[tuple[int, SpanCounts]]] = [
    Column(heading="LAST", text=lambda row: f"{row[0]}m"),
    Column("completed", "COMPLETED", lambda row: row[1].tally.ok, is_right_aligned=True),
    Column("failed", "FAILED", lambda row: row[1].tally.failures, is_right_aligned=True),
    Column("canceled", "CANCELED", lambda row: row[1].tally.canceled, is_right_aligned=True),
    rate_column(),
]
"""Counts by the number of minutes."""
AMOUNT_COLUMNS: list[Column[LiveCounts]] = [
    Column("waiting", "WAITING", is_right_aligned=True),
    Column("due", "DUE", is_right_aligned=True),
    Column("running", "RUNNING", lambda count: count.processing, is_right_aligned=True),
    Column("failed", "FAILED", is_right_aligned=True),
]
TASK_COLUMNS: list[Column[LiveCounts]] = [
    Column("task", "TASK", lambda count: count.name, lambda count: count.name or OTHERS_LABEL, can_shrink=True),
    *AMOUNT_COLUMNS,
    Column("errored"),
]
QUEUE_COLUMNS: list[Column[LiveCounts]] = [
    Column("queue", "QUEUE", lambda count: count.name, lambda count: count.name or OTHERS_LABEL, can_shrink=True),
    *AMOUNT_COLUMNS,
    Column("errored"),
]


def serial_columns(figures: Figures) -> list[Column[LiveCounts]]:
    """Return the columns of serial keys."""

    def is_paused(count: LiveCounts) -> bool:
        return count.name in figures.paused

    return [
        Column("serial", "SERIAL", lambda count: count.name, lambda count: count.name or OTHERS_LABEL, can_shrink=True),
        *AMOUNT_COLUMNS,
        Column("paused", "STATE", is_paused, lambda count: "paused" if is_paused(count) else "-"),
    ]


def worker_columns(now: datetime) -> list[Column[WorkerLine]]:
    """Return the columns of workers. ``now`` is the time of the read."""

    def uptime(line: WorkerLine) -> str:
        return format_span((now - line.row.started_at).total_seconds())

    def version(line: WorkerLine) -> str:
        card = line.row.description
        return card.version if card.app_version is None else f"{card.version}, app {card.app_version}"

    def tasks(line: WorkerLine) -> str:
        return "any" if line.row.description.tasks is None else ", ".join(line.row.description.tasks)

    def card(name: str, heading: str = "", **options: Any) -> Column[WorkerLine]:
        return Column(name, heading, lambda line: getattr(line.row.description, name), **options)

    columns = [
        card("name", "WORKER"),
        Column(heading="STATE", text=lambda line: line.row.state),
        Column(
            "busy", "BUSY", text=lambda line: f"{line.busy}/{line.row.description.concurrency}", is_right_aligned=True
        ),
        Column("claimed_ahead", "AHEAD", lambda line: line.ahead, is_right_aligned=True),
        card("abandoned_threads", "ABANDONED", is_right_aligned=True),
        card("version", "VERSION", text=version),
        Column("started_at", "UP", lambda line: line.row.started_at, uptime),
        Column("seen_at", "SEEN", lambda line: line.row.seen_at, lambda line: ago(line.row.seen_at, now)),
        card("tasks", "TASKS", text=tasks),
        Column("alive", value=lambda line: line.row.is_alive),
    ]
    keys = {column.key for column in columns}
    return [*columns, *(card(name) for name in WorkerDescription.__struct_fields__ if name not in keys)]
