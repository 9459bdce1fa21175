"""Enqueueing: a new row, or what a key does with the job that already holds it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from stowhand.errors import InvalidJob
from stowhand.jobs import limits
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.failure import failure_job
from stowhand.jobs.job import EXPIRED_ERROR, Job, KeyMode, NewJob, State
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.jobs.strict_json import MAX_WRITTEN_BYTES
from stowhand.protocols.validation import validate_id
from tests.model.engine.replies import appended
from tests.model.engine.rows import Row, Rows, Taken, Transaction


class Producer:
    """Puts jobs into the queue."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def enqueue(self, job: NewJob) -> Job:
        with self._transaction() as rows:
            return add(rows, limits.check(job)).job()

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        wanted = [job async for job in jobs] if isinstance(jobs, AsyncIterable) else list(jobs)
        return [job.id for job in await self.add_jobs(wanted)]

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        keys: dict[str, KeyMode] = {}
        for job in jobs:
            limits.refuse_repeated_key(job, keys)
        with self._transaction() as rows, rows.all_or_nothing():
            return [add(rows, limits.check(job)).job() for job in jobs]

    async def get(self, job_id: int) -> Job | None:
        with self._transaction() as rows:
            row = rows.find(validate_id(job_id))
            return row.job() if row is not None else None

    async def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        with self._transaction() as rows:
            return tuple(rows.tries.get(validate_id(job_id), ()))


def add(rows: Rows, job: NewJob) -> Row:
    """Insert a job; where another holds its key, the key's mode decides."""
    holder = rows.holder(job.key) if job.key is not None else None
    if holder is not None and cancel_expired(rows, holder):
        holder = None
    if holder is None and job.unique_period is not None and (ended := completed_within(rows, job)) is not None:
        return ended
    if holder is not None:
        if job.key_mode is KeyMode.UNSAFE_DEDUPE:
            touch(holder, rows.now)
            return holder
        if job.key_mode is KeyMode.UNIQUE and holder.state is not State.FAILED:
            return holder
        if holder.state is not State.PROCESSING:
            replace(holder, job, rows)
            if job.unique_period is not None:
                take_for_period(rows, holder, job.unique_period)
            return holder
        # It runs on without its key; only an error finds out that it has no retries left.
        holder.key, holder.loses_retries = None, "replaced"
    row = Row(
        id=rows.last_id + 1,
        task=job.task,
        payload=job.payload,
        serial=job.serial,
        queue=job.queue or DEFAULT_QUEUE,
        priority=job.priority,
        run_at=run_at(job, rows.now),
        max_attempts=job.max_attempts or rows.max_attempts,
        max_resets=job.max_resets,
        key=job.key,
        flags=tuple(dict.fromkeys(job.flags)),
        created_at=rows.now,
        updated_at=rows.now,
        on_failure=job.on_failure,
    )
    if job.expires is not None:
        set_expiry(rows, row, job.expires)
    rows.insert(row)
    if job.unique_period is not None:
        take_for_period(rows, row, job.unique_period)
    return row


def completed_within(rows: Rows, job: NewJob) -> Row | None:
    """The job that took this key for a period that is not over, and has completed. Where no history has it: what is
    known of it."""
    taken = rows.uniques.get(str(job.key))
    if taken is None or taken.until <= rows.now or taken.job_id in rows.live:
        return None
    return rows.history.get(taken.job_id) or Row(
        id=taken.job_id,
        task=job.task,
        payload=job.payload,
        serial=job.serial,
        queue=job.queue or DEFAULT_QUEUE,
        priority=job.priority,
        run_at=taken.enqueued_at,
        max_attempts=job.max_attempts or rows.max_attempts,
        max_resets=job.max_resets,
        key=job.key,
        flags=tuple(dict.fromkeys(job.flags)),
        created_at=taken.enqueued_at,
        updated_at=taken.enqueued_at,
        state=State.COMPLETED,
    )


def take_for_period(rows: Rows, row: Row, lasts: float) -> None:
    """One that is revived keeps the period of its first enqueueing."""
    taken = rows.uniques.get(str(row.key))
    if taken is None or taken.until <= rows.now or taken.job_id != row.id:
        with suppress(OverflowError):  # later than a date can say
            rows.uniques[str(row.key)] = Taken(row.id, rows.now, rows.now + timedelta(seconds=lasts))


def tell_of_failure(rows: Rows, row: Row, error_class: str | None) -> None:
    """Called by whatever has just failed a row for good: enqueue what it names, in the same transaction."""
    if row.on_failure is not None:
        handler, error = row.on_failure, row.last_error or ""
        message = failure_job(
            handler, job_id=row.id, task=row.task, payload=row.payload, error_class=error_class, error=error
        )
        add(rows, message)


def replace(row: Row, job: NewJob, rows: Rows) -> None:
    """Give a waiting or failed row every detail of the new job: nothing is merged but arrays."""
    payload = job.payload
    if row.waits():
        payload = appended(row.payload, job.payload)
        if (size := len(payload.encode())) > MAX_WRITTEN_BYTES:
            raise InvalidJob(f"payload: {size} bytes after appending, the limit is {MAX_WRITTEN_BYTES} (1 MiB)")
    never_tried = row.state is State.QUEUED and row.attempts == 0
    if not (never_tried and job.key_mode is KeyMode.PRESERVE_RUN_AT):
        row.run_at = run_at(job, rows.now)
    if row.state is State.FAILED:
        row.resets, row.finished_at, row.cancel_requested, row.loses_retries = 0, None, False, None
    row.task, row.payload, row.serial, row.priority = job.task, payload, job.serial, job.priority
    row.max_attempts, row.max_resets = job.max_attempts or rows.max_attempts, job.max_resets
    row.queue = job.queue or DEFAULT_QUEUE
    row.flags, row.on_failure = tuple(dict.fromkeys(job.flags)), job.on_failure
    rows.begin_round(row)
    row.expires_at = None
    if job.expires is not None:
        set_expiry(rows, row, job.expires)
    row.state, row.attempts, row.last_error = State.QUEUED, 0, None
    row.progress = row.progress_text = None
    touch(row, rows.now)
    if job.key_mode is not KeyMode.UNIQUE:
        row.replaced = row.revision


def set_expiry(rows: Rows, row: Row, expires: float) -> None:
    """Counted from when it is due. What is later than a date can say is never."""
    with suppress(OverflowError):
        row.expires_at = row.run_at + timedelta(seconds=expires)
        rows.expiring.add(row.id)


def cancel_expired(rows: Rows, row: Row) -> bool:
    """If it waits, and its moment has come."""
    if row.state is not State.QUEUED or row.expires_at is None or row.expires_at > rows.now:
        return False
    row.last_error = EXPIRED_ERROR
    rows.finish(row, State.CANCELED)
    return True


def touch(row: Row, now: datetime) -> None:
    """Record that it was changed."""
    row.revision += 1
    row.updated_at = now


def run_at(job: NewJob, now: datetime) -> datetime:
    """When it is due: by the store's clock, unless the job names a moment."""
    if job.run_at is not None:
        return job.run_at
    return now + timedelta(seconds=job.delay or 0.0)
