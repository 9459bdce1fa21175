"""Enqueues of one job or many, and the effect of a key on the job that already holds it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from stowhand.jobs import limits
from stowhand.jobs.fields import OPTION_FIELDS
from stowhand.jobs.job import DEFAULT_MAX_ATTEMPTS, EXPIRED_ERROR, Job, KeyMode, NewJob, State
from stowhand.stores.sqlite.queue.cancellation import cancel_children, cancel_waiting
from stowhand.stores.sqlite.queue.moment import to_datetime
from stowhand.stores.sqlite.queue.rows import INSERTED_COLUMNS, MAX_TIME_MICROS, check_size, to_job, to_row
from stowhand.stores.sqlite.queue.transaction import STATEMENTS, Transaction

_TASK_POSITION = INSERTED_COLUMNS.index("task")
_POSITION_AFTER_QUEUE = INSERTED_COLUMNS.index("queue") + 1


def add(tx: Transaction, job: NewJob, *, built_in: bool = False, job_id: int | None = None) -> int:
    """Insert a job; if another job holds its key, the key's mode decides. Return the id.

    ``job_id``: the id of a new job; ``None`` means the next one.
    """
    if not built_in:
        limits.refuse_built_in(job)
    row = to_row(job, tx.now)
    if job.key is None:
        return _insert(tx, row, job_id)
    holder = tx.row("holder", key=job.key)
    if holder is not None and holder[-1]:
        cancel_waiting(tx, [holder[0]], EXPIRED_ERROR)
        holder = None
    if holder is None:
        return _insert_keyed(tx, row, job, job_id)
    holder_id, state, payload, attempts, run_at, has_run, _ = holder
    if job.key_mode is KeyMode.UNSAFE_DEDUPE:
        tx.run("touch", id=holder_id)
        return int(holder_id)
    if job.key_mode is KeyMode.UNIQUE and state != State.FAILED:
        return int(holder_id)
    if state == State.PROCESSING:
        # The running job continues without its key. It has no retries left, which takes effect only after an error.
        tx.run("lose_key", id=holder_id, cause="replaced")
        return _insert(tx, row, job_id)
    keeps_run_at = job.key_mode is KeyMode.PRESERVE_RUN_AT and state == State.QUEUED and attempts == 0
    old_payload = payload if state != State.FAILED else None
    is_repeat = job.key_mode is KeyMode.UNIQUE
    _replace(tx, holder_id, row, run_at if keeps_run_at else None, old_payload, is_repeat=is_repeat)
    if has_run:
        _forget_workflow(tx, holder_id)
    _hold_key_for_period(tx, holder_id, job)
    return int(holder_id)


def add_many(tx: Transaction, chunks: Iterable[Sequence[NewJob]]) -> list[int]:
    """Insert jobs with a key one by one, and the others in bulk. Return the ids in the order of the jobs."""
    ids: list[int] = []
    for jobs in chunks:
        for have_keys, group in groupby(jobs, key=lambda job: job.key is not None):
            if have_keys:
                ids += [add(tx, job) for job in group]
            else:
                ids += _insert_many(tx, list(group))
    return ids


def add_children(tx: Transaction, parent_id: int, step: str, jobs: Sequence[NewJob], places: Sequence[int]) -> None:
    """Insert the jobs as children of a step. They have no keys."""
    rows = zip(_numbered_rows(tx, jobs), places, strict=True)
    tx.run_many("insert_child", [(*row, parent_id, step, place) for row, place in rows])


def find(tx: Transaction, job_id: int, job: NewJob) -> Job:
    """Return the job that an enqueue wrote or matched.

    If the matched job has completed and no history is kept, its values are those of ``job``.
    """
    if (row := tx.row("get", id=job_id)) is not None:
        return to_job(row)
    enqueued_at = to_datetime(tx.row("completed_key_holder", key=job.key)[1])
    options: dict[str, Any] = {field.name: getattr(job, field.name) for field in OPTION_FIELDS} | {
        "max_attempts": DEFAULT_MAX_ATTEMPTS if job.max_attempts is None else job.max_attempts,
        "flags": tuple(dict.fromkeys(job.flags)),
    }
    return Job(
        id=job_id,
        task=job.task,
        payload_text=job.payload,
        state=State.COMPLETED,
        run_at=enqueued_at,
        attempts=0,
        created_at=enqueued_at,
        updated_at=enqueued_at,
        **options,
    )


def _insert_keyed(tx: Transaction, row: tuple[object, ...], job: NewJob, job_id: int | None) -> int:
    """Insert the job, or return the job that completed within the period for which it holds the key."""
    if job.unique_period is not None and (holder := tx.row("completed_key_holder", key=job.key)) is not None:
        return int(holder[0])
    job_id = _insert(tx, row, job_id)
    _hold_key_for_period(tx, job_id, job)
    return job_id


def _hold_key_for_period(tx: Transaction, job_id: int, job: NewJob) -> None:
    if job.unique_period is not None:
        until = min(tx.now.after(job.unique_period), MAX_TIME_MICROS)
        tx.run("hold_key_until", key=job.key, id=job_id, until=until)


def _insert(tx: Transaction, row: tuple[object, ...], job_id: int | None) -> int:
    inserted = tx.raw.execute(STATEMENTS["insert"], _values(job_id, row)).lastrowid
    assert inserted is not None
    return inserted


def _values(job_id: int | None, row: tuple[object, ...]) -> tuple[object, ...]:
    # The task follows the queue: if the job names no queue, the statement looks up its task's queue. Python's sqlite3
    # treats a numbered placeholder (?2) as a name and then refuses a row of values, so the task is passed twice.
    return (job_id, *row[:_POSITION_AFTER_QUEUE], row[_TASK_POSITION], *row[_POSITION_AFTER_QUEUE:])


def _insert_many(tx: Transaction, jobs: Sequence[NewJob]) -> list[int]:
    rows = _numbered_rows(tx, jobs)
    tx.run_many("insert", rows)
    return [row[0] for row in rows]


def _numbered_rows(tx: Transaction, jobs: Sequence[NewJob]) -> list[tuple[Any, ...]]:
    # Ids are counted here, not read row by row: no other transaction can insert while this one is open.
    last = tx.row("last_id")
    first = 1 if last is None else last[0] + 1
    for job in jobs:
        limits.refuse_built_in(job)
    return [_values(job_id, to_row(job, tx.now)) for job_id, job in enumerate(jobs, first)]


def _replace(
    tx: Transaction,
    job_id: int,
    row: tuple[Any, ...],
    run_at: int | None,
    old_payload: str | None,
    *,
    is_repeat: bool,
) -> None:
    values = dict(zip(INSERTED_COLUMNS, row, strict=True))
    run_at = values["run_at"] if run_at is None else run_at
    if values["expires_at"] is not None:
        values["expires_at"] += run_at - values["run_at"]
    values |= {"id": job_id, "run_at": run_at, "is_repeat": is_repeat}
    if old_payload is not None:
        values["payload"] = _joined_payload(old_payload, str(values["payload"]))
        check_size(values["payload"])
    tx.run("replace", **values)


def _forget_workflow(tx: Transaction, job_id: int) -> None:
    """Delete the steps of a job that another one has replaced, and cancel its children."""
    tx.run("detach_all_children", id=job_id)
    cancel_children(tx, [job_id])
    tx.run("forget_steps", id=job_id)


def _joined_payload(old: str, new: str) -> str:
    """Concatenate both payloads if both are arrays; otherwise return the new one.

    The payloads stay text, so no number is rounded. PostgreSQL does the same in functions/enqueue.sql.
    """
    first, second = old.strip(), new.strip()
    if not (first.startswith("[") and second.startswith("[")):
        return new
    return "[" + ",".join(filter(None, (first[1:-1].strip(), second[1:-1].strip()))) + "]"
