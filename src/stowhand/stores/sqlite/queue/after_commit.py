"""Writes in a caller's transaction for tests in memory: they become visible after its commit, if that is reported.

SQLAlchemy and Django report a commit. A driver's own connection does not: then a write is visible at once, and the
store emits a warning.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.queue_store import Notices
from stowhand.protocols.store import StoreOptions
from stowhand.stores.callers.connection_types import commit_aware_caller, is_asyncpg
from stowhand.stores.database.sqlite_connection import SqliteConnection
from stowhand.stores.sqlite.queue import enqueue, error_translation
from stowhand.stores.sqlite.queue.transaction import Transaction

T = TypeVar("T")


class AfterCommit:
    """Producer in the callers' transactions, for one memory store."""

    def __init__(self, connection: SqliteConnection[Transaction], options: StoreOptions, notices: Notices) -> None:
        self._connection = connection
        self._options = options
        self._notices = notices
        self._warned_types: set[type] = set()

    def enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        job = self._options.with_max_attempts(job)
        if commit_aware_caller(connection) is None:
            return self.write_in(connection, lambda tx: _add(tx, job), call="enqueue_in")
        # The job has its id at once, although readers do not see it before the commit.
        job_id = self._connection.write(_reserve_id)
        return self.write_in(connection, lambda tx: _add(tx, job, job_id), call="enqueue_in")

    def write_in(self, connection: object, work: Callable[[Transaction], T], *, call: str) -> T | Awaitable[T]:
        """Run work once the caller's transaction is committed. Return the result that it would have now."""
        caller = commit_aware_caller(connection, call)
        if caller is None:
            return self._at_once(connection, work, call)
        pending = _PendingWrite(self._connection, work)
        result = pending.preview()
        committed: Awaitable[None] | None = caller.add_pending(pending)
        return result if committed is None else _after(committed, result)

    def _at_once(self, connection: object, work: Callable[[Transaction], T], call: str) -> T | Awaitable[T]:
        commit = getattr(connection, "commit", None)
        if commit is None and not is_asyncpg(connection):
            raise ConfigurationError(f"{call} needs a connection or a session, not {a_type(connection)}")
        if type(connection) not in self._warned_types:
            self._warned_types.add(type(connection))
            written = "the job" if call == "enqueue_in" else "the write"
            self._notices.warn(
                f"{call}: {a_type(connection)} does not report its commit, so in memory {written} is visible at once,"
                " even if the transaction is rolled back; to test a rollback, use PostgreSQL or an SQLite file",
                "",
            )
        result = self._connection.write(work)
        return result if commit is not None and not inspect.iscoroutinefunction(commit) else _after(None, result)


class _PendingWrite:
    """A write in an open transaction of a caller. Readers do not see it yet."""

    def __init__(self, connection: SqliteConnection[Transaction], work: Callable[[Transaction], Any]) -> None:
        self._connection = connection
        self._work = work

    def show(self) -> None:
        self._connection.write(self._work)

    def preview(self) -> Any:
        """Return the result that the write would have now: an enqueue may return another job with the same key."""
        results: list[Any] = []

        def write_and_roll_back(tx: Transaction) -> None:
            results.append(self._work(tx))
            raise _RolledBack

        with suppress(_RolledBack):
            self._connection.write(write_and_roll_back)
        return results[0]


class _RolledBack(Exception):
    """Rolls back the trial write."""


def _reserve_id(tx: Transaction) -> int:
    last = tx.row("last_id")
    job_id = 1 if last is None else int(last[0]) + 1
    tx.raw.execute("DELETE FROM sqlite_sequence WHERE name = 'stowhand_jobs'")
    tx.raw.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('stowhand_jobs', ?)", (job_id,))
    return job_id


def _add(tx: Transaction, job: NewJob, job_id: int | None = None) -> Job:
    with error_translation.refusing():
        return enqueue.find(tx, enqueue.add(tx, job, job_id=job_id), job)


async def _after(committed: Awaitable[None] | None, result: T) -> T:
    if committed is not None:
        await committed
    return result
