"""What a flow asks of the place where its jobs are kept. Two answer: ``on_redis`` and ``on_queue`` (SQL, memory).

A worker of a flow is the generic worker on ``Engine.store(line)`` with a handler that calls the worker function
(stepping.py). What a step reads, and what its end means, is the engine's: in Redis the store's scripts move the job on;
on a queue store the next step is enqueued by the settlement of this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from stowhand.flows.job import FlowJob
from stowhand.flows.view import FlowJobView
from stowhand.jobs.lifecycle import Outcome
from stowhand.protocols.flow_shape import FlowQueue, FlowShape
from stowhand.protocols.handler import Attempt
from stowhand.protocols.options import LEASE
from stowhand.protocols.queue_store import Answer
from stowhand.protocols.store import Store


class NewFlowJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be created, checked by the flow before an engine sees it."""

    values: Mapping[str, str]
    """JSON text by attribute; an attribute that is null is not there."""
    lookups: tuple[tuple[str, str], ...] = ()
    """(attribute, value as text): under what it can be found."""
    priority: int = 1
    correlation_id: str | None = None
    delay: float | None = None
    """Seconds until it may start."""
    carried: Mapping[str, str | None] = {}
    """Of whoever creates it, where that is traced (carried.py)."""


class QueueCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs stand in one queue at one priority."""

    queue: str
    priority: int
    waiting: int = 0
    processing: int = 0
    delayed: int = 0
    parked: int = 0
    """Parents that wait for their children."""
    failed: int | None = None
    """Where the engine can count them without looking at every job."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job stands."""

    job_id: str
    queue: str
    priority: int
    state: str
    """``waiting``, ``processing``, ``delayed`` or ``parked``."""
    position: int
    """From 1, in the order in which they will be served; 1 is next."""
    ready_at: float | None = None
    """Delayed ones: epoch seconds by the store's clock."""


class Engine(Protocol):
    """A flow at work somewhere."""

    shape: FlowShape
    sweep_interval: float
    """Seconds between two looks for what dead workers have left."""
    tells_parents: bool
    """The end of a child is to be told by ``left``; else the store does it in the step that records the end."""

    carries: bool
    """Somebody makes spans: a step's job carries the context of what has enqueued it."""

    @property
    def description(self) -> str:
        """Where it is, for people; never with a password."""

    async def open(self) -> Sequence[str]:
        """Connect and check. Gives warnings to be logged. Raises StoreUnreachable, SchemaError, ConfigurationError."""

    async def take(self) -> None:
        """Before jobs are created or worked on. Raises ConfigurationError where a queue is another flow's."""

    async def close(self) -> None:
        """Let every connection go. Harmless when repeated."""

    # -- jobs

    async def create(self, job: NewFlowJob) -> str:
        """Keep it, make it findable, and put it into the entry queue, all in one step; gives its id."""

    async def create_many(self, jobs: Sequence[NewFlowJob]) -> Sequence[str]:
        """Many in few round trips; all or none on SQL, each whole on Redis."""

    async def delete(self, job_id: str) -> bool:
        """Forget the job, its children and its lookups; what runs is not interrupted and leaves nothing behind."""

    async def ids(self, attribute: str, value: str) -> Sequence[str]:
        """Of the jobs with that lookup value, oldest first."""

    async def read(self, job_ids: Sequence[str], *, resolve_children: bool) -> Sequence[dict[str, Any] | None]:
        """Everything known of each job, decoded, with its ``id``; ``None`` for one that is not there (any more)."""

    async def stand(self, job_id: str) -> FlowJobView | None:
        """Where it stands, and all that is known of it; ``None``: it is not there."""

    async def children(self, job_id: str, queue: str, start: int, limit: int) -> Sequence[dict[str, Any]]:
        """A page of what is known of a parent's children, in the order in which they were made."""

    async def retry(self, job_ids: Sequence[str]) -> Sequence[Answer]:
        """Put failed jobs back into the queue in which they failed, retries 0. Refused for what has not failed."""

    async def failed(self, queue: str | None, *, after: str | None, limit: int) -> Sequence[str]:
        """Ids of failed jobs, children among them, in order, from behind ``after``.

        Redis: a scan, for people and not for programs.
        """

    # -- looking

    async def counts(self) -> Sequence[QueueCount]:
        """Every queue at every priority."""

    async def positions(self, queue: str, limit: int) -> Sequence[Position]:
        """Those next in line, and those that run."""

    async def sweep(self) -> int:
        """Return what dead workers have left, as every worker does by itself; how many jobs that were."""

    # -- work

    def task(self, queue: FlowQueue) -> str:
        """What claims of this queue are called."""

    def store(self, queue: FlowQueue, lock_time: float, wait_timeout: float, lease: float = LEASE) -> Store[Any]:
        """For the workers of one queue; opened, and closed, by the worker that it is made for. All in seconds."""

    def job(self, queue: FlowQueue, ctx: Attempt[Any], record: Any) -> FlowJob:
        """What was claimed. Raises UndecodablePayload: that job alone fails."""

    async def admit(self, queue: FlowQueue, job: FlowJob) -> Outcome | None:
        """Before the worker function: what is to become of the job instead (a limiter); ``None``: go on."""

    async def complete(
        self, queue: FlowQueue, job: FlowJob, fields: Mapping[str, str], next_queue: str | None
    ) -> Outcome:
        """The step is done: keep these attributes (JSON text) and move the job on (``None``: it is done)."""

    def encode(self, result: object) -> str:
        """The result of what ``complete`` and ``parent`` give, as JSON text."""

    def postpone(self, queue: FlowQueue, job: FlowJob, delay: float, reason: str) -> Outcome:
        """The worker function asked for a delay (seconds)."""

    async def parent(self, queue: FlowQueue, job: FlowJob) -> Outcome:
        """A parent's work: fan out; or gather, when all children have ended; or wait on, without a slot."""

    async def left(self, queue: FlowQueue, job: FlowJob) -> None:
        """After the end of the step was recorded: wake a parent that may go on now."""
