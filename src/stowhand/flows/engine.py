"""Protocol of a flow's engine, which stores its jobs. Two packages implement it: ``redis`` and ``queue`` (SQL, memory).

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
from stowhand.protocols.options import DEFAULT_LEASE_SECONDS
from stowhand.protocols.queue_store import Answer
from stowhand.protocols.store import Store
from stowhand.stores.group_commit import GroupCommit

Q = TypeVar("Q")
A = TypeVar("A")


def grouped(call: Callable[[Sequence[Q]], Awaitable[Sequence[A]]]) -> Callable[[Q], Coroutine[Any, Any, A]]:
    """Return a function whose concurrent requests share calls of ``call``. A refused request fails alone."""

    async def alone(request: Q) -> A:
        (answer,) = await call([request])
        return answer

    return GroupCommit(
        alone, lambda take_jobs: call(take_jobs()), _is_refusal, lambda error, _: error, size=lambda _: 1
    ).enqueue


def _is_refusal(error: Exception) -> bool:
    """Return whether the error proves that nothing was done."""
    is_unknown = isinstance(error, StoreUnreachable | OutcomeUnknown)
    return isinstance(error, StoreError | ValueError) and not is_unknown


class NewFlowJob(msgspec.Struct, frozen=True, kw_only=True):
    """Validated job to be created by an engine."""

    values: Mapping[str, str]
    """JSON text by attribute, without null values."""
    lookups: tuple[tuple[str, str], ...] = ()
    """(attribute, value as text): lookup values of the job."""
    priority: int = 1
    correlation_id: str | None = None
    delay: float | None = None
    """Seconds until the job may start."""
    key: str | None = None
    """If a job with this key has not ended, its id is returned and nothing is created."""
    carried: Mapping[str, str | None] = {}
    """Trace context of the creator (propagation.py)."""


class QueueCount(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of jobs in a queue at a priority, by state."""

    queue: str
    priority: int
    waiting: int = 0
    processing: int = 0
    delayed: int = 0
    parked: int = 0
    """Parents that wait for their children."""
    failed: int = 0
    """Redis: jobs that our workers have recorded, all at the first priority."""
    paused: bool = False
    """Whether the queue is paused, so that no job is claimed."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a job in its queue."""

    job_id: str
    queue: str
    priority: int
    state: str
    """``waiting``, ``processing``, ``delayed`` or ``parked``."""
    position: int
    """Number in the order of service, from 1."""
    ready_at: float | None = None
    """Epoch seconds by the store's clock at which a delayed job is ready."""


class Engine(Protocol):
    """Engine of a flow on one store."""

    shape: FlowShape
    sweep_interval: float
    """Interval of sweeps for jobs of lost workers."""
    handles_child_end: bool
    """Whether ``on_child_end`` must be called after a child's end; otherwise its settlement wakes the parent."""

    retries_first: bool
    """Whether a job that is retried at once runs before the waiting jobs."""

    @property
    def wait_for_commit(self) -> Callable[[], Awaitable[object]] | None:
        """Function that returns after a commit since its last call; ``None`` if the store cannot notice commits."""

    @property
    def description(self) -> str:
        """Address of the store, without a password."""

    async def open(self) -> Sequence[str]:
        """Connect and check. Return warnings to log. Raises StoreUnreachable, SchemaError, ConfigurationError."""

    async def claim_queues(self) -> None:
        """Claim the queues for this flow, before jobs are created or executed.

        Raises ConfigurationError where a queue belongs to another flow."""

    async def close(self) -> None:
        """Close every connection. May be repeated."""

    # -- jobs

    async def create(self, job: NewFlowJob) -> str:
        """Store a job with its lookups and put it into the entry queue, atomically. Return its id."""

    async def create_many(self, jobs: Sequence[NewFlowJob]) -> Sequence[str]:
        """Create many in few round trips; all or none on SQL, each atomically on Redis."""

    async def delete(self, job_id: str) -> bool:
        """Delete the job, its children and its lookups. A running job is not interrupted; its result is dropped.

        Return ``False`` also for a child: it is deleted with its parent, which gathers its result.
        """

    async def ids(self, attribute: str, value: str) -> Sequence[str]:
        """Return the ids of the jobs with this lookup value, oldest first."""

    async def read(self, job_ids: Sequence[str], *, resolve_children: bool) -> Sequence[dict[str, Any] | None]:
        """Return all attributes of each job, decoded, with its ``id``; ``None`` for a job that does not exist."""

    async def views(self, job_ids: Sequence[str]) -> Sequence[FlowJobView | None]:
        """Return the state and attributes of each job; ``None`` for one that does not exist."""

    async def children(self, job_id: str, queue: str, start: int, limit: int) -> Sequence[dict[str, Any]]:
        """Return a page of the attributes of a parent's children, in the order of their creation."""

    async def retry(self, job_ids: Sequence[str]) -> Sequence[Answer]:
        """Put failed jobs back into the queue in which they failed, with all retries. Refused for jobs that have not
        failed.
        """

    async def cancel(self, job_id: str) -> Answer:
        """Cancel a waiting job; request a running one to stop.

        After the request the job does not continue, unless it completes its last queue or fails.
        """

    async def failed(self, queue: str | None, *, after: str | None, limit: int) -> Sequence[str]:
        """Return the ids of failed jobs after the id ``after``, in their order, including children."""

    async def pause(self, queue: FlowQueue) -> bool:
        """Stop all processes from claiming jobs of this queue. Return ``False`` if it was paused already."""

    async def resume(self, queue: FlowQueue) -> bool:
        """Allow all processes to claim its jobs again. Return ``False`` if it was not paused."""

    # -- monitoring

    async def counts(self) -> Sequence[QueueCount]:
        """Return the counts of every queue at every priority."""

    async def positions(self, queue: str, limit: int) -> Sequence[Position]:
        """Return the positions of the next jobs of a queue, and its running jobs."""

    async def sweep(self) -> int:
        """Reset the jobs of lost workers, as every worker also does. Return their number."""

    # -- work

    def task(self, queue: FlowQueue) -> str:
        """Return the task name of this queue's jobs."""

    def store(
        self, queue: FlowQueue, lock_time: float, wait_timeout: float, lease: float = DEFAULT_LEASE_SECONDS
    ) -> Store[Any]:
        """Return the store for the workers of one queue. The worker opens and closes it. Times are seconds."""

    def job(self, queue: FlowQueue, ctx: Attempt[Any], record: Any) -> FlowJob:
        """Return the claimed job. Raises UndecodablePayload, which fails only that job."""

    async def check_start(self, queue: FlowQueue, job: FlowJob) -> Outcome | None:
        """Return an outcome if the worker function must not run now (a limiter delays the job); ``None``: run it."""

    async def complete(
        self, queue: FlowQueue, job: FlowJob, fields: Mapping[str, str], next_queue: str | None
    ) -> Outcome:
        """Complete the step: keep these attributes (JSON text), and move the job to the next queue (``None``: none)."""

    def encode(self, result: object) -> str:
        """Return the result of ``complete`` or ``parent`` as JSON text."""

    def postpone(self, queue: FlowQueue, job: FlowJob, delay: float, reason: str) -> Outcome:
        """Return the outcome of a DelayError. ``delay`` is in seconds."""

    async def parent(self, queue: FlowQueue, job: FlowJob) -> Outcome:
        """Run a parent: fan out; gather if all children have ended; otherwise keep waiting without a slot."""

    async def on_child_end(self, queue: FlowQueue, job: FlowJob) -> None:
        """Wake the parent if this was the last child. Called after the child's end was recorded."""
