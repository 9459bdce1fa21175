"""Sums rows of throughput into longer ones. Pure functions: how rows are stored differs by store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from stowhand.protocols.throughput import (
    HOUR_SECONDS,
    MAX_TASKS_PER_MINUTE,
    MINUTE_RETENTION_SECONDS,
    MINUTE_SECONDS,
    OPEN_MINUTE_SECONDS,
    OTHER_TASKS,
    OutcomeCounts,
    Period,
    sum_counts,
)

Numbers = Mapping[str, int]
"""The content of a row: ``OutcomeCounts.numbers``."""
Row = tuple[int, int, str, Numbers]
"""Length in seconds, start in seconds since 1970, task, numbers."""


def is_open(minute: int, now: float) -> bool:
    """Return whether workers may still write a minute: neither closed nor in the future. ``now``: since 1970."""
    return (minute + 1) * MINUTE_SECONDS + OPEN_MINUTE_SECONDS > now >= (minute - 1) * MINUTE_SECONDS


def newest_closed(now: float) -> int:
    """Return the start of the last minute that is closed to workers."""
    return (int(now - OPEN_MINUTE_SECONDS) // MINUTE_SECONDS - 1) * MINUTE_SECONDS


def newest_old_hour(now: float) -> int:
    """Return the start of the last hour whose minutes are old."""
    return (int(now - MINUTE_RETENTION_SECONDS) // HOUR_SECONDS - 1) * HOUR_SECONDS


def regrouped(rows: Iterable[tuple[str, Numbers]]) -> dict[str, OutcomeCounts]:
    """Sum the rows of one period by task: the largest tasks, and the rest as one."""
    numbers_by_task: defaultdict[str, list[Numbers]] = defaultdict(list)
    for task, numbers in rows:
        numbers_by_task[task].append(numbers)
    ended = {
        task: sum_counts(task_numbers).ended for task, task_numbers in numbers_by_task.items() if task != OTHER_TASKS
    }
    for task in sorted(ended, key=lambda task: (-ended[task], task))[MAX_TASKS_PER_MINUTE:]:
        numbers_by_task[OTHER_TASKS] += numbers_by_task.pop(task)
    return {task: sum_counts(task_numbers) for task, task_numbers in numbers_by_task.items() if task_numbers}


def periods(rows: Iterable[Row], step: int, *, by_task: bool) -> list[Period]:
    """Return periods of ``step`` seconds, by time and task. A row longer than a step keeps its length."""
    numbers_by_period: defaultdict[tuple[int, int, str], list[Numbers]] = defaultdict(list)
    for seconds, start, task, numbers in rows:
        length = step if step > seconds else seconds
        numbers_by_period[start // length * length, length, task if by_task else OTHER_TASKS].append(numbers)
    return [
        Period(
            datetime.fromtimestamp(start, UTC),
            length,
            None if task == OTHER_TASKS else task,
            sum_counts(period_numbers),
        )
        for (start, length, task), period_numbers in sorted(numbers_by_period.items())
    ]
