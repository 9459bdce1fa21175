"""What workers have counted in the last minutes, for ``stats`` and ``top``: rates, and how long jobs waited and ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta

import msgspec

from stowhand.cli.text_table import table
from stowhand.jobs.moments import say_brief
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.throughput import Tally, tally_of

MINUTES = 4
"""Whole minutes before this one that are shown."""
OTHERS = "(others)"
_HEADS = ("PER SECOND", "FAILED", "RETRIED", "RESETS", "WAIT P50", "WAIT P95", "RUN P50", "RUN P95")


class Counted(msgspec.Struct, frozen=True):
    """Of each task that anything was counted of; ``None``: of all that have no rows of their own."""

    tasks: Mapping[str | None, Tally]
    """The busiest first."""
    seconds: float
    """In which it was counted: up to now, by the store's clock."""

    def rate(self, tally: Tally) -> float:
        """Jobs that were over, a second."""
        return tally.finished / self.seconds


async def read_counted(store: QueueStore) -> Counted:
    """From some minutes ago until now."""
    now = await store.timetable.now()
    since = now.replace(second=0, microsecond=0) - timedelta(minutes=MINUTES)
    of_task = defaultdict(list)
    for period in await store.inspect.throughput(since, now):
        of_task[period.task].append(period.tally.numbers())
    tallies = {task: tally_of(numbers) for task, numbers in of_task.items()}
    busiest = sorted(tallies, key=lambda task: (-tallies[task].ended, task or ""))
    return Counted({task: tallies[task] for task in busiest}, (now - since).total_seconds())


def counted_lines(counted: Counted, most: int | None = None, width: int | None = None) -> Iterator[str]:
    """A table of the busiest tasks, after an empty line; nothing where nothing was counted."""
    if not counted.tasks:
        return
    yield ""
    heads = (f"COUNTED IN {MINUTES}M", *_HEADS)
    rows = [_row(task or OTHERS, counted, tally) for task, tally in counted.tasks.items()]
    yield from table(heads, rows[:most], right=_HEADS, squeezed=heads[:1], width=width)
    if most is not None and len(rows) > most:
        yield f"and {len(rows) - most} more tasks"


def counted_json(counted: Counted) -> dict[str, object]:
    """For programs."""
    tasks = [
        {"task": task, "per_second": round(counted.rate(tally), 3)}
        | {name: getattr(tally, name) for name in ("ended", "finished", "failures", "retry", "resets", "late")}
        | {f"wait_p{share}": tally.wait(share / 100) for share in (50, 95)}
        | {f"run_p{share}": tally.run(share / 100) for share in (50, 95)}
        for task, tally in counted.tasks.items()
    ]
    return {"seconds": round(counted.seconds, 3), "tasks": tasks}


def _row(task: str, counted: Counted, tally: Tally) -> tuple[str, ...]:
    numbers = (f"{counted.rate(tally):.2f}", *map(str, (tally.failures, tally.retry, tally.resets)))
    times = (tally.wait(0.5), tally.wait(0.95), tally.run(0.5), tally.run(0.95))
    return (task, *numbers, *map(say_brief, times))
