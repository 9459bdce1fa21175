"""Counts of jobs by state and name. They are exact up to a limit, and a lower bound beyond it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from stowhand.jobs.job import State

MAX_LISTED_NAMES = 100
"""Maximum number of tasks and serial keys that are listed by name, the largest first. The others are summed."""
MAX_EXACT_COUNT = 10_000
"""Limit up to which counts for people are exact."""
MAX_EXACT_COUNT_FOR_METRICS = 1_000_000
"""Limit for metrics, which have no sample for a count beyond it."""


class BoundedCount(msgspec.Struct, frozen=True):
    """A number of jobs: exact, or a lower bound."""

    number: int = 0
    is_lower_bound: bool = False

    @classmethod
    def up_to(cls, limit: int, number: int) -> BoundedCount:
        """Return the bounded count for a count that stopped at ``limit + 1``."""
        return cls(min(number, limit), number > limit)

    def __add__(self, other: BoundedCount) -> BoundedCount:
        return BoundedCount(self.number + other.number, self.is_lower_bound or other.is_lower_bound)

    @property
    def text(self) -> str:
        """``8,412``, or ``more than 10,000``."""
        return f"more than {self.number:,}" if self.is_lower_bound else f"{self.number:,}"

    def __str__(self) -> str:
        return f">{self.number}" if self.is_lower_bound else str(self.number)


class LiveCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the live jobs of one task, serial key or worker; of all unlisted ones if ``name`` is ``None``."""

    name: str | None
    queued: BoundedCount = BoundedCount()
    errored: BoundedCount = BoundedCount()
    due: BoundedCount = BoundedCount()
    """Queued and errored jobs that could run now, pauses aside."""
    processing: BoundedCount = BoundedCount()
    failed: BoundedCount = BoundedCount()

    @property
    def waiting(self) -> BoundedCount:
        """Queued and errored jobs."""
        return self.queued + self.errored


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """Paused tasks and queues."""

    tasks: Mapping[str, datetime] = {}
    """Start times of pauses by task."""
    queues: Mapping[str, datetime] = {}
    """Start times of pauses by queue."""

    def names(self) -> list[str]:
        """Return descriptions of the paused tasks and queues."""
        return [*(f"task {task}" for task in self.tasks), *(f"queue {queue}" for queue in self.queues)]


class LimitCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the jobs that use a limit of tasks or wait for it."""

    name: str
    slots: int | None
    """Number of jobs that may run at once; ``None``: any number."""
    used: int
    """Number of running jobs that hold one of these slots."""
    waiting: BoundedCount
    due: BoundedCount


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a queue store, which are fast at any size."""

    states: Mapping[State, BoundedCount]
    """Every state is a key."""
    tasks: Sequence[LiveCounts]
    serials: Sequence[LiveCounts]
    queues: Sequence[LiveCounts]
    workers: Sequence[LiveCounts]
    """Ordered by name. ``processing`` includes jobs that the worker has claimed ahead."""
    paused: Mapping[str, datetime]
    """Start times of pauses by serial key."""
    pauses: Pauses = Pauses()
    """Paused tasks and queues."""
    limits: Sequence[LimitCounts] = ()
    """Ordered by name."""

    def all_pauses(self) -> list[datetime]:
        """Return the start times of all pauses."""
        return [*self.paused.values(), *self.pauses.tasks.values(), *self.pauses.queues.values()]


class CronFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The recurring items that a store knows."""

    known: Sequence[str] = ()
    unscheduled: Sequence[str] = ()
    """Items that no live scheduler has."""
    missed: Mapping[str, datetime] = {}
    """Missed ticks of the last day by item, unless the item has ticked since."""


class NameCounts:
    """Counts of jobs by name and part, added row by row, and exact up to a limit.

    A part is a field of LiveCounts, or ``waiting``: queued and errored together.
    """

    def __init__(self, limit: int = MAX_EXACT_COUNT) -> None:
        self._limit = limit
        self._names: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._incomplete_parts: set[str] = set()

    def add(self, name: str, part: str, number: int) -> None:
        """Add jobs of a name."""
        self._names[name][part] += number

    def cut(self, part: str) -> None:
        """Mark a part as not counted to its end: every name may have more jobs, even without a row."""
        self._incomplete_parts.add(part)

    def live(self, max_names: int = MAX_LISTED_NAMES) -> list[LiveCounts]:
        """Return the largest names and the sum of the others, also if no others are known but a part is incomplete."""
        rows = sorted(self._names.items(), key=lambda row: (-row[1].total(), row[0]))
        listed = [self._counts_of(name, numbers) for name, numbers in rows[:max_names]]
        if len(rows) > max_names or self._incomplete_parts:
            others = Counter[str]()
            for _, numbers in rows[max_names:]:
                others.update(numbers)
            listed.append(self._counts_of(None, others))
        return listed

    def of(self, name: str) -> LiveCounts:
        """Return the counts of a name."""
        return self._counts_of(name, self._names[name] if name in self._names else Counter())

    def _counts_of(self, name: str | None, numbers: Counter[str]) -> LiveCounts:
        amounts = {part: self._count(part, numbers[part]) for part in ("errored", "due", "processing", "failed")}
        waiting = self._count("waiting", numbers["waiting"])
        errored = amounts["errored"]
        queued = BoundedCount(max(waiting.number - errored.number, 0), waiting.is_lower_bound or errored.is_lower_bound)
        return LiveCounts(name=name, queued=queued, **amounts)

    def _count(self, part: str, number: int) -> BoundedCount:
        return BoundedCount(min(number, self._limit), part in self._incomplete_parts or number > self._limit)
