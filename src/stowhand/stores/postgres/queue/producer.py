"""Producer of jobs in transactions of its own, by the functions of the schema."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence

import psycopg

from stowhand.clock import SystemClock
from stowhand.errors import InvalidJob, OutcomeUnknown, StoreError
from stowhand.jobs import limits
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job, KeyMode, NewJob
from stowhand.jobs.limits import BUILT_IN_TASKS
from stowhand.protocols.validation import validate_id
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.link import Row, Session, rows
from stowhand.stores.database.postgres_errors import retry_transient
from stowhand.stores.group_commit import GroupCommit, TakeJobs
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.new_jobs import (
    built_in_values,
    bulk_values,
    enqueue_call,
    enqueue_jobs_call,
    has_extended_options,
    is_plain,
    new_job,
    plain_values,
)
from stowhand.stores.postgres.queue.rows import read_failed_attempt, read_job

MAX_JOBS_PER_CHUNK = 1000
_LOCK_ERRORS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)


class Producer:
    """Producer of jobs on the store's own connections."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        self._clock = SystemClock()
        self._inserts = True
        """Whether to insert into the table, which is faster than a function call. False once the server has refused."""
        self._group_commit = GroupCommit(self._alone, self._together, _is_divisible, self._error_for)

    async def enqueue(self, job: NewJob) -> Job:
        """Commit one job. A plain job shares a commit with plain jobs that are enqueued at the same time.

        Raise OutcomeUnknown if the reply was lost, InvalidJob, or StoreError.
        """
        job = self._context.options.with_max_attempts(job)
        if not is_plain(job):  # jobs with keys in one group could deadlock
            return await self._alone(job)
        return await self._group_commit.enqueue(job)

    async def close(self) -> None:
        """Wait for running enqueues."""
        await self._group_commit.close()

    async def _alone(self, job: NewJob) -> Job:
        plain = is_plain(job)
        name, values = self._plain_call([job]) if plain else enqueue_call(job, self._context.now())
        statement = self._context.statements[name]
        try:
            (row,) = await retry_transient(lambda: self._context.pool.rows("enqueue", statement, values), self._clock)
        except (psycopg.Error, TimeoutError, UnicodeError, OverflowError) as error:
            if name == "enqueue_plain" and postgres_errors.is_forbidden(error):
                self._inserts = False
                return await self._alone(job)
            raise self._error_for(error, job) from None
        if not plain:
            return read_job(row)
        return new_job(job, row)

    async def _together(self, take_jobs: TakeJobs) -> Sequence[Job]:
        """Enqueue the plain jobs of a group by one statement, in this order. Raises the errors of psycopg."""
        inserts = self._inserts

        async def write() -> list[Job]:
            async with self._context.pool.connection("enqueue") as connection:
                if not (jobs := take_jobs()):
                    return []
                rows = await self.run(connection, *self._plain_call(jobs))
            return [new_job(*pair) for pair in zip(jobs, rows, strict=True)]

        try:
            return await retry_transient(write, self._clock)
        except psycopg.Error as error:
            if inserts and postgres_errors.is_forbidden(error):
                self._inserts = False
                return await self._together(take_jobs)
            raise

    def _plain_call(self, jobs: Sequence[NewJob]) -> tuple[str, tuple[object, ...]]:
        """Return the name of the statement for plain jobs that wakes workers, and its values."""
        now = self._context.now()
        if self._inserts and len(jobs) == 1 and jobs[0].queue is not None:
            return "enqueue_plain", plain_values(jobs[0], now)
        return "enqueue_group", bulk_values(jobs, now)

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Enqueue all jobs or none in one transaction. Jobs are read in chunks; only the ids stay in memory."""
        try:
            async with self._context.pool.connection("enqueue") as connection, connection.transaction():
                ids = await self._write_all(connection, _chunks(jobs))
                if ids:
                    await self.run(connection, "wake", ())
        except (psycopg.Error, TimeoutError, UnicodeError, OverflowError) as error:
            raise self._error_for(error, None) from None
        return ids

    async def _write_all(self, connection: Session, chunks: AsyncIterator[list[NewJob]]) -> list[int]:
        """Collect each chunk while the server writes the previous one."""
        ids: list[int] = []
        keys: dict[str, KeyMode] = {}
        writing: asyncio.Task[list[int]] | None = None
        try:
            async for chunk in chunks:
                for job in chunk:
                    if job.key is not None:
                        limits.refuse_repeated_key(job, keys)
                if writing is not None:
                    ids.extend(await writing)
                writing = asyncio.create_task(self.write(connection, chunk))
                await asyncio.sleep(0)  # send it now, not when the next chunk is complete
            if writing is not None:
                ids.extend(await writing)
            return ids
        finally:
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Enqueue all jobs or none by one statement. Return the jobs in this order."""
        if not jobs:
            return []
        keys: dict[str, KeyMode] = {}
        for job in jobs:
            limits.refuse_repeated_key(job, keys)
        jobs = [self._context.options.with_max_attempts(job) for job in jobs]
        name, values = enqueue_jobs_call(jobs, self._context.now())
        statement = self._context.statements[name]
        try:
            new_rows = await retry_transient(lambda: self._context.pool.rows("enqueue", statement, values), self._clock)
        except (psycopg.Error, TimeoutError, UnicodeError, OverflowError) as error:
            raise self._error_for(error, None) from None
        return [read_job(row) for row in new_rows]

    async def get(self, job_id: int) -> Job | None:
        """Return the job, live or in the history; ``None`` without such a job."""
        with self._context.translated():
            rows = await self._context.ask("inspect", "get", (validate_id(job_id),))
        return read_job(rows[0]) if rows else None

    async def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        """Return the failed attempts of the job, in the order of their ends."""
        with self._context.translated():
            return [
                read_failed_attempt(row) for row in await self._context.ask("inspect", "tries", (validate_id(job_id),))
            ]

    async def add_built_in(self, job: NewJob) -> Job:
        """Commit one job of a built-in task, by a function that administrators and workers may call."""
        values = built_in_values(limits.check_built_in(job), self._context.now())
        statement = self._context.statements["enqueue_built_in"]
        try:
            (row,) = await retry_transient(lambda: self._context.pool.rows("enqueue", statement, values), self._clock)
        except (psycopg.Error, TimeoutError) as error:
            raise self._error_for(error, job) from None
        return read_job(row)

    async def write(self, connection: Session, chunk: Sequence[NewJob]) -> list[int]:
        """Enqueue in this transaction. Return the ids in this order.

        Jobs with keys are written in the order of their keys (function ``enqueue_jobs``), so calls do not deadlock.
        """
        if self._context.options.max_attempts is not None:
            chunk = [self._context.options.with_max_attempts(job) for job in chunk]
        places = [place for place, job in enumerate(chunk) if job.key is None and not has_extended_options(job)]
        plain = chunk if len(places) == len(chunk) else [chunk[place] for place in places]
        new = await self.run(connection, "enqueue_many", bulk_values(plain, self._context.now())) if plain else []
        if len(plain) == len(chunk):
            return [row[0] for row in new]
        ids = dict(zip(places, (row[0] for row in new), strict=True))
        others = [place for place in range(len(chunk)) if place not in ids]
        name, values = enqueue_jobs_call([chunk[place] for place in others], self._context.now())
        ids |= zip(others, (row[0] for row in await self.run(connection, name, values)), strict=True)
        return [ids[place] for place in range(len(chunk))]

    async def write_ticks(self, connection: Session, jobs: Sequence[NewJob]) -> list[int]:
        """Enqueue the jobs of a crontab in this transaction. Unlike in ``write``, their tasks may be built in."""
        usual = [place for place, job in enumerate(jobs) if job.task not in BUILT_IN_TASKS]
        if len(usual) == len(jobs):
            return await self.write(connection, jobs)
        ids = dict(zip(usual, await self.write(connection, [jobs[place] for place in usual]), strict=True))
        for place, job in enumerate(jobs):
            if place not in ids:
                values = built_in_values(job, self._context.now())
                ((ids[place], *_),) = await self.run(connection, "enqueue_built_in", values)
        return [ids[place] for place in range(len(jobs))]

    async def run(self, connection: Session, name: str, values: Sequence[object]) -> list[Row]:
        """Run one of the store's statements in this transaction."""
        return await rows(connection, self._context.statements[name], values, self._context.dialer.prepared or None)

    def _error_for(self, error: BaseException, job: NewJob | None) -> Exception:
        """Return InvalidJob if the server refused the values, otherwise the translated error."""
        if isinstance(error, StoreError):
            return type(error)(*error.args)  # each caller needs its own instance, since raising changes it
        if isinstance(error, UnicodeError | OverflowError) or postgres_errors.is_about_values(error):
            return refused(job, error)
        if postgres_errors.is_connection_lost(error):
            return OutcomeUnknown(
                f"{self._context.translate(error)}. The job may or may not have been committed; with a `key`, "
                "enqueueing it again yields one job"
            )
        return self._context.translate(error)


def refused(job: NewJob | None, error: BaseException) -> InvalidJob:
    """Return the error for invalid values of this job, or of one of several jobs."""
    which = f"job for task {job.task[:128]!r}" if job is not None else "one of the jobs"
    return InvalidJob(f"{which}: {postgres_errors.first_line(error).rstrip('.')}. Nothing was written.")


def _is_divisible(error: Exception) -> bool:
    """Return whether one job of the group may have caused the error, so that smaller groups are tried.

    Such causes are its values, a trigger that refuses it, and a lock that a trigger waits for. A server that is
    unreachable, full or shutting down refuses all jobs.
    """
    if isinstance(error, StoreError) or postgres_errors.is_connection_lost(error):
        return False
    return isinstance(error, _LOCK_ERRORS) or not postgres_errors.is_transient(error)


async def _chunks(jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> AsyncIterator[list[NewJob]]:
    chunk: list[NewJob] = []
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            chunk.append(job)
            if len(chunk) == MAX_JOBS_PER_CHUNK:
                yield chunk
                chunk = []
    else:
        for job in jobs:
            chunk.append(job)
            if len(chunk) == MAX_JOBS_PER_CHUNK:
                yield chunk
                chunk = []
    if chunk:
        yield chunk
