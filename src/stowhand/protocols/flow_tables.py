"""What a queue store keeps of flows beside their steps, which are jobs like any other (flows/on_queue).

A step's key is ``flow:`` and the job's name in full: ``flow:<flow>:<id>``, or a child's ``flow:<parent>:<child>:<id>``.
All steps of a job have one key, so at most one of them is live, and those before it lie in the history.

flow_jobs      which jobs there are: without a row, what still waits or runs of one is a ghost, and ends
flow_lookups   under what they can be found
flow_limits    what a limiter has let pass in its window
flow_lists     attributes too long for every step to carry: what the children of a parent are given
flow_waits     whom it has told to wait: a set, so that whoever never comes back is forgotten
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from stowhand.jobs.job import Job, NewJob

PREFIX = "flow:"
PARKED = "parked"
"""The flag of a step that waits for the children it has made."""
WAITS_FOR = "waits_for"
"""In such a step's payload: the ids of the children; or, for all that begin alike, the beginning and ``ALL``."""
ALL = "*"
SHORTEST_WAIT = 0.001
FORGIVEN = 60.0
"""Seconds and a window after which somebody who was told to wait, and has not come back, does not count any more."""
IDLE_LIMIT = 86_400.0
"""Seconds after which a limiter that nobody uses is forgotten."""


class NewFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a flow about to be created."""

    id: str
    step: NewJob
    """Its first, with its key."""
    lookups: tuple[tuple[str, str], ...] = ()
    """(attribute, value)."""
    lists: tuple[tuple[str, str], ...] = ()
    """Long attributes that its step does not carry: (id, JSON text)."""


class Woken(StrEnum):
    """What became of a parent that a child has tried to wake."""

    WOKEN = "woken"
    """It is due now."""
    RUNNING = "running"
    """It looks at its children just now, and may not have seen this one's end."""
    OPEN = "open"
    """It waits for others, too."""
    GONE = "gone"
    """It does not wait for children."""


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a limiter."""

    limiter: str
    part: str
    """Each has a reservoir of its own."""
    holder: str
    """Who asks; one that was told to wait is known when it comes back."""
    reservoir: int
    interval: float
    """Seconds."""


class StepState(StrEnum):
    """Where a live step stands."""

    WAITING = "waiting"
    PROCESSING = "processing"
    DELAYED = "delayed"
    PARKED = "parked"
    FAILED = "failed"


class StepCount(msgspec.Struct, frozen=True):
    """How many steps stand alike."""

    task: str
    priority: int
    standing: StepState
    number: int


class PlacedStep(msgspec.Struct, frozen=True):
    """One step in its queue."""

    key: str
    priority: int
    standing: StepState
    ready_at: float | None
    """Delayed and parked ones: seconds since the epoch."""


class FlowTables(Protocol):
    """The facet of a store that flows need. Every method raises StoreUnreachable and SchemaError."""

    keeps: bool
    """Finished jobs are kept for a while, in the history."""

    async def create(self, flow: str, jobs: Sequence[NewFlow]) -> None:
        """All of them or none: rows, lookups and first steps. Repeated with the same ids it does nothing."""

    async def keep(self, job_id: str, lists: Sequence[tuple[str, str]]) -> None:
        """Long attributes (id, JSON text), for as long as the job is known; nothing for one that is not."""

    async def kept(self, list_id: str) -> str | None:
        """One of them."""

    async def ids(self, flow: str, attribute: str, value: str) -> Sequence[str]:
        """In id order."""

    async def exists(self, ids: Sequence[str]) -> set[str]:
        """Those of them that have been created and not deleted."""

    async def latest(self, keys: Sequence[str]) -> Sequence[Job | None]:
        """The newest step of each, live or in the history."""

    async def delete(self, flow: str, job_id: str, keys: Sequence[str]) -> bool:
        """Forget the job, and every step with one of these keys; a running one loses its key. False: there was none."""

    async def wake(self, key: str) -> Woken:
        """Make the parked step with this key due, if none of its children is open any more."""

    async def spend(self, asked: Spending) -> float:
        """0: go. Else seconds until the holder should ask again."""

    async def tally(self, tasks: Sequence[str]) -> Sequence[StepCount]:
        """All live steps of these tasks, counted."""

    async def in_queue(self, task: str, limit: int) -> Sequence[PlacedStep]:
        """Of each standing but failed at most ``limit``, in the order in which they are served."""

    async def failed(self, tasks: Sequence[str], after: str, limit: int) -> Sequence[str]:
        """Keys of failed steps behind the key ``after``, in order."""


class Spent(NamedTuple):
    """What a limiter remembers of one part, and how long who has asked is to wait."""

    slot: int
    """The window, in intervals since the epoch."""
    calls: int
    """So many have passed in it."""
    following: int
    """The next ticket for a later window; each window has as many as the reservoir, numbered from the epoch on."""
    wait: float = 0.0
    """Seconds; 0: it passes."""


def spend(at: float, before: Spent, asked: Spending, *, came_back: bool) -> Spent:
    """One more asks at this moment (seconds). ``came_back``: it was told to wait before.

    Exact after any pause: whoever is overdue passes as soon as a window has room, and takes a new ticket where none
    has, so each window from now on is filled. Who comes for the first time does not pass while others wait.
    """
    here = max(before.slot, int(at // asked.interval))
    calls = before.calls if before.slot == here else 0
    later = (here + 1) * asked.reservoir
    if calls < asked.reservoir and (came_back or before.following <= later):
        return Spent(here, calls + 1, before.following)
    ticket = max(before.following, later)
    return Spent(here, calls, ticket + 1, max(ticket // asked.reservoir * asked.interval - at, SHORTEST_WAIT))
