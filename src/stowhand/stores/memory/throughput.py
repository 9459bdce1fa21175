"""What ended by minute and task, in the memory store."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.protocols.throughput import HOUR, HOURS_FOR, MINUTE, TaskMinute
from stowhand.stores.memory.rows import Rows
from stowhand.stores.periods import Row, is_open, newest_closed, newest_old_hour, regrouped

FOLDED = ""
"""The writer of rows that were added up."""


def write(rows: Rows, writer: str, minutes: Sequence[TaskMinute]) -> list[tuple[int, str]]:
    """Those that were not written: (minute, task)."""
    now, closed = rows.now.timestamp(), []
    for one in minutes:
        begins = one.minute * MINUTE
        if is_open(one.minute, now) and (MINUTE, begins, one.task, FOLDED) not in rows.throughput:
            rows.throughput[MINUTE, begins, one.task, writer] = one.tally.numbers()
        else:
            closed.append((one.minute, one.task))
    return closed


def read(rows: Rows, since: float, until: float, task: str | None) -> list[Row]:
    """Rows that lie in that time, in whole or in part; ``None``: of any task."""
    return [
        (seconds, begins, name, numbers)
        for (seconds, begins, name, _), numbers in rows.throughput.items()
        if begins + seconds > since and begins < until and task in (None, name)
    ]


def fold(rows: Rows) -> None:
    """Add up closed minutes, and old minutes into hours; forget old hours."""
    now, kept = rows.now.timestamp(), rows.throughput
    written = {begins for _, begins, _, writer in kept if writer != FOLDED and begins <= newest_closed(now)}
    for begins in written:
        _regroup(rows, begins, MINUTE)
    hours = {begins // HOUR * HOUR for seconds, begins, _, _ in kept if seconds == MINUTE}
    for begins in hours:
        if begins <= newest_old_hour(now):
            _regroup(rows, begins, HOUR)
    for key in [key for key in kept if key[0] == HOUR and key[1] < now - HOURS_FOR]:
        del kept[key]


def _regroup(rows: Rows, begins: int, seconds: int) -> None:
    kept = rows.throughput
    inside = [key for key in kept if key[0] <= seconds and begins <= key[1] < begins + seconds]
    for task, tally in regrouped([(key[2], kept.pop(key)) for key in inside]).items():
        kept[seconds, begins, task, FOLDED] = tally.numbers()
