"""Enqueues jobs on the store's own connection or in a transaction of the caller."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from stowhand.errors import InvalidJob
from stowhand.jobs import limits
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.store import StoreOptions
from stowhand.protocols.validation import validate_id
from stowhand.stores.database.sqlite_errors import is_refused
from stowhand.stores.group_commit import GroupCommit, TakeJobs
from stowhand.stores.sqlite.queue import enqueue, error_translation
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.in_transaction import enqueue_in, write_in
from stowhand.stores.sqlite.queue.rows import to_job, to_try
from stowhand.stores.sqlite.queue.spool import Spool
from stowhand.stores.sqlite.queue.transaction import Transaction

T = TypeVar("T")


class Producer:
    """Producer of jobs."""

    def __init__(self, connections: Connections, options: StoreOptions) -> None:
        self._connections = connections
        self._options = options
        self._group_commit = GroupCommit(
            self._alone, self._together, _is_divisible, lambda error, _: type(error)(*error.args)
        )

    async def enqueue(self, job: NewJob) -> Job:
        """Commit one job. A job without a key shares a commit with those enqueued at the same time."""
        job = self._options.with_max_attempts(job)
        if job.key is not None or not self._connections.waits_for_disk:
            return await self._alone(job)
        return await self._group_commit.enqueue(job)

    async def close(self) -> None:
        """Wait for running enqueues."""
        await self._group_commit.close()

    async def _alone(self, job: NewJob) -> Job:
        return await self._connections.write(lambda tx: _add(tx, job), wakes=True)

    async def _together(self, take_jobs: TakeJobs) -> list[Job]:
        jobs = take_jobs()
        return await self._connections.write(lambda tx: [_add(tx, job) for job in jobs], wakes=True) if jobs else []

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Commit any number of jobs in one transaction.

        The jobs are collected first, beyond some thousands in a temporary file, so that a slow source does not keep
        other processes from writing.
        """
        spool = Spool()
        try:
            if isinstance(jobs, AsyncIterable):
                async for job in jobs:
                    spool.put(self._options.with_max_attempts(job))
            else:
                for job in jobs:
                    spool.put(self._options.with_max_attempts(job))
            return await self._connections.write(lambda tx: _add_many(tx, spool), wakes=True)
        finally:
            spool.close()

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Commit these jobs in one transaction. Return them in this order."""
        spool = Spool()
        for job in (whole_jobs := [self._options.with_max_attempts(job) for job in jobs]):
            spool.put(job)

        def add(tx: Transaction) -> list[Job]:
            return [enqueue.find(tx, job_id, job) for job_id, job in zip(_add_many(tx, spool), whole_jobs, strict=True)]

        return await self._connections.write(add, wakes=True)

    async def get(self, job_id: int) -> Job | None:
        """Return the job, live or in the history; ``None`` without such a job."""
        return await self._connections.read(lambda tx: get(tx, job_id))

    async def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        """Return the failed attempts of the job, in the order of their ends."""
        rows = await self._connections.read(lambda tx: tx.rows("tries", id=validate_id(job_id)))
        return [to_try(row) for row in rows]

    async def add_built_in(self, job: NewJob) -> Job:
        """Commit a job of a built-in task."""
        job = limits.check_built_in(job)
        return await self._connections.write(lambda tx: _add(tx, job, built_in=True), wakes=True)

    def enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        """Enqueue inside the transaction of the caller's connection."""
        job = self._options.with_max_attempts(job)
        return enqueue_in(connection, job, self._connections.make_transaction, self._connections.path)

    def write_in(self, connection: object, work: Callable[[Transaction], T], *, call: str) -> T | Awaitable[T]:
        """Run work inside the transaction of the caller's connection. ``call``: the name of the call, for errors."""
        make_transaction, path = self._connections.make_transaction, self._connections.path
        return write_in(connection, work, make_transaction, path, call=call)


def _is_divisible(error: Exception) -> bool:
    """Return whether the error may concern only some jobs: invalid values, or an application's trigger refuses them."""
    return isinstance(error, InvalidJob) or (error.__cause__ is not None and is_refused(error.__cause__))


def get(tx: Transaction, job_id: int) -> Job | None:
    """Return the job, live or in the history; ``None`` without such a job."""
    row = tx.row("get", id=validate_id(job_id))
    return None if row is None else to_job(row)


def _add(tx: Transaction, job: NewJob, *, built_in: bool = False) -> Job:
    with error_translation.refusing():
        return enqueue.find(tx, enqueue.add(tx, job, built_in=built_in), job)


def _add_many(tx: Transaction, spool: Spool) -> list[int]:
    with error_translation.refusing():
        return enqueue.add_many(tx, spool.chunks())
