"""Enqueues on the store's own connection, or on the caller's."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterable, Iterable, Sequence
from functools import partial

from stowhand.jobs import limits
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.store import StoreOptions
from stowhand.stores.sqlite.queue import enqueue, guest, inspector, trouble
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import Moment
from stowhand.stores.sqlite.queue.spool import Spool


class Producer:
    """Puts jobs into the queue."""

    def __init__(self, connections: Connections, options: StoreOptions) -> None:
        self._connections = connections
        self._options = options

    async def enqueue(self, job: NewJob) -> Job:
        job = self._options.whole(job)
        return await self._connections.write(partial(_add, job=job), wakes=True)

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Commit any number in one transaction.

        They are gathered first, beyond some thousands in a temporary file: a slow source must not keep other
        processes from writing.
        """
        spool = Spool()
        try:
            if isinstance(jobs, AsyncIterable):
                async for job in jobs:
                    spool.put(self._options.whole(job))
            else:
                for job in jobs:
                    spool.put(self._options.whole(job))
            return await self._connections.write(partial(_add_many, spool=spool), wakes=True)
        finally:
            spool.close()

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Commit them in one transaction."""
        spool = Spool()
        for job in jobs:
            spool.put(self._options.whole(job))
        return await self._connections.write(partial(_add_jobs, spool=spool), wakes=True)

    async def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""
        return await self._connections.read(lambda connection, _: inspector.get(connection, job_id))

    async def add_built_in(self, job: NewJob) -> Job:
        """A job of a built-in task."""
        job = limits.check_built_in(job)
        return await self._connections.write(partial(_add, job=job, built_in=True), wakes=True)

    def enqueue_in(self, connection: object, job: NewJob) -> Job:
        """Enqueue inside the transaction of the caller's ``sqlite3.Connection``; see ``guest``."""
        return guest.enqueue_in(connection, self._connections.path, self._connections.now, self._options.whole(job))


def _add(connection: sqlite3.Connection, now: Moment, job: NewJob, *, built_in: bool = False) -> Job:
    with trouble.refusing():
        return enqueue.find(connection, enqueue.add(connection, now, job, built_in=built_in))


def _add_jobs(connection: sqlite3.Connection, now: Moment, spool: Spool) -> list[Job]:
    return [enqueue.find(connection, job_id) for job_id in _add_many(connection, now, spool)]


def _add_many(connection: sqlite3.Connection, now: Moment, spool: Spool) -> list[int]:
    with trouble.refusing():
        return enqueue.add_many(connection, now, spool.chunks())
