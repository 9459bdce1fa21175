"""Recorded steps and events of workflows, on the store's connections or in a transaction of the caller.

Waits and children are written by settlements: see waits.py and children.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from stowhand.errors import InvalidJob
from stowhand.jobs.fields import OPTION_FIELDS
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease
from stowhand.protocols.validation import validate_id
from stowhand.protocols.workflows import NewStep, RecordedStep
from stowhand.stores.sqlite.queue import enqueue, error_translation
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import to_datetime
from stowhand.stores.sqlite.queue.producer import get
from stowhand.stores.sqlite.queue.rows import as_json, check_text
from stowhand.stores.sqlite.queue.transaction import Transaction

T = TypeVar("T")
ALL_JOBS, NO_JOB = 0, -1
"""The ``job_id`` of an event for all jobs, and of an event for an id that no job can have."""
EPOCH_OF_FORK = 1
"""A worker reads no steps of a job that it claims for the first time, and the first claim of a fork has the epoch 2."""


class WriteIn(Protocol):
    """Runs work in the transaction of a caller's connection. Raises ConfigurationError."""

    def __call__(self, connection: object, work: Callable[[Transaction], T], /, *, call: str) -> T | Awaitable[T]: ...


class SqliteWorkflows:
    """The steps and events of one store."""

    def __init__(self, connections: Connections, write_in: WriteIn) -> None:
        self._connections = connections
        self._write_in = write_in

    async def record(self, steps: Sequence[tuple[Lease, NewStep]]) -> Sequence[bool]:
        """Record steps in one transaction. Return for each whether its lease holds the job."""
        return await self._connections.write(lambda tx: record(tx, steps)) if steps else []

    async def read(self, job_id: int) -> Sequence[RecordedStep]:
        """Return the recorded steps of a job, in the order in which they were recorded."""
        return await self._connections.read(lambda tx: read(tx, job_id))

    async def emit(self, event: str, payload: str, job_id: int | None = None) -> bool:
        """Emit an event for all jobs, or for one. Return whether it is the first with this name."""
        return await self._connections.write(lambda tx: emit(tx, event, payload, job_id), wakes=True)

    def emit_in(
        self, connection: object, event: str, payload: str, job_id: int | None = None
    ) -> bool | Awaitable[bool]:
        """Emit an event inside the transaction of the caller's connection."""
        return self._write_in(connection, lambda tx: emit(tx, event, payload, job_id), call="emit_in")

    def record_in(self, connection: object, lease: Lease, step: NewStep) -> bool | Awaitable[bool]:
        """Record a step inside the transaction of the caller's connection. It is the only writer until it ends."""
        return self._write_in(connection, lambda tx: record(tx, [(lease, step)])[0], call="record_in")

    async def is_emitted(self, event: str, job_id: int | None = None) -> bool:
        """Return whether an event with this name is kept, for all jobs or for this one."""
        return await self._connections.row("event", event=event, id=_target(job_id)) is not None

    async def fork(self, job_id: int, step: str) -> Job | None:
        """Enqueue a copy of a job with the steps before this one. ``None`` without such a job. Raises InvalidJob."""
        return await self._connections.write(lambda tx: fork(tx, job_id, step), wakes=True)


def record(tx: Transaction, steps: Sequence[tuple[Lease, NewStep]]) -> list[bool]:
    """Record the steps whose leases hold their jobs. Return for each whether its lease does."""
    leases = as_json([lease.pair for lease, _ in steps])
    epochs = {(job_id, token): epoch for job_id, token, epoch in tx.rows("held_epochs", leases=leases)}
    rows = [
        (lease.job_id, step.name, step.value, step.error, epochs[lease.pair], tx.now.wall)
        for lease, step in steps
        if lease.pair in epochs
    ]
    tx.run_many("record_step", rows)
    return [lease.pair in epochs for lease, _ in steps]


def read(tx: Transaction, job_id: int) -> list[RecordedStep]:
    """Return the recorded steps of a job, in the order of their recording."""
    return [_to_step(row, tx.now.wall) for row in tx.rows("steps", id=validate_id(job_id))]


def emit(tx: Transaction, event: str, payload: str, job_id: int | None) -> bool:
    """Keep the event unless it was emitted before, end the waits for it, and make their jobs due."""
    check_text("the event", event)
    check_text("the payload", payload)
    target = _target(job_id)
    if not tx.run("add_event", event=event, payload=payload, id=target).rowcount:
        return False
    if waiting_ids := tx.column("waiting_for_event", event=event, id=target):
        ids = as_json(waiting_ids)
        tx.run("end_waits", ids=ids, event=event, value=payload)
        tx.run("wake_jobs", ids=ids)
    return True


def fork(tx: Transaction, job_id: int, step: str) -> Job | None:
    """Enqueue a copy of a job, with copies of the steps before this one."""
    job = get(tx, job_id)
    if job is None:
        return None
    (place,) = tx.row("step_place", id=job_id, step=step)
    if place is None:
        raise InvalidJob(f"job {job_id} has no step {step!r}")
    options: dict[str, Any] = {field.name: getattr(job, field.name) for field in OPTION_FIELDS if field.name != "key"}
    with error_translation.refusing():
        fork_id = enqueue.add(tx, NewJob(task=job.task, payload=job.payload_text, **options))
    tx.run("set_epoch", id=fork_id, epoch=EPOCH_OF_FORK)
    tx.run("copy_steps", id=job_id, fork_id=fork_id, place=place)
    return get(tx, fork_id)


def _target(job_id: int | None) -> int:
    return ALL_JOBS if job_id is None else validate_id(job_id) or NO_JOB


def _to_step(row: tuple[Any, ...], now: int) -> RecordedStep:
    name, place, value, error, until, remaining, at = row
    return RecordedStep(
        name=name,
        place=place,
        value=value,
        error=error,
        until=None if until is None else to_datetime(until),
        is_over=until is not None and until <= now,
        remaining=remaining,
        at=to_datetime(at),
    )
