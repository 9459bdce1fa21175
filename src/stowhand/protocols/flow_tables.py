"""The tables of flows in a queue store. The steps of flows are ordinary jobs (flows/queue).

A step's key is ``flow:`` and the full name of the flow's job: ``flow:<flow>:<id>``, or a child's
``flow:<parent>:<child>:<id>``. All steps of a job have one key, so at most one of them is live; the earlier ones are in
the history.

flow_jobs      the jobs of flows; a step without a row here belongs to a deleted job and ends
flow_lookups   attributes for finding jobs
flow_limits    number of jobs that a limiter has admitted in its window
flow_lists     attributes too long for every step: the parameters of a parent's children
flow_waits     jobs that wait for a limiter; a job that does not return expires
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
"""The field of a parked step's payload with the prefix of its children's ids. Hexadecimal digits follow the prefix."""
MIN_WAIT_SECONDS = 0.001
WAITER_TIMEOUT_SECONDS = 60.0
"""Time, in addition to a window, after which a waiting job that has not returned no longer counts."""
IDLE_LIMITER_SECONDS = 86_400.0
"""Time after which an unused limiter is deleted."""


class NewFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a flow to create."""

    id: str
    step: NewJob
    """The first step, with its key."""
    lookups: tuple[tuple[str, str], ...] = ()
    """Pairs (attribute, value)."""
    key: str | None = None
    """No job is created while an unfinished job of the flow has this key. It is also a lookup value of ``""``."""
    lists: tuple[tuple[str, str], ...] = ()
    """Long attributes that the step does not contain: (id, JSON text)."""


class ParentWakeup(StrEnum):
    """The result of a request to wake a parent."""

    WOKEN = "woken"
    """The parent is due now."""
    RUNNING = "running"
    """The parent is reading its children, and may have missed the end of this one."""
    OPEN = "open"
    """The parent still waits for other children."""
    GONE = "gone"
    """The parent is not waiting for children."""


class RateLimitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a limiter."""

    limiter: str
    part: str
    """The value of the limiter's ``group_by``. Each part has its own reservoir."""
    holder: str
    """The job that makes the request. A waiting holder is recognized when it returns."""
    reservoir: int
    interval: float
    """Seconds."""


class StepState(StrEnum):
    """The state of a live step."""

    WAITING = "waiting"
    PROCESSING = "processing"
    DELAYED = "delayed"
    PARKED = "parked"
    FAILED = "failed"


class StepCount(msgspec.Struct, frozen=True):
    """The number of steps of one task with the same priority and state."""

    task: str
    priority: int
    state: StepState
    number: int


class PlacedStep(msgspec.Struct, frozen=True):
    """A step in its queue."""

    key: str
    priority: int
    state: StepState
    ready_at: float | None
    """Due time of delayed and parked steps, in seconds since the epoch."""


class FlowTables(Protocol):
    """The part of a queue store that flows need. Every method raises StoreUnreachable and SchemaError."""

    keeps_history: bool
    """True if the history keeps finished jobs."""

    async def create(self, flow: str, jobs: Sequence[NewFlow]) -> Sequence[str]:
        """Create all jobs or none: rows, lookups and first steps. A repeat with the same ids does nothing.

        Return an id for each job: its own, or that of the job that holds its key.
        """

    async def store_lists(self, job_id: str, lists: Sequence[tuple[str, str]]) -> None:
        """Keep long attributes (id, JSON text) for as long as the job exists; no effect for an unknown job."""

    async def read_list(self, list_id: str) -> str | None:
        """Return the JSON text of a long attribute."""

    async def ids(self, flow: str, attribute: str, value: str) -> Sequence[str]:
        """Return the ids of jobs with this value, in order."""

    async def exists(self, ids: Sequence[str]) -> set[str]:
        """Return the ids of jobs that exist."""

    async def latest(self, keys: Sequence[str]) -> Sequence[Job | None]:
        """Return the newest step with each key, live or in the history."""

    async def delete(self, flow: str, job_id: str, keys: Sequence[str]) -> bool:
        """Delete the job and every step with one of these keys. A running step loses its key. False: no such job."""

    async def wake(self, key: str) -> ParentWakeup:
        """Make the parked step with this key due if all its children have ended."""

    async def spend(self, request: RateLimitRequest) -> float:
        """Return 0 if the job passes, else the seconds until the holder should repeat the request."""

    async def tally(self, tasks: Sequence[str]) -> Sequence[StepCount]:
        """Count the live steps of these tasks."""

    async def in_queue(self, task: str, limit: int) -> Sequence[PlacedStep]:
        """Return at most ``limit`` steps of each state except failed, in the order of service."""

    async def failed(self, tasks: Sequence[str], after: str, limit: int) -> Sequence[str]:
        """Return keys of failed steps after the key ``after``, in order."""


class RateLimitReply(NamedTuple):
    """The state of one part of a limiter, and the seconds for which the holder must wait."""

    slot: int
    """The window, in intervals since the epoch."""
    calls: int
    """Jobs that have passed in the window."""
    following: int
    """The next ticket for a later window. A window has as many tickets as the reservoir, numbered since the epoch."""
    wait: float = 0.0
    """Seconds to wait; 0 if the job passes."""


def is_step(task: str, key: str | None) -> bool:
    """Return whether a job with this task and key is a step of a flow."""
    return "/" in task and key is not None and key.startswith(FLOW_KEY_PREFIX)


def spend(now: float, previous: RateLimitReply, request: RateLimitRequest, *, came_back: bool) -> RateLimitReply:
    """Return the state of a limiter after one more request at ``now`` (seconds).

    ``came_back`` means that the holder has waited before. Such a holder passes as soon as a window has room, and takes
    a new ticket otherwise, so that each later window is filled. A new holder does not pass while others wait.
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
