"""What a queue store keeps of flows besides their steps, which are ordinary jobs (flows/queue).

A step's key is ``flow:`` and the full name of the flow's job: ``flow:<flow>:<id>``, or a child's
``flow:<parent>:<child>:<id>``. All steps of a job have one key, so at most one of them is live; the earlier ones are in
the history.

flow_jobs      the jobs of flows: a step whose job has no row here is a ghost, and ends
flow_lookups   the attributes by which they can be found
flow_limits    how many jobs a limiter has let pass in its window
flow_lists     attributes too long for every step to carry: the parameters of a parent's children
flow_waits     the jobs that a limiter has asked to wait: a set, so that those that never come back are forgotten
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from stowhand.jobs.job import Job, NewJob

FLOW_KEY_PREFIX = "flow:"
PARKED_FLAG = "parked"
"""The flag of a step that waits for its children."""
CHILD_ID_PREFIX_FIELD = "waits_for"
"""In such a step's payload: what its children's ids begin with. Hexadecimal digits follow."""
MIN_WAIT_SECONDS = 0.001
WAITER_TIMEOUT_SECONDS = 60.0
"""Seconds, besides a window, after which a waiting job that has not come back no longer counts."""
IDLE_LIMITER_SECONDS = 86_400.0
"""Seconds after which an unused limiter is forgotten."""


class NewFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a flow to create."""

    id: str
    step: NewJob
    """Its first step, with its key."""
    lookups: tuple[tuple[str, str], ...] = ()
    """(attribute, value)."""
    key: str | None = None
    """While a job of the flow with this key has not ended, none is created. It is also a lookup value of ``""``."""
    lists: tuple[tuple[str, str], ...] = ()
    """Long attributes that its step does not carry: (id, JSON text)."""


class ParentWakeup(StrEnum):
    """The result of waking a parent."""

    WOKEN = "woken"
    """It is due now."""
    RUNNING = "running"
    """It is looking at its children, and may not have seen the end of this one."""
    OPEN = "open"
    """It still waits for other children."""
    GONE = "gone"
    """It is not waiting for children."""


class RateLimitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a limiter."""

    limiter: str
    part: str
    """Each part has a reservoir of its own."""
    holder: str
    """Who requests: a holder that was asked to wait is recognised when it comes back."""
    reservoir: int
    interval: float
    """Seconds."""


class StepState(StrEnum):
    """The state of a live step."""

    WAITING = "waiting"
    PROCESSING = "processing"
    DELAYED = "delayed"
    PARKED_FLAG = "parked"
    FAILED = "failed"


class StepCount(msgspec.Struct, frozen=True):
    """The number of steps of one task with the same priority and state."""

    task: str
    priority: int
    state: StepState
    number: int


class PlacedStep(msgspec.Struct, frozen=True):
    """One step in its queue."""

    key: str
    priority: int
    state: StepState
    ready_at: float | None
    """Of delayed and parked steps: seconds since the epoch."""


class FlowTables(Protocol):
    """The part of a queue store that flows need. Every method raises StoreUnreachable and SchemaError."""

    keeps: bool
    """Finished jobs are kept for a while, in the history."""

    async def create(self, flow: str, jobs: Sequence[NewFlow]) -> Sequence[str]:
        """Create all of them or none: rows, lookups and first steps. A repeat with the same ids does nothing.

        Return the id of each: of the job that holds its key, or its own."""

    async def keep(self, job_id: str, lists: Sequence[tuple[str, str]]) -> None:
        """Keep long attributes (id, JSON text) for as long as the job exists; no effect for an unknown job."""

    async def kept(self, list_id: str) -> str | None:
        """The JSON text of one such attribute."""

    async def ids(self, flow: str, attribute: str, value: str) -> Sequence[str]:
        """The ids of jobs with this value, in order."""

    async def exists(self, ids: Sequence[str]) -> set[str]:
        """Those of the jobs that have been created and not deleted."""

    async def latest(self, keys: Sequence[str]) -> Sequence[Job | None]:
        """The newest step with each key, live or in the history."""

    async def delete(self, flow: str, job_id: str, keys: Sequence[str]) -> bool:
        """Delete the job, and every step with one of these keys; a running one loses its key. False: there was none."""

    async def wake(self, key: str) -> ParentWakeup:
        """Make the parked step with this key due, if all of its children have ended."""

    async def spend(self, request: RateLimitRequest) -> float:
        """0: it passes; else the seconds until the holder should ask again."""

    async def tally(self, tasks: Sequence[str]) -> Sequence[StepCount]:
        """All live steps of these tasks, counted."""

    async def in_queue(self, task: str, limit: int) -> Sequence[PlacedStep]:
        """Of each state but failed at most ``limit`` steps, in the order in which they are served."""

    async def failed(self, tasks: Sequence[str], after: str, limit: int) -> Sequence[str]:
        """Keys of failed steps after the key ``after``, in order."""


class RateLimitReply(NamedTuple):
    """The state of one part of a limiter, and how long the holder is to wait."""

    slot: int
    """The window, in intervals since the epoch."""
    calls: int
    """Jobs that have passed in it."""
    following: int
    """The next ticket for a later window; each window has as many as the reservoir, numbered from the epoch on."""
    wait: float = 0.0
    """Seconds; 0: it passes."""


def is_step(task: str, key: str | None) -> bool:
    """Return whether a job with this task and key is a step of a flow."""
    return "/" in task and key is not None and key.startswith(FLOW_KEY_PREFIX)


def spend(now: float, previous: RateLimitReply, request: RateLimitRequest, *, came_back: bool) -> RateLimitReply:
    """One more request, at this moment (seconds). ``came_back``: the holder was asked to wait before.

    Exact after any pause: an overdue holder passes as soon as a window has room, and takes a new ticket otherwise, so
    that each later window is filled. A holder that comes for the first time does not pass while others wait.
    """
    window = max(previous.slot, int(now // request.interval))
    calls = previous.calls if previous.slot == window else 0
    next_window_ticket = (window + 1) * request.reservoir
    if calls < request.reservoir and (came_back or previous.following <= next_window_ticket):
        return RateLimitReply(window, calls + 1, previous.following)
    ticket = max(previous.following, next_window_ticket)
    return RateLimitReply(
        window, calls, ticket + 1, max(ticket // request.reservoir * request.interval - now, MIN_WAIT_SECONDS)
    )
