"""``enqueue_in`` for tests in memory: a job is there after the caller's commit, where that can be heard.

SQLAlchemy and Django tell of it. A driver's own connection tells nobody: then the job is there at once, and the
store warns.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress

from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs import limits
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.notices import Notices
from stowhand.stores.callers.recognising import hearing_caller, is_asyncpg
from stowhand.stores.memory.enqueueing import add
from stowhand.stores.memory.rows import Row, Rows

Transaction = Callable[[], AbstractContextManager[Rows]]


class AfterCommit:
    """Of one memory store."""

    def __init__(self, transaction: Transaction, notices: Notices) -> None:
        self._transaction, self._notices = transaction, notices
        self._said: set[type] = set()

    def enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        caller = hearing_caller(connection)
        if caller is None:
            return self._at_once(connection, job)
        held = _HeldJob(self._transaction, limits.check(job))
        heard: Awaitable[None] | None = caller.hear(held)
        return held.job if heard is None else _after(heard, held.job)

    def _at_once(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        commit = getattr(connection, "commit", None)
        if commit is None and not is_asyncpg(connection):
            raise ConfigurationError(f"enqueue_in needs a connection or a session, not {a_type(connection)}")
        if type(connection) not in self._said:
            self._said.add(type(connection))
            self._notices.warn(
                f"enqueue_in: {a_type(connection)} tells nobody of its commit, so in memory the job is there at once,"
                " also if the transaction is rolled back; a test of that runs on a real store",
                "",
            )
        with self._transaction() as rows:
            made = add(rows, limits.check(job)).job()
        return made if commit is not None and not inspect.iscoroutinefunction(commit) else _after(None, made)


class _HeldJob:
    """One that was enqueued in a transaction. It has its id already, and nobody sees it."""

    def __init__(self, transaction: Transaction, job: NewJob) -> None:
        self._transaction, self._new = transaction, job
        self._row: Row | None = None
        """``None``: another job, which had its key, was given."""
        with transaction() as rows:
            before = rows.last_id
            with suppress(_Undone), rows.all_or_nothing():
                row = add(rows, job)
                self.job = row.job()
                self._row = row if row.id > before else None
                raise _Undone

    def show(self) -> None:
        with self._transaction() as rows:
            if self._row is None or (self._new.key is not None and rows.holder(self._new.key) is not None):
                add(rows, self._new)
            else:
                rows.live[self._row.id] = self._row
                rows.announce()


class _Undone(Exception):
    """The job waits for its commit."""


async def _after(heard: Awaitable[None] | None, job: Job) -> Job:
    if heard is not None:
        await heard
    return job
