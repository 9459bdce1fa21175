"""Throughput: counts of ended attempts by minute and task, with histograms of waits and run times.

Each worker writes its own rows, one for each (minute, task), with absolute values, so that a write that is repeated
after a lost reply counts nothing twice. ``OPEN_MINUTE_SECONDS`` after the end of a minute, the store adds up its rows.
After two days it adds up minutes to hours, which it keeps for ninety days.

    ThroughputKeeper       heartbeats through which workers write
    Inspector.throughput   reads the counts (queue_store.py)
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
"""Maximum number of tasks with their own rows in a minute or an hour. The other tasks share one row."""
OTHER_TASKS = ""
"""The task of the shared row."""
OPEN_MINUTE_SECONDS = 600
"""Seconds after its end for which a minute may still be written. Later counts are dropped, and counted as late."""
MINUTE_RETENTION_SECONDS = 2 * 86_400
"""Seconds after which minutes are added up to hours."""
HOUR_RETENTION_SECONDS = 90 * 86_400
"""Seconds for which hours are kept."""
MINUTE_SECONDS = 60
HOUR_SECONDS = 3600


class OutcomeCounts(msgspec.Struct):
    """Numbers of ended attempts by outcome, as the store recorded them, and of reset jobs."""

    ok: int = 0
    retry: int = 0
    failed: int = 0
    """Permanently failed jobs, including those that were reset too often, without poison."""
    poison: int = 0
    snoozed: int = 0
    canceled: int = 0
    resets: int = 0
    """Jobs that were reset because their workers were lost, whatever their next state."""
    late: int = 0
    """Attempts of earlier minutes that could not be written before these were closed. No other number includes them."""
    waits: Histogram = {}
    """Seconds for which jobs were due before they were claimed."""
    runs: Histogram = {}
    """Run times of handlers in seconds."""

    @property
    def ended(self) -> int:
        """Number of attempts with any outcome, and of jobs that ended by a reset."""
        return self.ok + self.retry + self.failures + self.snoozed + self.canceled

    @property
    def finished(self) -> int:
        """Number of jobs that have ended: neither retried nor snoozed."""
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
        """Return a quantile of the waits in seconds, such as 0.95; ``None`` without any wait."""
        return quantile(self.waits, share)

    def run(self, share: float) -> float | None:
        """Return a quantile of the run times in seconds; ``None`` without any run time."""
        return quantile(self.runs, share)

    def numbers(self) -> dict[str, int]:
        """Return the stored form, without zeros: counts by name, and buckets as ``w`` or ``r`` with their number."""
        counts = {name: number for name in COUNT_NAMES if (number := getattr(self, name))}
        waits = {f"w{bucket}": number for bucket, number in self.waits.items()}
        return counts | waits | {f"r{bucket}": number for bucket, number in self.runs.items()}


_WAITS, _RUNS = ({f"{kind}{bucket}": bucket for bucket in range(BUCKET_COUNT)} for kind in "wr")
COUNT_NAMES = ("ok", "retry", "failed", "poison", "snoozed", "canceled", "resets", "late")


def sum_counts(stored: Iterable[Mapping[str, int]]) -> OutcomeCounts:
    """Return the sum of stored counts (``OutcomeCounts.numbers``). Names of newer versions are ignored."""
    sums: dict[str, int] = {}
    for numbers in stored:
        if not sums:  # usually there is only one
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
    """A worker's counts of one task in one minute so far."""

    minute: int
    """Minutes since 1970, by the store's clock."""
    task: str
    """The task, or ``OTHER_TASKS``."""
    tally: OutcomeCounts


class Period(msgspec.Struct, frozen=True):
    """The counts of all workers for one task in one period."""

    start: datetime
    """The start of the period, aware, UTC."""
    seconds: int
    """The length of the period."""
    task: str | None
    """``None``: all tasks without their own rows."""
    tally: OutcomeCounts


class Slot(msgspec.Struct, frozen=True):
    """A period of a chart, with its counts; ``None`` without any."""

    start: datetime
    tally: OutcomeCounts | None = None


@runtime_checkable
class ThroughputKeeper(Protocol):
    """Heartbeats that keep throughput. Raises StoreUnreachable."""

    async def write_throughput(self, writer: str, minutes: Sequence[TaskMinute]) -> Collection[tuple[int, str]]:
        """Write the counts of one run of a worker in one transaction, replacing its rows of the same minutes.

        Returns the (minute, task) pairs that were not written, because their minute is closed.
        """


def time_slots(periods: Iterable[Period], since: datetime, until: datetime, step: float) -> list[Slot]:
    """Return a slot for each ``step`` seconds from ``since`` until before ``until``, with all tasks together."""
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
    """Return the sum of the periods' counts."""
    return sum_counts(period.tally.numbers() for period in periods)
