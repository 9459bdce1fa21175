"""Sums rows of throughput into longer ones. Pure functions: how rows are stored differs by store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from stowhand.protocols.throughput import (
    HOUR,
    MINUTE,
    MINUTES_FOR,
    MOST_TASKS,
    OPEN_FOR,
    OTHERS,
    OutcomeCounts,
    Period,
    tally_of,
)

Numbers = Mapping[str, int]
"""The content of a row: ``OutcomeCounts.numbers``."""
Row = tuple[int, int, str, Numbers]
"""Length in seconds, start in seconds since 1970, task, numbers."""


def is_open(minute: int, now: float) -> bool:
    """Return whether workers may still write a minute: neither closed nor in the future. ``now``: since 1970."""
    return (minute + 1) * MINUTE + OPEN_FOR > now >= (minute - 1) * MINUTE


def newest_closed(now: float) -> int:
    """Return the start of the last minute that is closed to workers."""
    return (int(now - OPEN_FOR) // MINUTE - 1) * MINUTE


def newest_old_hour(now: float) -> int:
    """Return the start of the last hour whose minutes are old."""
    return (int(now - MINUTES_FOR) // HOUR - 1) * HOUR


def regrouped(rows: Iterable[tuple[str, Numbers]]) -> dict[str, OutcomeCounts]:
    """Sum the rows of one period by task: the largest tasks, and the rest as one."""
    numbers_by_task: defaultdict[str, list[Numbers]] = defaultdict(list)
    for task, numbers in rows:
        numbers_by_task[task].append(numbers)
    ended = {task: tally_of(some).ended for task, some in numbers_by_task.items() if task != OTHERS}
    for task in sorted(ended, key=lambda task: (-ended[task], task))[MOST_TASKS:]:
        numbers_by_task[OTHERS] += numbers_by_task.pop(task)
    return {task: tally_of(some) for task, some in numbers_by_task.items() if some}


def periods(rows: Iterable[Row], step: int, *, by_task: bool) -> list[Period]:
    """Return periods of ``step`` seconds, by time and task. A row longer than a step keeps its length."""
    numbers_by_period: defaultdict[tuple[int, int, str], list[Numbers]] = defaultdict(list)
    for seconds, start, task, numbers in rows:
        length = step if step > seconds else seconds
        numbers_by_period[start // length * length, length, task if by_task else OTHERS].append(numbers)
    return [
        Period(datetime.fromtimestamp(start, UTC), length, None if task == OTHERS else task, tally_of(some))
        for (start, length, task), some in sorted(numbers_by_period.items())
    ]
