"""How many jobs are in which state: counted exactly up to a limit; beyond it is only known that there are more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from stowhand.jobs.job import State

NAMES = 100
"""Tasks and serial keys that are listed by name, at most: the largest. The others are summed up."""
COUNTED = 10_000
"""Jobs that are counted for people: exactly up to this number, and beyond it only that there are more."""
COUNTED_FOR_METRICS = 1_000_000
"""The same for metrics, which have no sample of what is more."""


class Amount(msgspec.Struct, frozen=True):
    """A number of jobs: exact, or, if it is ``least``, there are more."""

    number: int = 0
    least: bool = False

    @classmethod
    def up_to(cls, most: int, number: int) -> Amount:
        """From a count that ended at one more than ``most``."""
        return cls(min(number, most), number > most)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.number + other.number, self.least or other.least)

    @property
    def words(self) -> str:
        """``8,412``, ``more than 10,000``."""
        return f"more than {self.number:,}" if self.least else f"{self.number:,}"

    def __str__(self) -> str:
        return f">{self.number}" if self.least else str(self.number)


class LiveCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Live jobs of one task, serial key or worker. ``name`` ``None``: of all that are not listed by name."""

    name: str | None
    queued: Amount = Amount()
    errored: Amount = Amount()
    due: Amount = Amount()
    """Of those two, jobs that could run now; pauses are not considered."""
    processing: Amount = Amount()
    failed: Amount = Amount()

    @property
    def waiting(self) -> Amount:
        """Queued, and waiting for another attempt."""
        return self.queued + self.errored


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """What is paused besides serial keys, and since when."""

    tasks: Mapping[str, datetime] = {}
    """By name."""

    def names(self) -> list[str]:
        """What is paused, for people."""
        return [f"task {task}" for task in self.tasks]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a queue store, which it can give fast at any size."""

    states: Mapping[State, Amount]
    """Every state is a key."""
    tasks: Sequence[LiveCounts]
    serials: Sequence[LiveCounts]
    workers: Sequence[LiveCounts]
    """By name; ``processing``: a worker's jobs, those claimed ahead included."""
    paused: Mapping[str, datetime]
    """Serial keys that are paused, by name, and since when."""
    pauses: Pauses = Pauses()
    """Paused tasks."""

    def all_pauses(self) -> list[datetime]:
        """When each pause of a serial key or task began."""
        return [*self.paused.values(), *self.pauses.tasks.values()]


class CronFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The recurring items that a store knows, by identifier."""

    known: Sequence[str] = ()
    unscheduled: Sequence[str] = ()
    """Those that no live scheduler has."""
    missed: Mapping[str, datetime] = {}
    """Those that missed a tick within the last day and have not ticked since; and which tick."""


class Tallies:
    """Amounts by name and part, as a store counts them row by row."""

    def __init__(self) -> None:
        self._names: defaultdict[str | None, dict[str, Amount]] = defaultdict(dict)

    def add(self, name: str | None, part: str, amount: Amount) -> None:
        """Add jobs. ``part``: a field of LiveCounts, or ``waiting``: queued and errored together."""
        amounts = self._names[name]
        amounts[part] = amounts.get(part, Amount()) + amount

    def live(self, named: int = NAMES) -> list[LiveCounts]:
        """The largest, by name, and the sum of the others."""
        return [_live(name, amounts) for name, amounts in self._largest(named)]

    def _largest(self, most: int) -> Iterator[tuple[str | None, dict[str, Amount]]]:
        named = [(name, amounts) for name, amounts in self._names.items() if name is not None]
        named.sort(key=lambda item: (-sum(amount.number for amount in item[1].values()), item[0]))
        yield from named[:most]
        others = Tallies()
        for amounts in (self._names.get(None, {}), *(amounts for _, amounts in named[most:])):
            for part, amount in amounts.items():
                others.add(None, part, amount)
        yield from others._names.items()


def _live(name: str | None, amounts: dict[str, Amount]) -> LiveCounts:
    parts = dict(amounts)
    if waiting := parts.pop("waiting", None):
        errored = parts.get("errored", Amount())
        parts["queued"] = Amount(max(waiting.number - errored.number, 0), waiting.least or errored.least)
    return LiveCounts(name=name, **parts)
