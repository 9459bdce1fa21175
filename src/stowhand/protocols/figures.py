"""How many jobs are in which state and how many ended lately: exact where that is cheap, estimated elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from stowhand.jobs.job import State

MINUTES = (1, 5, 15)
"""The periods for which ended jobs are counted."""
NAMES = 100
"""Tasks and queues that are listed by name, at most: the largest. The others are summed up."""
UNQUEUED = "jobs without a queue"
COUNTED = 10_000
"""Jobs of a state that are counted exactly, at least; how many more there are may be an estimate."""


class Amount(msgspec.Struct, frozen=True):
    """A number of jobs; one that is not ``exact`` is an estimate, or, if it is ``least``, there are more."""

    number: int = 0
    exact: bool = True
    least: bool = False
    """It was not counted any further, and nothing says how many there are."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.number + other.number, self.exact and other.exact, self.least or other.least)

    @property
    def words(self) -> str:
        """``8,412``, ``about 3.1 million``, ``more than 10,000``; ``few, if any``: a sample had none."""
        if self.least:
            return f"more than {self.number:,}"
        if not self.number and not self.exact:
            return "few, if any"
        return f"{self.number:,}" if self.exact else f"about {rounded(self.number)}"

    def __str__(self) -> str:
        if self.least:
            return f">{about(self.number)[1:]}"
        return str(self.number) if self.exact else about(self.number)


class LiveCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Live jobs of one task, queue or worker. ``name`` ``None``: of all that are not listed by name."""

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


class EndedCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Ended jobs of one task. ``name`` ``None``: of all tasks that are not listed by name."""

    name: str | None
    completed: Amount = Amount()
    canceled: Amount = Amount()
    failed: Amount = Amount()

    @property
    def every(self) -> Amount:
        """However they ended."""
        return self.completed + self.canceled + self.failed


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """What is paused besides queues, and since when."""

    tasks: Mapping[str, datetime] = {}
    """By name."""
    unqueued: datetime | None = None
    """All jobs without a queue."""

    @classmethod
    def read(cls, since: Mapping[str, datetime]) -> Pauses:
        """From a store's rows, in which the empty name means the jobs without a queue."""
        return cls(tasks={task: at for task, at in since.items() if task}, unqueued=since.get(""))

    def since(self, task: str, queue: str | None) -> datetime | None:
        """Since when a job is paused by these; ``None``: it is not."""
        return self.tasks.get(task) or (self.unqueued if queue is None else None)

    def names(self) -> list[str]:
        """What is paused, for people."""
        return [*(f"task {task}" for task in self.tasks), *([UNQUEUED] if self.unqueued is not None else [])]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a queue store, which it can give fast at any size."""

    tasks: Sequence[LiveCounts]
    queues: Sequence[LiveCounts]
    workers: Sequence[LiveCounts]
    """By name; ``processing``: a worker's jobs, those claimed ahead included."""
    history: Sequence[EndedCounts]
    """All jobs in the history, which holds no failed ones."""
    lately: Mapping[int, Sequence[EndedCounts]]
    """Jobs that ended within the last so many minutes: ``MINUTES``."""
    paused: Mapping[str, datetime]
    """Queues that are paused, by name, and since when."""
    pauses: Pauses = Pauses()
    """Paused tasks, and the jobs without a queue."""
    few: Mapping[State, int] = {}
    """States of which at most ``COUNTED`` jobs were counted by themselves, where the other numbers are estimates."""

    def all_pauses(self) -> list[datetime]:
        """When each pause began: of queues, of tasks, and of the jobs without a queue."""
        unqueued = [] if self.pauses.unqueued is None else [self.pauses.unqueued]
        return [*self.paused.values(), *self.pauses.tasks.values(), *unqueued]

    def states(self) -> dict[State, Amount]:
        """Jobs by state; every state is a key."""
        sums = {state: sum((getattr(one, state) for one in self._counted(state)), Amount()) for state in State}
        return sums | {state: Amount(number) for state, number in self.few.items()}

    def _counted(self, state: State) -> Sequence[LiveCounts | EndedCounts]:
        return self.history if state in (State.COMPLETED, State.CANCELED) else self.tasks


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
        """Add jobs. ``part``: a field of LiveCounts or EndedCounts, or ``waiting``: queued and errored together."""
        amounts = self._names[name]
        amounts[part] = amounts.get(part, Amount()) + amount

    def live(self, named: int = NAMES) -> list[LiveCounts]:
        """The largest, by name, and the sum of the others."""
        return [_live(name, amounts) for name, amounts in self._largest(named)]

    def ended(self) -> list[EndedCounts]:
        """The largest, by name, and the sum of the others."""
        return [EndedCounts(name=name, **amounts) for name, amounts in self._largest(NAMES)]

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
        exact, least = waiting.exact and errored.exact, waiting.least or errored.least
        parts["queued"] = Amount(max(waiting.number - errored.number, 0), exact, least)
    return LiveCounts(name=name, **parts)


def total_ended(some: Sequence[EndedCounts]) -> EndedCounts:
    """The sum over all tasks."""
    parts = ("completed", "canceled", "failed")
    return EndedCounts(name=None, **{part: sum((getattr(one, part) for one in some), Amount()) for part in parts})


def rounded(number: int) -> str:
    """In words, in as many digits as are meaningful: ``840``, ``31,000``, ``3.1 million``."""
    digits = float(f"{number:.2g}")
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if digits >= size:
            return f"{digits / size:g} {word}"
    return f"{int(digits):,}"


def about(number: int) -> str:
    """An estimate in as many digits as are meaningful: ``~0``, ``~840``, ``~3.1M``."""
    if number < 1000:
        return f"~{number}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            short = number / size
            return f"~{short:.0f}{letter}" if short >= 100 else f"~{short:.2g}{letter}"
    raise AssertionError(number)
