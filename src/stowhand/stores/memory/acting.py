"""The memory store's single-job actions: SEMANTICS' table "what each call does in each state", as code."""

from __future__ import annotations

from datetime import datetime

from stowhand.jobs.job import State
from stowhand.protocols.queue_store import Answer, Done
from stowhand.protocols.validation import validate_id, validate_key
from stowhand.stores.memory.rows import Row, Rows


def retry(rows: Rows, job_id: int, now: datetime) -> Answer:
    """Due now with every attempt before it; a canceled job comes back out of the history."""
    row = rows.find(validate_id(job_id))
    if row is None:
        return missing(job_id)
    if row.state is State.PROCESSING:
        return Answer(job_id, Done.REFUSED, "it is running; cancel it first, or wait until it has ended")
    if row.state is State.COMPLETED:
        return Answer(job_id, Done.REFUSED, "it completed; enqueue it again instead")
    kept = revive(rows, row) if row.state is State.CANCELED else True
    row.state, row.run_at, row.finished_at = State.QUEUED, now, None
    row.attempts = row.resets = 0
    row.cancel_requested, row.loses_retries = False, None
    rows.news = True
    return Answer(job_id, Done.DONE, "" if kept else "its key belongs to another job now, so it has none")


def revive(rows: Rows, row: Row) -> bool:
    """Back among the living, with its key unless another job has taken it; False if one has."""
    kept = row.key is None or rows.holder(row.key) is None
    if not kept:
        row.key = None
    rows.live[row.id] = rows.history.pop(row.id)
    return kept


def cancel(rows: Rows, job_id: int, now: datetime) -> Answer:
    """At once if it waits; asked of its worker if it runs."""
    row = rows.find(validate_id(job_id))
    if row is None:
        return missing(job_id)
    match row.state:
        case State.QUEUED | State.ERRORED:
            rows.finish(row, State.CANCELED, now)
            return Answer(job_id, Done.DONE)
        case State.PROCESSING:
            row.cancel_requested = True
            return Answer(job_id, Done.ASKED, "it is running; its worker hears of it at the next beat")
        case State.CANCELED:
            return Answer(job_id, Done.UNCHANGED, "it is canceled already")
        case State.FAILED:
            return Answer(job_id, Done.REFUSED, "it has failed already; remove it, or retry it")
        case State.COMPLETED:
            return Answer(job_id, Done.REFUSED, "it has completed already")


def remove(rows: Rows, job_id: int) -> Answer:
    """Delete what does not run."""
    row = rows.find(validate_id(job_id))
    if row is None:
        return missing(job_id)
    if row.state is State.PROCESSING:
        return Answer(job_id, Done.REFUSED, "it is running; cancel it instead")
    if row.state is State.COMPLETED:
        return Answer(job_id, Done.REFUSED, "it completed; the history is pruned by its age")
    rows.live.pop(job_id, None)
    rows.history.pop(job_id, None)
    return Answer(job_id, Done.DONE)


def remove_key(rows: Rows, key: str) -> Answer:
    """Delete the holder of a key; a running one loses the key and will not run again."""
    row = rows.holder(validate_key(key))
    if row is None:
        return Answer(None, Done.MISSING, f"no live job has the key {key!r}")
    if row.state is not State.PROCESSING:
        return remove(rows, row.id)
    row.key, row.loses_retries = None, "removed"
    return Answer(row.id, Done.DONE, "it is running; it ends without its key and will not run again")


def missing(job_id: int) -> Answer:
    """No such job, here or in the history."""
    return Answer(job_id, Done.MISSING, f"there is no job {job_id}")
