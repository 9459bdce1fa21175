"""Workflows: what a store keeps for the later attempts of a job.

A *step* is a value that an attempt has recorded under a name. A *wait* is a step as well: the settlement that starts
the wait records it, without a value, and its end records the value. The children of a step record theirs when they end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

import msgspec

from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease

STEP_OF_CHILDREN = -1
"""The place of the row that counts the children of a step. The children have the places from 0."""
MAX_STEPS = 10_000
"""Maximum number of steps of a job, without children."""
MAX_VALUE_BYTES = 1024 * 1024
"""Maximum size of a value as JSON text."""
MAX_STEP_NAME_CHARACTERS = 200
MAX_EVENT_NAME_CHARACTERS = 200
EVENT_RETENTION_SECONDS = 30 * 86_400.0
"""Time for which an event is kept for jobs that do not wait for it yet."""


class NewStep(msgspec.Struct, frozen=True):
    """A step to record."""

    name: str
    value: str | None = None
    """JSON text."""
    error: str | None = None
    """Why a wait has failed; it excludes ``value``."""


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded step of a job."""

    name: str
    place: int = 0
    """The place of a child in its step; ``STEP_OF_CHILDREN`` for the row that counts them."""
    value: str | None = None
    """JSON text. ``None``: it failed, or it is a wait that has not ended."""
    error: str | None = None
    """Why a child or a wait failed."""
    until: datetime | None = None
    """The end of a wait by the store's clock."""
    is_over: bool = False
    """Whether ``until`` has passed."""
    remaining: int | None = None
    """The number of children that have not ended; ``None`` for other steps."""
    at: datetime
    """The time of recording."""

    @property
    def is_recorded(self) -> bool:
        """Whether the step has a value or an error."""
        return self.value is not None or self.error is not None


class Workflows(Protocol):
    """Recorded steps and events. Raises StoreUnreachable; every call may be repeated."""

    async def record(self, steps: Sequence[tuple[Lease, NewStep]]) -> Sequence[bool]:
        """Record steps in one transaction. Return for each whether its lease holds the job; else it is not written.

        A step that has a value or an error already keeps it.
        """

    async def read(self, job_id: int) -> Sequence[RecordedStep]:
        """Return the recorded steps of a job, in the order in which they were recorded."""

    async def emit(self, event: str, payload: str, job_id: int | None = None) -> bool:
        """Emit an event for all jobs, or for one. Return whether it is the first with this name: only that one counts.

        The payload is strict JSON text. Jobs that wait for the event are due at once.
        """

    def emit_in(
        self, connection: object, event: str, payload: str, job_id: int | None = None
    ) -> bool | Awaitable[bool]:
        """Emit an event inside the caller's transaction (``Transactions.enqueue_in``)."""

    def record_in(self, connection: object, lease: Lease, step: NewStep) -> bool | Awaitable[bool]:
        """Record a step inside the caller's transaction, which locks the lease until it ends."""

    async def is_emitted(self, event: str, job_id: int | None = None) -> bool:
        """Return whether an event with this name is kept, for all jobs or for this one."""

    async def fork(self, job_id: int, step: str) -> Job | None:
        """Enqueue a copy of a job with the steps that were recorded before this one. ``None`` without such a job.

        Raises InvalidJob if the job has no such step.
        """


@runtime_checkable
class ProofKeeper(Protocol):
    """Workflows that need a proof of each lease, which only the claim returns. Optional for stores.

    The process that has claimed a job passes the proof to the process that runs it.
    """

    def proof_of(self, lease: Lease) -> str:
        """Return the proof of a held lease; empty if it is not held."""

    def keep_proof(self, lease: Lease, proof: str) -> None:
        """Use this proof for calls about the lease, until it is dropped."""

    def drop_proof(self, lease: Lease) -> None:
        """Forget the proof of an ended attempt."""


def proof_keeper(workflows: object) -> ProofKeeper | None:
    """Return the workflows of a store if they need proofs of leases."""
    return workflows if isinstance(workflows, ProofKeeper) else None
