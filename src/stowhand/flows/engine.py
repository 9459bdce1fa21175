"""What a flow needs of the store of its jobs. Two packages implement it: ``redis`` and ``queue`` (SQL, memory).

A worker of a flow is the generic worker on ``Engine.store(queue)`` with a handler that calls the worker function
(step_handler.py). The engine decides what a step reads and how a job moves on: in Redis the store's scripts move it;
on a queue store the next step is enqueued by the settlement of this one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from stowhand.errors import OutcomeUnknown, StoreError, StoreUnreachable
from stowhand.flows.job import FlowJob, FlowJobView
from stowhand.jobs.lifecycle import Outcome
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.flow_shape import FlowQueue, FlowShape
from stowhand.protocols.options import LEASE
from stowhand.protocols.queue_store import Answer
from stowhand.protocols.store import Store
from stowhand.stores.group_commit import GroupCommit

Q = TypeVar("Q")
A = TypeVar("A")


def grouped(call: Callable[[Sequence[Q]], Awaitable[Sequence[A]]]) -> Callable[[Q], Coroutine[Any, Any, A]]:
    """One request of many at the same time, which share calls of ``call``. A request that is refused fails alone."""

    async def alone(request: Q) -> A:
        (answer,) = await call([request])
        return answer

    return GroupCommit(
        alone, lambda board: call(board()), _is_refusal, lambda error, _: error, size=lambda _: 1
    ).enqueue


def _is_refusal(error: Exception) -> bool:
    """Nothing was done."""
    is_unknown = isinstance(error, StoreUnreachable | OutcomeUnknown)
    return isinstance(error, StoreError | ValueError) and not is_unknown


class NewFlowJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be created, checked by the flow before an engine sees it."""

    values: Mapping[str, str]
    """JSON text by attribute, without those that are null."""
    lookups: tuple[tuple[str, str], ...] = ()
    """(attribute, value as text): what the job can be found by."""
    priority: int = 1
    correlation_id: str | None = None
    delay: float | None = None
    """Seconds until the job may start."""
    key: str | None = None
    """While a job of the flow with this key has not ended, its id is returned and nothing is created."""
    carried: Mapping[str, str | None] = {}
    """The creator's trace context, where it is traced (propagation.py)."""


class QueueCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are in one queue at one priority, by state."""

    queue: str
    priority: int
    waiting: int = 0
    processing: int = 0
    delayed: int = 0
    parked: int = 0
    """Parents that wait for their children."""
    failed: int = 0
    """Redis: those that our workers have recorded, all of them at the first priority."""
    paused: bool = False
    """The queue is paused: no job of it is claimed."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A job's place in its queue."""

    job_id: str
    queue: str
    priority: int
    state: str
    """``waiting``, ``processing``, ``delayed`` or ``parked``."""
    position: int
    """From 1, in the order in which they will be served; 1 is next."""
    ready_at: float | None = None
    """Of a delayed job: seconds since the epoch, by the store's clock."""


class Engine(Protocol):
    """A flow on one store."""

    shape: FlowShape
    sweep_interval: float
    """Seconds between two sweeps for jobs of dead workers."""
    handles_child_end: bool
    """``on_child_end`` must be called after a child has ended; else the settlement of the child wakes the parent."""

    retries_first: bool
    """A job that is retried at once goes before the jobs that wait."""

    @property
    def hear(self) -> Callable[[], Awaitable[object]] | None:
        """Returns after a commit that came since its last call; ``None``: the store does not hear of commits."""

    @property
    def description(self) -> str:
        """The store's address, for people; without a password."""

    async def open(self) -> Sequence[str]:
        """Connect and check. Gives warnings to be logged. Raises StoreUnreachable, SchemaError, ConfigurationError."""

    async def take(self) -> None:
        """Claim the queues for this flow, before jobs are created or executed.

        Raises ConfigurationError where a queue belongs to another flow."""

    async def close(self) -> None:
        """Close every connection. Harmless when repeated."""

    # -- jobs

    async def create(self, job: NewFlowJob) -> str:
        """Store it, make it findable, and put it into the entry queue, atomically; returns its id."""

    async def create_many(self, jobs: Sequence[NewFlowJob]) -> Sequence[str]:
        """Create many in few round trips; all or none on SQL, each atomically on Redis."""

    async def delete(self, job_id: str) -> bool:
        """Delete the job, its children and its lookups. A running job is not interrupted; its result is dropped.

        ``False`` also for a child: it is deleted with its parent, which is still to gather its result.
        """

    async def ids(self, attribute: str, value: str) -> Sequence[str]:
        """Ids of the jobs with this lookup value, oldest first."""

    async def read(self, job_ids: Sequence[str], *, resolve_children: bool) -> Sequence[dict[str, Any] | None]:
        """All attributes of each job, decoded, with its ``id``; ``None`` for one that does not exist (any more)."""

    async def views(self, job_ids: Sequence[str]) -> Sequence[FlowJobView | None]:
        """State and attributes of each; ``None`` for one that does not exist."""

    async def children(self, job_id: str, queue: str, start: int, limit: int) -> Sequence[dict[str, Any]]:
        """A page of the attributes of a parent's children, in the order in which they were made."""

    async def retry(self, job_ids: Sequence[str]) -> Sequence[Answer]:
        """Put failed jobs back into the queue in which they failed, with all retries. Refused for jobs that have not
        failed.
        """

    async def cancel(self, job_id: str) -> Answer:
        """End a waiting job as canceled; ask a running one to stop.

        Whatever its execution ends with, the job does not go on, unless it completes its last queue or fails.
        """

    async def failed(self, queue: str | None, *, after: str | None, limit: int) -> Sequence[str]:
        """Ids of failed jobs, children included, in id order, after ``after``."""

    async def pause(self, queue: FlowQueue) -> bool:
        """Let no further job of this queue be claimed by any process; ``False``: it was paused already."""

    async def resume(self, queue: FlowQueue) -> bool:
        """Let its jobs be claimed again; ``False``: it was not paused."""

    # -- looking

    async def counts(self) -> Sequence[QueueCount]:
        """Every queue at every priority."""

    async def positions(self, queue: str, limit: int) -> Sequence[Position]:
        """The next jobs of a queue, and those that run."""

    async def sweep(self) -> int:
        """Take back the jobs of dead workers, as every worker also does; returns how many they were."""

    # -- work

    def task(self, queue: FlowQueue) -> str:
        """The task name of this queue's jobs."""

    def store(self, queue: FlowQueue, lock_time: float, wait_timeout: float, lease: float = LEASE) -> Store[Any]:
        """The store for the workers of one queue; the worker opens and closes it. Times are seconds."""

    def job(self, queue: FlowQueue, ctx: Attempt[Any], record: Any) -> FlowJob:
        """The claimed job. Raises UndecodablePayload: that job alone fails."""

    async def check_start(self, queue: FlowQueue, job: FlowJob) -> Outcome | None:
        """Before the worker function: an outcome instead of it (a limiter delays the job, say); ``None``: go on."""

    async def complete(
        self, queue: FlowQueue, job: FlowJob, fields: Mapping[str, str], next_queue: str | None
    ) -> Outcome:
        """The step is done: keep these attributes (JSON text) and move the job on (``None``: it is complete)."""

    def encode(self, result: object) -> str:
        """The result of an outcome of ``complete`` or ``parent``, as JSON text."""

    def postpone(self, queue: FlowQueue, job: FlowJob, delay: float, reason: str) -> Outcome:
        """The worker function raised DelayError: ``delay`` seconds."""

    async def parent(self, queue: FlowQueue, job: FlowJob) -> Outcome:
        """A parent's work: fan out; or gather, when all children have ended; or keep waiting, without a slot."""

    async def on_child_end(self, queue: FlowQueue, job: FlowJob) -> None:
        """After a child's end was recorded: wake its parent, if this was the last child."""
