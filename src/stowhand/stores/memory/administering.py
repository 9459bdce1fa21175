"""The memory store's administration of many jobs: the last lines of "what each call does in each state", as code.

A live lease is never touched. One that has expired is: the epoch moves on, so that its holder is told it lost the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from stowhand.jobs.job import Job, State
from stowhand.jobs.lease import Lease
from stowhand.protocols.queue_store import Reschedule
from stowhand.stores.memory import leasing
from stowhand.stores.memory.rows import Row, Rows


def complete(rows: Rows, job_ids: Sequence[int], now: datetime) -> list[Job]:
    """As if they had been worked off."""
    changed = list(actionable(rows, job_ids, now))
    for row in changed:
        fence_out(row)
        rows.finish(row, State.COMPLETED, now)
    return [row.job() for row in changed]


def fail(rows: Rows, job_ids: Sequence[int], reason: str, now: datetime) -> list[Job]:
    """For good. What had failed before stays finished when it was."""
    changed = list(actionable(rows, job_ids, now))
    for row in changed:
        fence_out(row)
        row.attempts, row.last_error, row.updated_at = row.max_attempts, reason, now
        rows.finish(row, State.FAILED, row.finished_at or now)
    return [row.job() for row in changed]


def reschedule(rows: Rows, job_ids: Sequence[int], to: Reschedule, now: datetime) -> list[Job]:
    """The given details; the state follows from the numbers. An expired lease is reset first, as the sweep would."""
    changed = list(actionable(rows, job_ids, now))
    for row in changed:
        if row.state is State.PROCESSING:
            leasing.reset(rows, [Lease(row.id, str(row.token), row.epoch)], now)
        if row.state is not State.CANCELED:
            set_details(row, to, now)
    rows.news = rows.news or bool(changed)
    return [row.job() for row in changed]


def set_details(row: Row, to: Reschedule, now: datetime) -> None:
    """Of a row that waits or has failed."""
    row.run_at = row.run_at if to.run_at is None else to.run_at
    row.priority = row.priority if to.priority is None else to.priority
    row.max_attempts = row.max_attempts if to.max_attempts is None else to.max_attempts
    row.attempts = min(row.attempts if to.attempts is None else to.attempts, row.max_attempts)
    row.updated_at = now
    gives_attempts = to.attempts is not None or to.max_attempts is not None
    if gives_attempts:
        row.loses_retries = None
    if row.attempts >= row.max_attempts and row.waits():
        row.state, row.finished_at = State.FAILED, now
    elif row.attempts < row.max_attempts and row.state is State.FAILED and gives_attempts:
        row.state, row.finished_at, row.resets, row.cancel_requested = State.QUEUED, None, 0, False


def force_unlock(rows: Rows, workers: Sequence[str], now: datetime) -> list[Job]:
    """Take back what these workers hold, dead or alive."""
    held = [(row, lease) for row, lease in leasing.running(rows) if row.worker in workers]
    for _, lease in held:
        leasing.reset(rows, [lease], now)
    return [row.job() for row, _ in held]


def actionable(rows: Rows, job_ids: Sequence[int], now: datetime) -> Iterator[Row]:
    """The live rows of these ids, in order, but those under a live lease."""
    for job_id in sorted(set(job_ids)):
        row = rows.live.get(job_id)
        if row is not None and (row.lease_until is None or row.lease_until < now):
            yield row


def fence_out(row: Row) -> None:
    """Whoever holds it does so no longer."""
    row.epoch += row.token is not None
