"""Rows of throughput: added up into longer ones, and for those who read. Pure; where rows lie differs by store."""

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
"""What a row holds: ``Tally.numbers``."""
Row = tuple[int, int, str, Numbers]
"""Its length in seconds, its begin in seconds since 1970, its task, its numbers."""


def is_open(minute: int, now: float) -> bool:
    """Whether a worker may still write it: it is not closed, and not to come. ``now``: seconds since 1970."""
    return (minute + 1) * MINUTE + OPEN_FOR > now >= (minute - 1) * MINUTE


def newest_closed(now: float) -> int:
    """The begin of the last minute that workers write no more."""
    return (int(now - OPEN_FOR) // MINUTE - 1) * MINUTE


def newest_old_hour(now: float) -> int:
    """The begin of the last hour whose minutes are old."""
    return (int(now - MINUTES_FOR) // HOUR - 1) * HOUR


def regrouped(rows: Iterable[tuple[str, Numbers]]) -> dict[str, OutcomeCounts]:
    """The rows of one period by task, those of several workers added up: the largest, and the sum of the others."""
    of_task: defaultdict[str, list[Numbers]] = defaultdict(list)
    for task, numbers in rows:
        of_task[task].append(numbers)
    ended = {task: tally_of(some).ended for task, some in of_task.items() if task != OTHERS}
    for task in sorted(ended, key=lambda task: (-ended[task], task))[MOST_TASKS:]:
        of_task[OTHERS] += of_task.pop(task)
    return {task: tally_of(some) for task, some in of_task.items() if some}


def periods(rows: Iterable[Row], step: int, *, by_task: bool) -> list[Period]:
    """In steps of so many seconds, by time and task. A row that is longer than a step stays as long as it is."""
    found: defaultdict[tuple[int, int, str], list[Numbers]] = defaultdict(list)
    for seconds, begins, task, numbers in rows:
        length = step if step > seconds else seconds
        found[begins // length * length, length, task if by_task else OTHERS].append(numbers)
    return [
        Period(datetime.fromtimestamp(begins, UTC), length, None if task == OTHERS else task, tally_of(some))
        for (begins, length, task), some in sorted(found.items())
    ]
