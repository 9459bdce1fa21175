"""Throughput, waiting times and run times of the last minutes, for ``stats`` and ``top``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TypeVar

import msgspec

from stowhand.cli.columns import Column, fields
from stowhand.jobs.durations import format_short_duration
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.throughput import OutcomeCounts, Period, sum_counts

K = TypeVar("K")
TASK_SPAN_MINUTES = 4
"""Whole minutes before the current one, for the figures by task."""
TOTAL_SPANS_MINUTES = (1, 5, 15)
"""Whole minutes before the current one, for the figures of all tasks together."""
OTHERS_LABEL = "(others)"


class SpanCounts(msgspec.Struct, frozen=True):
    """Counts of a time span that ends now, by the store's clock."""

    tally: OutcomeCounts
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs finished per second."""
        return self.tally.finished / self.seconds


TaskCounts = tuple[str | None, SpanCounts]


class RecentCounts(msgspec.Struct, frozen=True):
    """Recent counts, by task and in total."""

    tasks: Mapping[str | None, SpanCounts] = {}
    """Counts of the last four minutes, busiest task first. ``None`` stands for tasks without rows of their own."""
    totals: Mapping[int, SpanCounts] = {}
    """Counts of all tasks, by the minutes of ``TOTAL_SPANS_MINUTES``."""


async def read_recent_counts(store: QueueStore) -> RecentCounts:
    """Read the counts of the last minutes."""
    now = await store.timetable.now()
    minute = now.replace(second=0, microsecond=0)
    span_starts = {
        minutes: minute - timedelta(minutes=minutes) for minutes in (TASK_SPAN_MINUTES, *TOTAL_SPANS_MINUTES)
    }
    periods = await store.inspect.throughput(min(span_starts.values()), now)

    def span_counts(minutes: int, tallies: Iterable[Period]) -> SpanCounts:
        numbers = (period.tally.numbers() for period in tallies if period.start >= span_starts[minutes])
        return SpanCounts(sum_counts(numbers), (now - span_starts[minutes]).total_seconds())

    periods_by_task = defaultdict(list)
    for period in periods:
        periods_by_task[period.task].append(period)
    tasks = {task: span_counts(TASK_SPAN_MINUTES, task_periods) for task, task_periods in periods_by_task.items()}
    busiest = sorted(tasks, key=lambda task: (-tasks[task].tally.ended, task or ""))
    return RecentCounts(
        {task: tasks[task] for task in busiest if tasks[task].tally != OutcomeCounts()},
        {minutes: span_counts(minutes, periods) for minutes in TOTAL_SPANS_MINUTES},
    )


def recent_counts_object(recent: RecentCounts) -> dict[str, object]:
    """Return the counts by task for JSON."""
    seconds = max((span_counts.seconds for span_counts in recent.tasks.values()), default=60.0 * TASK_SPAN_MINUTES)
    return {"seconds": round(seconds, 3), "tasks": [fields(TASK_COUNT_COLUMNS, row) for row in recent.tasks.items()]}


def rate_column() -> Column[tuple[K, SpanCounts]]:
    """Return the column of jobs finished per second, for rows of a key and its counts."""
    return Column(
        "per_second",
        "PER SECOND",
        lambda row: round(row[1].rate, 3),
        lambda row: f"{row[1].rate:.2f}",
        is_right_aligned=True,
    )


def _number(name: str, heading: str = "") -> Column[TaskCounts]:
    return Column(name, heading, lambda row: getattr(row[1].tally, name), is_right_aligned=True)


def _time(measure: str, share: int) -> Column[TaskCounts]:
    def value(row: TaskCounts) -> float | None:
        tally = row[1].tally
        return tally.wait(share / 100) if measure == "wait" else tally.run(share / 100)

    name = f"{measure}_p{share}"
    heading = name.replace("_", " ").upper()
    return Column(name, heading, value, lambda row: format_short_duration(value(row)), is_right_aligned=True)


TASK_COUNT_COLUMNS: list[Column[TaskCounts]] = [
    Column(
        "task",
        f"COUNTED IN {TASK_SPAN_MINUTES}M",
        lambda row: row[0],
        lambda row: row[0] or OTHERS_LABEL,
        can_shrink=True,
    ),
    rate_column(),
    _number("failures", "FAILED"),
    _number("retry", "RETRIED"),
    _number("resets", "RESETS"),
    *(_time(measure, share) for measure in ("wait", "run") for share in (50, 95)),
    *map(_number, ("ended", "finished", "late")),
]
