"""Throughput: what ended, by minute and task; how long it waited and ran.

Each worker writes rows of its own, one for each (minute, task), with absolute values: a write that is repeated because
its reply was lost counts nothing twice. A store adds the rows of a minute up once it has been over for ``OPEN_FOR``
seconds, and the minutes of two days ago into hours, which it keeps for ninety days.

    ThroughputKeeper     a store's heartbeats: workers write
    Inspector.throughput people read (queue_store.py)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import ceil, floor
from typing import Protocol, runtime_checkable

import msgspec

from stowhand.jobs.histogram import BUCKET_COUNT, Histogram, quantile

MAX_TASKS_PER_MINUTE = 500
"""Tasks of a minute, or of an hour, that have rows of their own; the others share one."""
OTHER_TASKS = ""
"""The task of that row."""
OPEN_MINUTE_SECONDS = 600
"""Seconds for which a minute that is over may still be written; what comes later is dropped, and counted as late."""
MINUTE_RETENTION_SECONDS = 2 * 86_400
"""Seconds after which minutes become hours."""
HOUR_RETENTION_SECONDS = 90 * 86_400
"""Seconds for which hours are kept."""
MINUTE_SECONDS, HOUR_SECONDS = 60, 3600
"""The lengths of rows, in seconds."""


class OutcomeCounts(msgspec.Struct):
    """How many attempts ended, by outcome, as the store recorded them; and how many jobs were reset."""

    ok: int = 0
    retry: int = 0
    failed: int = 0
    """For good; with the jobs that were reset too often."""
    poison: int = 0
    snoozed: int = 0
    canceled: int = 0
    resets: int = 0
    """Taken back from workers that died, whatever the job became."""
    late: int = 0
    """Ended in some earlier minute, and could not be written before that was closed: in none of the other numbers."""
    waits: Histogram = {}
    """How long jobs were due before they were claimed."""
    runs: Histogram = {}
    """How long handlers took."""

    @property
    def ended(self) -> int:
        """Attempts, however they ended, and jobs that a reset ended."""
        return self.ok + self.retry + self.failures + self.snoozed + self.canceled

    @property
    def finished(self) -> int:
        """Jobs that are over: neither tried again nor put off."""
        return self.ok + self.failures + self.canceled

    @property
    def failures(self) -> int:
        """Number of permanently failed jobs."""
        return self.failed + self.poison

    @property
    def errors(self) -> int:
        """Number of failed attempts, retried ones included."""
        return self.retry + self.failures

    def wait(self, share: float) -> float | None:
        """Seconds that this share of the jobs did not exceed between due and claimed; ``None``: none is known."""
        return quantile(self.waits, share)

    def run(self, share: float) -> float | None:
        """The same of what handlers took."""
        return quantile(self.runs, share)

    def numbers(self) -> dict[str, int]:
        """As it is stored: by name, and by ``w`` or ``r`` with the number of a bucket; without zeros."""
        counts = {name: number for name in COUNT_NAMES if (number := getattr(self, name))}
        waits = {f"w{bucket}": number for bucket, number in self.waits.items()}
        return counts | waits | {f"r{bucket}": number for bucket, number in self.runs.items()}


_WAITS, _RUNS = ({f"{kind}{bucket}": bucket for bucket in range(BUCKET_COUNT)} for kind in "wr")
COUNT_NAMES = ("ok", "retry", "failed", "poison", "snoozed", "canceled", "resets", "late")


def sum_counts(stored: Iterable[Mapping[str, int]]) -> OutcomeCounts:
    """The sum of what ``Tally.numbers`` gave; names of newer versions are passed over."""
    sums: dict[str, int] = {}
    for numbers in stored:
        if not sums:  # mostly there is no other
            sums.update(numbers)
            continue
        for name, number in numbers.items():
            sums[name] = sums.get(name, 0) + number
    counts: dict[str, int] = {}
    waits: Histogram = {}
    runs: Histogram = {}
    for name, number in sums.items():
        if name in _WAITS:
            waits[_WAITS[name]] = number
        elif name in _RUNS:
            runs[_RUNS[name]] = number
        elif name in COUNT_NAMES:
            counts[name] = number
    return OutcomeCounts(**counts, waits=waits, runs=runs)


class TaskMinute(msgspec.Struct, frozen=True):
    """What a worker counted of a task in a minute so far."""

    minute: int
    """Since 1970, by the store's clock."""
    task: str
    """Or ``OTHERS``."""
    tally: OutcomeCounts


class Period(msgspec.Struct, frozen=True):
    """What all workers counted of a task in a span of time."""

    start: datetime
    """Its begin, aware, UTC."""
    seconds: int
    """Its length."""
    task: str | None
    """``None``: of all that have no rows of their own."""
    tally: OutcomeCounts


class Slot(msgspec.Struct, frozen=True):
    """A span of time, and what was counted in it; ``None``: nothing was."""

    start: datetime
    tally: OutcomeCounts | None = None


@runtime_checkable
class ThroughputKeeper(Protocol):
    """Heartbeats that keep throughput. Raises StoreUnreachable."""

    async def write_throughput(self, writer: str, minutes: Sequence[TaskMinute]) -> Collection[tuple[int, str]]:
        """Write what one run of a worker counted, in a transaction of its own, over its rows of the same minutes.

        Returns (minute, task) of those that were not written, because their minute is closed.
        """


def time_slots(periods: Iterable[Period], since: datetime, until: datetime, step: float) -> list[Slot]:
    """One for each ``step`` seconds from ``since`` until before ``until``, all tasks together."""
    periods_by_slot: defaultdict[int, list[Period]] = defaultdict(list)
    for period in periods:
        periods_by_slot[floor((period.start - since).total_seconds() / step)].append(period)
    count = max(ceil((until - since).total_seconds() / step), 1)
    return [
        Slot(
            since + timedelta(seconds=number * step),
            total(periods_by_slot[number]) if number in periods_by_slot else None,
        )
        for number in range(count)
    ]


def total(periods: Iterable[Period]) -> OutcomeCounts:
    """The sum of them."""
    return sum_counts(period.tally.numbers() for period in periods)
