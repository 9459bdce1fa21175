"""What workers have counted in the last minutes, for ``stats`` and ``top``: rates, and how long jobs waited and ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

import msgspec

from stowhand.cli.text_table import table
from stowhand.jobs.moments import say_brief
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.throughput import Period, Tally, tally_of

MINUTES = 4
"""Whole minutes before this one that are shown by task."""
SPANS = (1, 5, 15)
"""The same of all tasks together."""
OTHERS = "(others)"
_HEADS = ("PER SECOND", "FAILED", "RETRIED", "RESETS", "WAIT P50", "WAIT P95", "RUN P50", "RUN P95")


class Ended(msgspec.Struct, frozen=True):
    """What workers counted in a span of time that ends now, by the store's clock."""

    tally: Tally
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs that were over, a second."""
        return self.tally.finished / self.seconds


class Counted(msgspec.Struct, frozen=True):
    """What workers counted lately."""

    tasks: Mapping[str | None, Ended] = {}
    """In the last four minutes, the busiest first; ``None``: of all tasks that have no rows of their own."""
    lately: Mapping[int, Ended] = {}
    """Of all tasks, since the beginning of the minute so many before this one: ``SPANS``."""


async def read_counted(store: QueueStore) -> Counted:
    """From some minutes ago until now."""
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
        {task: tasks[task] for task in busiest if tasks[task].tally != Tally()},
        {minutes: ended(minutes, periods) for minutes in SPANS},
    )


def counted_lines(counted: Counted, most: int | None = None, width: int | None = None) -> Iterator[str]:
    """A table of the busiest tasks, after an empty line; nothing where nothing was counted."""
    if not counted.tasks:
        return
    yield ""
    heads = (f"COUNTED IN {MINUTES}M", *_HEADS)
    rows = [_row(task or OTHERS, ended) for task, ended in counted.tasks.items()]
    yield from table(heads, rows[:most], right=_HEADS, squeezed=heads[:1], width=width)
    if most is not None and len(rows) > most:
        yield f"and {len(rows) - most} more tasks"


def counted_json(counted: Counted) -> dict[str, object]:
    """For programs."""
    tasks = [
        {"task": task, "per_second": round(ended.rate, 3)}
        | {name: getattr(ended.tally, name) for name in ("ended", "finished", "failures", "retry", "resets", "late")}
        | {f"wait_p{share}": ended.tally.wait(share / 100) for share in (50, 95)}
        | {f"run_p{share}": ended.tally.run(share / 100) for share in (50, 95)}
        for task, ended in counted.tasks.items()
    ]
    seconds = max((ended.seconds for ended in counted.tasks.values()), default=60.0 * MINUTES)
    return {"seconds": round(seconds, 3), "tasks": tasks}


def _row(task: str, ended: Ended) -> tuple[str, ...]:
    tally = ended.tally
    numbers = (f"{ended.rate:.2f}", *map(str, (tally.failures, tally.retry, tally.resets)))
    times = (tally.wait(0.5), tally.wait(0.95), tally.run(0.5), tally.run(0.95))
    return (task, *numbers, *map(say_brief, times))
