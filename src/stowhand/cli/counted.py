"""Counts by workers in the last minutes, for ``stats`` and ``top``: rates, waiting times and run times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta

import msgspec

from stowhand.cli.columns import Column, fields
from stowhand.jobs.durations import format_short_duration
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.throughput import OutcomeCounts, Period, tally_of

MINUTES = 4
"""Whole minutes before this one, for the figures by task."""
SPANS = (1, 5, 15)
"""Whole minutes before this one, for the figures of all tasks together."""
OTHERS = "(others)"


class Ended(msgspec.Struct, frozen=True):
    """Counts in a span of time that ends now, by the store's clock."""

    tally: OutcomeCounts
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs finished per second."""
        return self.tally.finished / self.seconds


TaskEnded = tuple[str | None, Ended]


class Counted(msgspec.Struct, frozen=True):
    """Recent counts, by task and in total."""

    tasks: Mapping[str | None, Ended] = {}
    """Counts of the last four minutes, the busiest task first; ``None``: tasks without rows of their own."""
    lately: Mapping[int, Ended] = {}
    """Counts of all tasks by span, which begins with the minute so many before this one: ``SPANS``."""


async def read_counted(store: QueueStore) -> Counted:
    """Read the counts of the last minutes."""
    now = await store.timetable.now()
    minute = now.replace(second=0, microsecond=0)
    begins = {minutes: minute - timedelta(minutes=minutes) for minutes in (MINUTES, *SPANS)}
    periods = await store.inspect.throughput(min(begins.values()), now)

    def ended(minutes: int, tallies: Iterable[Period]) -> Ended:
        numbers = (period.tally.numbers() for period in tallies if period.at >= begins[minutes])
        return Ended(tally_of(numbers), (now - begins[minutes]).total_seconds())

    of_task = defaultdict(list)
    for period in periods:
        of_task[period.task].append(period)
    tasks = {task: ended(MINUTES, some) for task, some in of_task.items()}
    busiest = sorted(tasks, key=lambda task: (-tasks[task].tally.ended, task or ""))
    return Counted(
        {task: tasks[task] for task in busiest if tasks[task].tally != OutcomeCounts()},
        {minutes: ended(minutes, periods) for minutes in SPANS},
    )


def counted_json(counted: Counted) -> dict[str, object]:
    """Return the counts by task for JSON."""
    seconds = max((ended.seconds for ended in counted.tasks.values()), default=60.0 * MINUTES)
    return {"seconds": round(seconds, 3), "tasks": [fields(TASK_ENDED, row) for row in counted.tasks.items()]}


def _number(name: str, heading: str = "") -> Column[TaskEnded]:
    return Column(name, heading, lambda row: getattr(row[1].tally, name), right=True)


def _time(what: str, share: int) -> Column[TaskEnded]:
    def value(row: TaskEnded) -> float | None:
        tally = row[1].tally
        return tally.wait(share / 100) if what == "wait" else tally.run(share / 100)

    name = f"{what}_p{share}"
    heading = name.replace("_", " ").upper()
    return Column(name, heading, value, lambda row: format_short_duration(value(row)), right=True)


TASK_ENDED: list[Column[TaskEnded]] = [
    Column("task", f"COUNTED IN {MINUTES}M", lambda row: row[0], lambda row: row[0] or OTHERS, squeezed=True),
    Column("per_second", "PER SECOND", lambda row: round(row[1].rate, 3), lambda row: f"{row[1].rate:.2f}", right=True),
    _number("failures", "FAILED"),
    _number("retry", "RETRIED"),
    _number("resets", "RESETS"),
    *(_time(what, share) for what in ("wait", "run") for share in (50, 95)),
    *map(_number, ("ended", "finished", "late")),
]
