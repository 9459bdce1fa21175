"""How many jobs are in which state: counted exactly up to a limit; beyond it is only known that there are more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from stowhand.jobs.job import State

MAX_LISTED_NAMES = 100
"""Tasks and serial keys that are listed by name, at most: the largest. The others are summed up."""
MAX_EXACT_COUNT = 10_000
"""Jobs that are counted for people: exactly up to this number, and beyond it only that there are more."""
MAX_EXACT_COUNT_FOR_METRICS = 1_000_000
"""The same for metrics, which have no sample of what is more."""


class BoundedCount(msgspec.Struct, frozen=True):
    """A number of jobs: exact, or, if it is ``least``, there are more."""

    number: int = 0
    least: bool = False

    @classmethod
    def up_to(cls, limit: int, number: int) -> BoundedCount:
        """From a count that ended at one more than ``most``."""
        return cls(min(number, limit), number > limit)

    def __add__(self, other: BoundedCount) -> BoundedCount:
        return BoundedCount(self.number + other.number, self.least or other.least)

    @property
    def words(self) -> str:
        """``8,412``, ``more than 10,000``."""
        return f"more than {self.number:,}" if self.least else f"{self.number:,}"

    def __str__(self) -> str:
        return f">{self.number}" if self.least else str(self.number)


class LiveCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Live jobs of one task, serial key or worker. ``name`` ``None``: of all that are not listed by name."""

    name: str | None
    queued: BoundedCount = BoundedCount()
    errored: BoundedCount = BoundedCount()
    due: BoundedCount = BoundedCount()
    """Of those two, jobs that could run now; pauses are not considered."""
    processing: BoundedCount = BoundedCount()
    failed: BoundedCount = BoundedCount()

    @property
    def waiting(self) -> BoundedCount:
        """Queued, and waiting for another attempt."""
        return self.queued + self.errored


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """What is paused besides serial keys, and since when."""

    tasks: Mapping[str, datetime] = {}
    """By name."""
    queues: Mapping[str, datetime] = {}
    """By name."""

    def names(self) -> list[str]:
        """What is paused, for people."""
        return [*(f"task {task}" for task in self.tasks), *(f"queue {queue}" for queue in self.queues)]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a queue store, which it can give fast at any size."""

    states: Mapping[State, BoundedCount]
    """Every state is a key."""
    tasks: Sequence[LiveCounts]
    serials: Sequence[LiveCounts]
    queues: Sequence[LiveCounts]
    workers: Sequence[LiveCounts]
    """By name; ``processing``: a worker's jobs, those claimed ahead included."""
    paused: Mapping[str, datetime]
    """Serial keys that are paused, by name, and since when."""
    pauses: Pauses = Pauses()
    """Paused tasks and queues."""

    def all_pauses(self) -> list[datetime]:
        """When each pause of a serial key, task or queue began."""
        return [*self.paused.values(), *self.pauses.tasks.values(), *self.pauses.queues.values()]


class CronFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The recurring items that a store knows, by identifier."""

    known: Sequence[str] = ()
    unscheduled: Sequence[str] = ()
    """Those that no live scheduler has."""
    missed: Mapping[str, datetime] = {}
    """Those that missed a tick within the last day and have not ticked since; and which tick."""


class NameCounts:
    """Numbers of jobs by name and part, added row by row, and exact up to ``most``.

    ``part``: a field of LiveCounts, or ``waiting``: queued and errored together.
    """

    def __init__(self, limit: int = MAX_EXACT_COUNT) -> None:
        self._limit = limit
        self._names: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._incomplete_parts: set[str] = set()

    def add(self, name: str, part: str, number: int) -> None:
        """Add jobs of a name."""
        self._names[name][part] += number

    def cut(self, part: str) -> None:
        """Mark a part that was not counted to its end: every name may have more, also one that has no row."""
        self._incomplete_parts.add(part)

    def live(self, max_names: int = MAX_LISTED_NAMES) -> list[LiveCounts]:
        """The largest, by name, and the sum of the others: also of none, if a part was not counted to its end."""
        rows = sorted(self._names.items(), key=lambda row: (-row[1].total(), row[0]))
        listed = [self._counts_of(name, numbers) for name, numbers in rows[:max_names]]
        if len(rows) > max_names or self._incomplete_parts:
            others = Counter[str]()
            for _, numbers in rows[max_names:]:
                others.update(numbers)
            listed.append(self._counts_of(None, others))
        return listed

    def _counts_of(self, name: str | None, numbers: Counter[str]) -> LiveCounts:
        amounts = {part: self._count(part, numbers[part]) for part in ("errored", "due", "processing", "failed")}
        waiting, errored = self._count("waiting", numbers["waiting"]), amounts["errored"]
        queued = BoundedCount(max(waiting.number - errored.number, 0), waiting.least or errored.least)
        return LiveCounts(name=name, queued=queued, **amounts)

    def _count(self, part: str, number: int) -> BoundedCount:
        return BoundedCount(min(number, self._limit), part in self._incomplete_parts or number > self._limit)
