"""Protocols of producers: enqueueing, also inside the transactions of other libraries, and results of jobs.

Type checkers recognize a synchronous or asynchronous connection by the return type of its ``commit``, and asyncpg by
``is_in_transaction``. At run time the stores recognize a connection (``stores/callers``).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import DROPPED_RESULT, Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.store import Claim, ClaimRequest


class Enqueuer(Protocol):
    """Enqueueing. The caller has checked the jobs (``limits.check``); a store checks only its own limits."""

    async def enqueue(self, job: NewJob) -> Job:
        """Commit one job and wake a worker. Raises OutcomeUnknown, SchemaMissing, StoreUnreachable."""

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Enqueue any number of jobs in one transaction, streamed. Return their ids in the order of the jobs."""

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Enqueue at most some hundred jobs in one transaction. Return them in the same order."""


class Producer(Enqueuer, Protocol):
    """Enqueueing, and reading one job."""

    async def get(self, job_id: int) -> Job | None:
        """Return a job, live or in the history; ``None`` without such a job."""

    async def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        """Return the last ten failed attempts of a job, in the order of their ends."""


class Transactions(Protocol):
    """Enqueueing inside the caller's own transaction."""

    def enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        """Enqueue inside the caller's transaction: the job exists if and only if the caller commits.

        Returns the ``Job``, or an awaitable of it if the connection is asynchronous. Raises ConfigurationError for a
        connection of another driver.
        """


class CommittedConnection(Protocol):
    """A synchronous connection or session of psycopg, sqlite3, SQLAlchemy or Django."""

    def commit(self) -> None:
        """Commit. Stowhand never calls this: the caller commits or rolls back."""


class DjangoConnection(Protocol):
    """``django.db.connection``, a proxy of which type checkers see only these methods."""

    def __getattr__(self, item: str) -> Any: ...

    def __contains__(self, key: str, /) -> bool: ...


class AwaitedConnection(Protocol):
    """An asynchronous connection or session of psycopg, aiosqlite or SQLAlchemy."""

    def commit(self) -> Awaitable[None]:
        """Commit. Stowhand never calls this."""


class AsyncpgConnection(Protocol):
    """A connection of asyncpg, whose transactions are blocks."""

    def is_in_transaction(self) -> bool:
        """Return whether a transaction is open. ``enqueue_in`` refuses a connection without one."""


class AsyncpgPoolConnection(Protocol):
    """A connection of an asyncpg pool, which is a proxy."""

    _holder: Any


Connection = CommittedConnection | DjangoConnection
AsyncConnection = AwaitedConnection | AsyncpgConnection | AsyncpgPoolConnection


class Cursor(Protocol):
    """A cursor of PEP 249, with ``%s`` as placeholder on PostgreSQL, and the driver's own cursor on SQLite."""

    def execute(self, statement: str, values: Sequence[object] = ..., /) -> Any: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...


class JobsOnConnection(Protocol):
    """Jobs on a connection of the caller. No method starts or ends a transaction.

    Raises InvalidJob and the errors of the caller's library.
    """

    def enqueue_in(self, connection: object, job: NewJob) -> Job:
        """Enqueue a job on this connection. The job exists if and only if the caller commits."""

    def get(self, job_id: int) -> Job | None:
        """Return a job, live or in the history; ``None`` without such a job."""

    def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        """Return the last ten failed attempts of a job."""

    def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Claim due jobs in this transaction, for tests."""

    def settle(self, lease: Lease, settlement: Settlement) -> bool:
        """Record a settlement. Return False if the lease is lost."""

    def count_unfinished(self) -> int:
        """Return the number of jobs that wait or run."""

    def empty(self) -> None:
        """Delete all rows of the tables that ``install`` creates, except the list of workers."""

    def install(self) -> None:
        """Create missing tables. No event loop may run in this thread. Raises SchemaError."""

    def uninstall(self) -> None:
        """Remove everything that ``install`` creates, including jobs."""


class JobStatus(msgspec.Struct, frozen=True):
    """The status of a job that has ended, was replaced by another job with its key, or does not exist."""

    job_id: int
    state: State | None = None
    """``None`` if the job does not exist."""
    is_known: bool = True
    """True if a job ever had this id."""
    attempts: int = 0
    resets: int = 0
    last_error: str | None = None
    result_text: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    revision: int = 0
    replaced: int | None = None
    """The revision at which another job last replaced it; ``None`` if none did."""

    def ends(self, revision: int) -> bool:
        """Return whether the job of this revision has ended or was replaced."""
        return self.state is None or self.state.terminal or self.is_replaced(revision)

    def is_replaced(self, revision: int) -> bool:
        """Return whether another job replaced it and took its id."""
        return self.replaced is not None and self.replaced > revision

    @property
    def is_dropped(self) -> bool:
        """Whether the store could not keep the result."""
        return self.result_text == DROPPED_RESULT

    def applied(self, job: Job) -> Job:
        """Return the job with the values of this status."""
        if self.state is None:
            return job
        return msgspec.structs.replace(
            job,
            state=self.state,
            attempts=self.attempts,
            resets=self.resets,
            last_error=self.last_error,
            result_text=self.result_text,
            started_at=self.started_at,
            finished_at=self.finished_at,
            revision=self.revision,
            worker=None,
        )


class Results(Protocol):
    """Reader of job results. Callers on one event loop share its reads (``stores.kernel.results.ResultPoll``)."""

    @property
    def min_pause(self) -> float:
        """Minimum number of seconds between two reads of the same job."""

    @property
    def wait_for_commit(self) -> Callable[[], Awaitable[object]] | None:
        """Function that returns after a commit since its last call; ``None`` if the store cannot notice commits."""

    async def retention(self) -> float | None:
        """Return the seconds for which completed and canceled jobs are kept; ``None`` if they are not kept."""

    async def ask(self, job_ids: Sequence[int]) -> Sequence[JobStatus]:
        """Return the status of each job that has ended, was replaced or does not exist, in any order."""
