"""``enqueue_in`` for tests in memory: a job becomes visible after the caller's commit, if the commit is reported.

SQLAlchemy and Django report a commit. A driver's own connection does not: then the job is visible at once, and the
store emits a warning.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from contextlib import suppress

from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.queue_store import Notices
from stowhand.protocols.store import StoreOptions
from stowhand.stores.callers.connection_types import commit_aware_caller, is_asyncpg
from stowhand.stores.database.sqlite_connection import SqliteConnection
from stowhand.stores.sqlite.queue import enqueue, error_translation
from stowhand.stores.sqlite.queue.transaction import Transaction


class AfterCommit:
    """Producer in the callers' transactions, for one memory store."""

    def __init__(self, connection: SqliteConnection[Transaction], options: StoreOptions, notices: Notices) -> None:
        self._connection = connection
        self._options = options
        self._notices = notices
        self._warned_types: set[type] = set()

    def enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        job = self._options.with_max_attempts(job)
        caller = commit_aware_caller(connection)
        if caller is None:
            return self._at_once(connection, job)
        pending = _PendingJob(self._connection, job)
        committed: Awaitable[None] | None = caller.add_pending(pending)
        return pending.job if committed is None else _after(committed, pending.job)

    def _at_once(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        commit = getattr(connection, "commit", None)
        if commit is None and not is_asyncpg(connection):
            raise ConfigurationError(f"enqueue_in needs a connection or a session, not {a_type(connection)}")
        if type(connection) not in self._warned_types:
            self._warned_types.add(type(connection))
            self._notices.warn(
                f"enqueue_in: {a_type(connection)} does not report its commit, so in memory the job is visible at once,"
                " even if the transaction is rolled back; to test a rollback, use PostgreSQL or an SQLite file",
                "",
            )
        written = self._connection.write(lambda tx: _add(tx, job))
        return written if commit is not None and not inspect.iscoroutinefunction(commit) else _after(None, written)


class _PendingJob:
    """A job that was enqueued in an open transaction. It has an id, but readers do not see it yet."""

    def __init__(self, connection: SqliteConnection[Transaction], job: NewJob) -> None:
        self._connection = connection
        self._new_job = job
        self._id = connection.write(_reserve_id)
        self.job = self._preview()

    def show(self) -> None:
        self._connection.write(lambda tx: _add(tx, self._new_job, self._id))

    def _preview(self) -> Job:
        """Return the job that an enqueue would return now, which may be another job with the same key."""
        jobs: list[Job] = []

        def add_and_roll_back(tx: Transaction) -> None:
            jobs.append(_add(tx, self._new_job, self._id))
            raise _RolledBack

        with suppress(_RolledBack):
            self._connection.write(add_and_roll_back)
        return jobs[0]


class _RolledBack(Exception):
    """Rolls back the trial enqueue."""


def _reserve_id(tx: Transaction) -> int:
    last = tx.row("last_id")
    job_id = 1 if last is None else int(last[0]) + 1
    tx.raw.execute("DELETE FROM sqlite_sequence WHERE name = 'stowhand_jobs'")
    tx.raw.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('stowhand_jobs', ?)", (job_id,))
    return job_id


def _add(tx: Transaction, job: NewJob, job_id: int | None = None) -> Job:
    with error_translation.refusing():
        return enqueue.find(tx, enqueue.add(tx, job, job_id=job_id), job)


async def _after(committed: Awaitable[None] | None, job: Job) -> Job:
    if committed is not None:
        await committed
    return job
