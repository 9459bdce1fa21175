"""Actions on one job or on many, at most 200 in one transaction. docs/reference/states.md lists their effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from stowhand.jobs.failed_attempts import BY_HAND, WORKER_DIED, AttemptEnd
from stowhand.jobs.job import Job, State
from stowhand.jobs.lifecycle import WAITING_STATES
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
from stowhand.stores.sqlite.queue import finish
from stowhand.stores.sqlite.queue.cancellation import cancel_children, cancel_waiting
from stowhand.stores.sqlite.queue.children import NO_RESULT, End, record_ends
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import to_datetime, to_micros
from stowhand.stores.sqlite.queue.on_failure import enqueue_reports
from stowhand.stores.sqlite.queue.producer import Producer, get
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.transaction import Transaction

T = TypeVar("T")
MAX_JOBS_PER_TRANSACTION = 200
"""More jobs take several transactions, so that other writers can run in between."""
JobAndToken = tuple[int, str | None]
"""The id of a job, and its token if a worker holds it."""
_REFUSAL_REASONS = {
    ("retry", State.PROCESSING): "it is running; cancel it first, or wait until it has ended",
    ("retry", State.COMPLETED): "it completed; enqueue it again instead",
    ("cancel", State.CANCELED): "it is canceled already",
    ("cancel", State.FAILED): "it has failed already; remove it, or retry it",
    ("cancel", State.COMPLETED): "it has completed already",
    ("remove", State.PROCESSING): "it is running; cancel it instead",
    ("remove", State.COMPLETED): "it completed; the history is pruned by its age",
}
"""The reasons why an operation leaves a job in this state unchanged."""


class Administrator:
    """Administrator of jobs. Each call runs one of the functions below, in one transaction for each page of jobs."""

    def __init__(self, connections: Connections, producer: Producer) -> None:
        self._connections = connections
        self.add_built_in = producer.add_built_in

    async def retry(self, job_id: int) -> Answer:
        """Make the job due now."""
        return await self._connections.write(lambda tx: retry(tx, job_id), wakes=True)

    async def cancel(self, job_id: int) -> Answer:
        """Cancel a waiting job at once. The worker cancels a running one."""
        return await self._connections.write(lambda tx: cancel(tx, job_id))

    async def remove(self, job_id: int) -> Answer:
        return await self._connections.write(lambda tx: remove(tx, job_id))

    async def remove_key(self, key: str) -> Answer:
        """Delete the job that holds the key."""
        return await self._connections.write(lambda tx: remove_key(tx, key))

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return await self._act(job_ids, lambda tx, ids: [retry(tx, job_id) for job_id in ids])

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return await self._act(job_ids, lambda tx, ids: [cancel(tx, job_id) for job_id in ids])

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return await self._act(job_ids, lambda tx, ids: [remove(tx, job_id) for job_id in ids])

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        """Retry only the failed ones of these jobs. Return their ids."""
        return await self._act(job_ids, retry_failed)

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        return await self._act(job_ids, complete)

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> Sequence[Job]:
        """Fail these jobs permanently, with attempts = max_attempts."""
        return await self._act(job_ids, partial(fail, reason=validate_reason(reason)))

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        return await self._act(job_ids, partial(reschedule, to=validate_reschedule(to)))

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Reset the jobs that these workers hold now, whether the workers are running or lost."""
        names = as_json(validate_workers(workers))
        tokens = dict(await self._connections.read(lambda tx: tx.rows("held_by_workers", workers=names)))
        return await self._act(
            list(tokens), lambda tx, ids: reset_held(tx, [(job_id, tokens[job_id]) for job_id in ids])
        )

    async def _act(
        self, job_ids: Sequence[int], act: Callable[[Transaction, Sequence[int]], Sequence[T]]
    ) -> Sequence[T]:
        results: list[T] = []
        ids = validate_ids(job_ids)
        for start in range(0, len(ids), MAX_JOBS_PER_TRANSACTION):

            def page(
                tx: Transaction, ids: Sequence[int] = ids[start : start + MAX_JOBS_PER_TRANSACTION]
            ) -> Sequence[T]:
                return act(tx, ids)

            results += await self._connections.write(page, wakes=True)
        return results


def retry(tx: Transaction, job_id: int) -> Answer:
    """Make a job due now with all its attempts. A canceled job is restored from the history."""
    state = _state(tx, job_id)
    if (refusal := _refusal("retry", job_id, state)) is not None:
        return refusal
    tx.run("run_children_anew", ids=as_json([job_id]))
    if state is not State.CANCELED:
        tx.run("retry", id=job_id)
        return Answer(job_id, ActionResult.DONE)
    tx.run("revive", id=job_id)
    lost_key = tx.row("has_other_key", id=job_id)
    tx.run("forget", id=job_id)
    return Answer(job_id, ActionResult.DONE, "its key belongs to another job now, so it has none" if lost_key else "")


def retry_failed(tx: Transaction, job_ids: Sequence[int]) -> list[int]:
    """Make the failed ones of these jobs due now. Return their ids in order."""
    ids = sorted(tx.column("retry_failed", ids=as_json(job_ids)))
    tx.run("run_children_anew", ids=as_json(ids))
    return ids


def cancel(tx: Transaction, job_id: int) -> Answer:
    """Cancel a waiting job at once. The worker cancels a running one."""
    state = _state(tx, job_id)
    if (refusal := _refusal("cancel", job_id, state)) is not None:
        return refusal
    if state is State.PROCESSING:
        tx.run("ask_to_cancel", id=job_id)
        return Answer(job_id, ActionResult.ASKED, "it is running; its worker will stop it")
    cancel_waiting(tx, [job_id])
    return Answer(job_id, ActionResult.DONE)


def remove(tx: Transaction, job_id: int) -> Answer:
    """Delete a job that is not running."""
    state = _state(tx, job_id)
    if (refusal := _refusal("remove", job_id, state)) is not None:
        return refusal
    if state in WAITING_STATES:
        record_ends(tx, [End(job_id, error="it was removed")])
    tx.run("forget" if state is State.CANCELED else "delete_one", id=job_id)
    cancel_children(tx, [job_id])
    return Answer(job_id, ActionResult.DONE)


def remove_key(tx: Transaction, key: str) -> Answer:
    """Delete the job that holds the key. A running job only loses the key and its further attempts."""
    holder = tx.row("holder", key=validate_key(key))
    if holder is None:
        return Answer(None, ActionResult.MISSING, f"no live job has the key {key!r}")
    job_id, state = holder[:2]
    if state != State.PROCESSING:
        return remove(tx, job_id)
    tx.run("free_key", id=job_id)
    tx.run("lose_key", id=job_id, cause="removed")
    return Answer(job_id, ActionResult.DONE, "it is running; it ends without its key and will not run again")


def complete(tx: Transaction, job_ids: Sequence[int]) -> list[Job]:
    """Complete jobs as if their handlers had succeeded, except steps of flows.

    The jobs are returned even if no history is kept.
    """
    live_jobs = _live_jobs(tx, [job_id for job_id, _ in _actionable(tx, job_ids)])
    jobs = [job for job in live_jobs if not is_step(job.task, job.key)]
    ids = [job.id for job in jobs]
    record_ends(tx, [End(job.id, value=NO_RESULT) for job in jobs if job.parent_id is not None])
    tx.run("archive_completed" if tx.keeps_history else "clear_keys", ids=as_json(ids))
    tx.run("delete", ids=as_json(ids))
    return [_ended_job(tx, job, State.COMPLETED) for job in jobs]


def fail(tx: Transaction, job_ids: Sequence[int], reason: str) -> list[Job]:
    """Fail jobs without further attempts. A job that has failed before keeps its ``finished_at``."""
    ids = [job_id for job_id, _ in _actionable(tx, job_ids)]
    finish.record_failed_attempts(tx, ids, AttemptEnd.BY_HAND, BY_HAND, reason)
    tx.run("fail", ids=as_json(ids), reason=reason)
    enqueue_reports(tx, BY_HAND)
    jobs = _live_jobs(tx, ids)
    _record_failures(tx, jobs)
    cancel_children(tx, ids)
    return jobs


def reschedule(tx: Transaction, job_ids: Sequence[int], to: Reschedule) -> list[Job]:
    """Change the values that ``to`` sets; the state follows from the numbers of attempts.

    Jobs whose lease has expired are reset first, as in a sweep.
    """
    pairs = _actionable(tx, job_ids)
    reset_jobs = reset_held(tx, pairs, reports_failure=False)
    ids = [job_id for job_id, _ in pairs]
    numbers = {"attempts": to.attempts, "max_attempts": to.max_attempts}
    if failed_ids := [job.id for job in reset_jobs if job.state is State.FAILED]:
        tx.run("drop_reports_of_revived", ids=as_json(failed_ids), **numbers)
        enqueue_reports(tx, WORKER_DIED)
    if exhausted_ids := tx.column("failed_by_numbers", ids=as_json(ids), **numbers):
        finish.record_failed_attempts(tx, exhausted_ids, AttemptEnd.BY_HAND, BY_HAND, None)
    run_at = None if to.run_at is None else to_micros(to.run_at)
    tx.run("reschedule", **msgspec.structs.asdict(to) | {"ids": as_json(ids), "run_at": run_at})
    if to.attempts is not None or to.max_attempts is not None:
        tx.run("run_children_anew", ids=as_json(ids))
    enqueue_reports(tx, BY_HAND)
    canceled = [job for job in reset_jobs if job.state is State.CANCELED]
    live_jobs = _live_jobs(tx, ids)
    _record_failures(tx, live_jobs)
    cancel_children(tx, exhausted_ids)
    return sorted(canceled + live_jobs, key=lambda job: job.id)


def _record_failures(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Record the ends of those of the jobs that are failed children."""
    failed = [job for job in jobs if job.parent_id is not None and job.state is State.FAILED]
    record_ends(tx, [End(job.id, error=job.last_error or job.state.value) for job in failed])


def reset_held(tx: Transaction, pairs: Sequence[JobAndToken], *, reports_failure: bool = True) -> list[Job]:
    """Reset those of the jobs that are still held, and return them. ``reports_failure``: see ``finish.reset``."""
    jobs = []
    for job_id, token in pairs:
        held = None if token is None else finish.find_held(tx, job_id, token)
        if held is None:
            continue
        before = get(tx, job_id)
        reset = finish.reset(tx, held, reports_failure=reports_failure)
        # A job with a cancellation request is canceled; without a history, its row no longer exists.
        job = get(tx, job_id) or (before and _ended_job(tx, before, reset.state))
        assert job is not None
        jobs.append(job)
    return jobs


def _actionable(tx: Transaction, job_ids: Sequence[int]) -> list[JobAndToken]:
    return [(job_id, token) for job_id, token in tx.rows("actionable", ids=as_json(job_ids))]


def _live_jobs(tx: Transaction, ids: Sequence[int]) -> list[Job]:
    return [to_job(row) for row in tx.rows("live_jobs", ids=as_json(ids))]


def _ended_job(tx: Transaction, job: Job, state: State) -> Job:
    return msgspec.structs.replace(job, state=state, finished_at=to_datetime(tx.now.wall), worker=None)


def _state(tx: Transaction, job_id: int) -> State | None:
    row = tx.row("state", id=validate_id(job_id))
    return None if row is None else State(row[0])


def _refusal(operation: str, job_id: int, state: State | None) -> Answer | None:
    """Return the refusal for a job in this state (``None``: no such job), or ``None`` if the operation is allowed."""
    if state is None:
        return Answer(job_id, ActionResult.MISSING, f"there is no job {job_id}")
    reason = _REFUSAL_REASONS.get((operation, state))
    if reason is None:
        return None
    return Answer(job_id, ActionResult.UNCHANGED if state is State.CANCELED else ActionResult.REFUSED, reason)
