"""``stowhand stats``: jobs by state, how fast they end, and which workers are alive."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from textwrap import wrap
from typing import Any, TypeVar

import click
import msgspec

from stowhand.cli.columns import Column, fields, json_line, table
from stowhand.cli.counted import OTHERS, TASK_ENDED, Counted, Ended, counted_json, read_counted
from stowhand.cli.help import Command
from stowhand.cli.options import settings_of, store_options
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
    """A worker, and what it holds."""

    row: WorkerRow
    held: BoundedCount
    """Jobs that it has claimed."""

    @property
    def busy(self) -> BoundedCount:
        """Slots with a job in them: a worker runs no more at once."""
        slots = self.row.card.concurrency
        return BoundedCount(min(self.held.number, slots), self.held.least and self.held.number < slots)

    @property
    def ahead(self) -> BoundedCount:
        """Jobs that it has claimed and not begun."""
        return BoundedCount(self.held.number - self.busy.number, self.held.least)


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a store at one moment."""

    figures: Figures
    oldest_due: float
    """Seconds."""
    workers: Sequence[WorkerLine]
    counted: Counted = Counted()
    """Counts of the last minutes."""
    now: datetime
    """Moment of the read, by this machine's clock."""

    @property
    def ahead(self) -> BoundedCount:
        """Jobs that are claimed and not begun."""
        return sum((line.ahead for line in self.workers), BoundedCount())


@click.command(cls=Command)
@click.option("as_json", "--json", is_flag=True, help="One JSON object.")
@store_options
def command(as_json: bool, **typed: Any) -> None:
    """Show jobs by state and task, throughput, and workers.

    Also how long the oldest job has been due, and how long jobs waited and ran.

    Numbers are exact up to 10,000, and beyond it "more than 10,000"; in tables >10000.
    """
    found = with_store(settings_of(typed).store, read_stats)
    click.echo(json_line(_object(found)) if as_json else "\n".join(stats_lines(found)))


async def read_stats(store: QueueStore) -> Stats:
    """Read the figures with a few questions, one after the other."""
    figures, workers = await store.inspect.figures(), await store.inspect.workers()
    held = {one.name: one.processing for one in figures.workers}
    unlisted = BoundedCount(0, least=None in held)
    return Stats(
        figures=figures,
        oldest_due=max((await store.inspect.oldest_due()).values(), default=0.0),
        workers=[WorkerLine(row, held.get(row.card.name, unlisted)) for row in workers],
        counted=await read_counted(store),
        now=wall_clock(),
    )


def state_line(found: Stats) -> str:
    """``3 queued, 8 processing (5 of them ahead), …``"""
    parts = []
    for state, amount in found.figures.states.items():
        ahead = ""
        if state is State.PROCESSING and found.ahead.number:
            ahead = f" ({found.ahead.words} of them claimed ahead)"
        parts.append(f"{amount.words} {state.value}{ahead}")
    return ", ".join(parts)


def stats_lines(found: Stats, max_rows: int | None = None) -> Iterator[str]:
    """The figures as a page; ``max_rows``: of the tables of tasks and serial keys, the busiest first."""
    yield from wrap(state_line(found), output_width() or sys.maxsize)
    yield f"oldest due: {format_span(found.oldest_due)}" if found.oldest_due else "oldest due: nothing is due"
    if paused := [*found.figures.paused, *found.figures.pauses.names()]:
        yield from wrap(f"paused: {', '.join(map(escape, paused))}", output_width() or sys.maxsize)
    yield from table(LATELY, found.counted.lately.items())
    yield from _busiest(TASK, sorted(found.figures.tasks, key=_by_business), max_rows)
    yield from _busiest(TASK_ENDED, [*found.counted.tasks.items()], max_rows)
    if any(one.name != DEFAULT_QUEUE for one in found.figures.queues):
        yield from _busiest(QUEUE, sorted(found.figures.queues, key=_by_business), max_rows)
    yield from _busiest(serial_columns(found.figures), sorted(found.figures.serials, key=_by_business), max_rows)
    yield ""
    yield from table(worker_columns(found.now), found.workers) if found.workers else ["No workers."]


def _busiest(columns: Sequence[Column[T]], rows: Sequence[T], max_rows: int | None) -> Iterator[str]:
    shown = rows[:max_rows]
    if shown:
        yield ""
        yield from table(columns, shown)
    if len(shown) < len(rows):
        yield f"and {len(rows) - len(shown)} more"


def _by_business(one: LiveCounts) -> tuple[object, ...]:
    return (*(-amount.number for amount in (one.processing, one.due, one.waiting)), one.name or "")


def _object(found: Stats) -> dict[str, Any]:
    """Numbers of which there are more are named in ``more_than``."""
    states = found.figures.states
    more_than = [state.value for state, amount in states.items() if amount.least]
    if found.ahead.least:
        more_than.append("claimed_ahead")
    serial = serial_columns(found.figures)
    tasks = sorted(found.figures.tasks, key=lambda one: (one.name is None, one.name or ""))
    return {
        "states": states,
        "more_than": more_than,
        "claimed_ahead": found.ahead,
        "tasks": [fields(TASK, one) for one in tasks],
        "serials": [fields(serial, one) for one in found.figures.serials],
        "queues": [fields(QUEUE, one) for one in found.figures.queues],
        "oldest_due": found.oldest_due,
        "finished": {
            f"{minutes}m": fields(LATELY, (minutes, ended)) for minutes, ended in found.counted.lately.items()
        },
        "counted": counted_json(found.counted),
        "paused": list(found.figures.paused),
        "paused_tasks": list(found.figures.pauses.tasks),
        "paused_queues": list(found.figures.pauses.queues),
        "workers": [fields(worker_columns(found.now), line) for line in found.workers],
    }


LATELY: list[Column[tuple[int, Ended]]] = [
    Column(heading="LAST", text=lambda row: f"{row[0]}m"),
    Column("completed", "COMPLETED", lambda row: row[1].tally.ok, right=True),
    Column("failed", "FAILED", lambda row: row[1].tally.failures, right=True),
    Column("canceled", "CANCELED", lambda row: row[1].tally.canceled, right=True),
    Column("per_second", "PER SECOND", lambda row: round(row[1].rate, 3), lambda row: f"{row[1].rate:.2f}", right=True),
]
"""Counts by the number of minutes."""
AMOUNTS: list[Column[LiveCounts]] = [
    Column("waiting", "WAITING", right=True),
    Column("due", "DUE", right=True),
    Column("running", "RUNNING", lambda one: one.processing, right=True),
    Column("failed", "FAILED", right=True),
]
TASK: list[Column[LiveCounts]] = [
    Column("task", "TASK", lambda one: one.name, lambda one: one.name or OTHERS, squeezed=True),
    *AMOUNTS,
    Column("errored"),
]
QUEUE: list[Column[LiveCounts]] = [
    Column("queue", "QUEUE", lambda one: one.name, lambda one: one.name or OTHERS, squeezed=True),
    *AMOUNTS,
    Column("errored"),
]


def serial_columns(figures: Figures) -> list[Column[LiveCounts]]:
    """Serial keys, and which of them are paused."""

    def is_paused(one: LiveCounts) -> bool:
        return one.name in figures.paused

    return [
        Column("serial", "SERIAL", lambda one: one.name, lambda one: one.name or OTHERS, squeezed=True),
        *AMOUNTS,
        Column("paused", "STATE", is_paused, lambda one: "paused" if is_paused(one) else "-"),
    ]


def worker_columns(now: datetime) -> list[Column[WorkerLine]]:
    """Workers. ``now``: when they were asked for."""

    def up(line: WorkerLine) -> str:
        return format_span((now - line.row.started_at).total_seconds())

    def version(line: WorkerLine) -> str:
        card = line.row.card
        return card.version if card.app_version is None else f"{card.version}, app {card.app_version}"

    def tasks(line: WorkerLine) -> str:
        return "any" if line.row.card.tasks is None else ", ".join(line.row.card.tasks)

    def card(name: str, heading: str = "", **options: Any) -> Column[WorkerLine]:
        return Column(name, heading, lambda line: getattr(line.row.card, name), **options)

    shown = [
        card("name", "WORKER"),
        Column(heading="STATE", text=lambda line: line.row.state),
        Column("busy", "BUSY", text=lambda line: f"{line.busy}/{line.row.card.concurrency}", right=True),
        Column("claimed_ahead", "AHEAD", lambda line: line.ahead, right=True),
        card("abandoned_threads", "ABANDONED", right=True),
        card("version", "VERSION", text=version),
        Column("started_at", "UP", lambda line: line.row.started_at, up),
        Column("seen_at", "SEEN", lambda line: line.row.seen_at, lambda line: ago(line.row.seen_at, now)),
        card("tasks", "TASKS", text=tasks),
        Column("alive", value=lambda line: line.row.alive),
    ]
    keys = {column.key for column in shown}
    return [*shown, *(card(name) for name in WorkerDescription.__struct_fields__ if name not in keys)]
