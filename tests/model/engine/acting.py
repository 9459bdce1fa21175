"""What each call does to a job in each state: to one job, and to many at once.

One job: a refusal is an answer. Many: what cannot be changed is left out of the reply. Acting on many never touches a
live lease, except in ``force_unlock``; for an expired one the epoch moves on, so that its worker learns of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.failed_attempts import BY_HAND, WORKER_DIED, AttemptEnd
from stowhand.jobs.job import Job, State
from stowhand.protocols.flow_tables import is_step
from stowhand.protocols.queue_store import ActionResult, Answer, Reschedule
from stowhand.protocols.validation import (
    validate_id,
    validate_ids,
    validate_key,
    validate_reason,
    validate_reschedule,
    validate_workers,
)
from tests.model.engine import enqueueing, leasing
from tests.model.engine.replies import refusal
from tests.model.engine.rows import Row, Rows, Transaction


class Administrator:
    """Each call is one step."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def retry(self, job_id: int) -> Answer:
        with self._transaction() as rows:
            return retry(rows, job_id)

    async def cancel(self, job_id: int) -> Answer:
        """At once if it waits; a running one is canceled by its worker."""
        with self._transaction() as rows:
            row = rows.find(validate_id(job_id))
            if (refused := refusal("cancel", job_id, None if row is None else row.state)) is not None:
                return refused
            assert row is not None
            if row.state is State.PROCESSING:
                row.cancel_requested = True
                return Answer(job_id, ActionResult.ASKED, "it is running; its worker will stop it")
            rows.finish(row, State.CANCELED)
            return Answer(job_id, ActionResult.DONE)

    async def remove(self, job_id: int) -> Answer:
        with self._transaction() as rows:
            return remove(rows, job_id)

    async def remove_key(self, key: str) -> Answer:
        with self._transaction() as rows:
            return remove_key(rows, key)

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        """As if their handlers had succeeded."""
        with self._transaction() as rows:
            changed = [row for row in actionable(rows, job_ids) if not is_step(row.task, row.key)]
            for row in changed:
                fence_out(row)
                rows.finish(row, State.COMPLETED)
            return [row.job() for row in changed]

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> Sequence[Job]:
        """Without further attempts. A job that had failed before keeps its ``finished_at``."""
        why = validate_reason(reason)
        with self._transaction() as rows:
            changed = actionable(rows, job_ids)
            for row in changed:
                rows.keep_try(row, AttemptEnd.BY_HAND, BY_HAND, why)
                fence_out(row)
                row.attempts, row.last_error, row.updated_at = row.max_attempts, why, rows.now
                is_new = row.state is not State.FAILED
                rows.finish(row, State.FAILED, row.finished_at)
                if is_new:
                    enqueueing.tell_of_failure(rows, row, BY_HAND)
            return [row.job() for row in changed]

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        """The given details; the state follows from the numbers. An expired lease is reset first, as by the sweep."""
        value = validate_reschedule(to)
        with self._transaction() as rows:
            changed = actionable(rows, job_ids)
            for row in changed:
                died = row.state is State.PROCESSING
                if died:
                    leasing.reset(rows, [row.lease()], tells=False)
                if row.state is not State.CANCELED:
                    waited = row.waits()
                    set_details(rows, row, value)
                    if row.state is State.FAILED and (waited or died):
                        enqueueing.tell_of_failure(rows, row, BY_HAND if waited else WORKER_DIED)
            return [row.job() for row in changed]

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Take back what these workers hold, dead or alive."""
        named = validate_workers(workers)
        with self._transaction() as rows:
            held = [row for row in rows.running() if row.worker in named]
            for row in held:
                leasing.reset(rows, [row.lease()])
            return [row.job() for row in held]


def retry(rows: Rows, job_id: int) -> Answer:
    """Due now, with all its attempts; a canceled job comes back out of the history."""
    row = rows.find(validate_id(job_id))
    if (refused := refusal("retry", job_id, None if row is None else row.state)) is not None:
        return refused
    assert row is not None
    keeps_key = rows.revive(row) if row.state is State.CANCELED else True
    row.state, row.run_at, row.finished_at = State.QUEUED, rows.now, None
    rows.begin_round(row)
    row.attempts, row.resets, row.expires_at = 0, 0, None
    row.cancel_requested, row.loses_retries = False, None
    return Answer(job_id, ActionResult.DONE, "" if keeps_key else "its key belongs to another job now, so it has none")


def remove(rows: Rows, job_id: int) -> Answer:
    """Delete a job that is not running."""
    row = rows.find(validate_id(job_id))
    if (refused := refusal("remove", job_id, None if row is None else row.state)) is not None:
        return refused
    assert row is not None
    rows.forget([row])
    return Answer(job_id, ActionResult.DONE)


def remove_key(rows: Rows, key: str) -> Answer:
    """Delete the holder of a key; a running one loses the key and will not run again."""
    row = rows.holder(validate_key(key))
    if row is None:
        return Answer(None, ActionResult.MISSING, f"no live job has the key {key!r}")
    if row.state is not State.PROCESSING:
        return remove(rows, row.id)
    rows.free_key(row)
    row.key, row.loses_retries = None, "removed"
    return Answer(row.id, ActionResult.DONE, "it is running; it ends without its key and will not run again")


def set_details(rows: Rows, row: Row, to: Reschedule) -> None:
    """Of a row that waits or has failed."""
    most = row.max_attempts if to.max_attempts is None else to.max_attempts
    attempts = min(row.attempts if to.attempts is None else to.attempts, most)
    if attempts >= most and row.waits():
        rows.keep_try(row, AttemptEnd.BY_HAND, BY_HAND, None)
    if row.expires_at is not None and to.run_at is not None:
        row.expires_at += to.run_at - row.run_at
    row.run_at = row.run_at if to.run_at is None else to.run_at
    row.priority = row.priority if to.priority is None else to.priority
    row.queue = row.queue if to.queue is None else to.queue
    row.attempts, row.max_attempts, row.updated_at = attempts, most, rows.now
    gives_attempts = to.attempts is not None or to.max_attempts is not None
    if gives_attempts:
        row.loses_retries = None
    if row.attempts >= row.max_attempts and row.waits():
        row.state, row.finished_at = State.FAILED, rows.now
        row.progress = row.progress_text = None
    elif row.attempts < row.max_attempts and row.state is State.FAILED and gives_attempts:
        row.state, row.finished_at, row.resets, row.cancel_requested = State.QUEUED, None, 0, False
        row.expires_at = None


def actionable(rows: Rows, job_ids: Sequence[int]) -> list[Row]:
    """The live rows of these ids, in order, but those under a live lease."""
    results = [rows.live.get(job_id) for job_id in validate_ids(job_ids)]
    return [row for row in results if row is not None and (row.lease_until is None or row.lease_until < rows.now)]


def fence_out(row: Row) -> None:
    """A worker that holds it loses it."""
    row.epoch += row.token is not None
