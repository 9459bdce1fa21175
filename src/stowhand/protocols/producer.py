"""What a producer has: enqueueing, also inside the transactions of users' libraries, and how its jobs ended.

For type checkers, a ``commit`` that returns nothing makes a connection synchronous, one that is awaited asynchronous;
asyncpg has none. At run time the stores recognize a connection (``stores/callers``).
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
    """Enqueueing. Jobs have passed ``limits.check`` before; a store refuses what its own limits forbid."""

    async def enqueue(self, job: NewJob) -> Job:
        """Commit one job and wake a worker. Raises OutcomeUnknown, SchemaMissing, StoreUnreachable."""

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Enqueue any number in one transaction, streamed: all or none. Returns their ids in the order given."""

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """As ``enqueue_many``; returns the jobs themselves, in the order given. For hundreds, not for millions."""


class Producer(Enqueuer, Protocol):
    """Enqueueing, and looking at one job."""

    async def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""

    async def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        """What its last ten attempts left that did not complete, in the order in which they ended."""


class Transactions(Protocol):
    """Enqueueing inside the caller's own transaction."""

    def enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        """Enqueue inside the caller's transaction: the job exists if and only if the caller commits.

        Returns the ``Job``, or an awaitable of it when the connection is asynchronous. Raises ConfigurationError for
        what is no connection of the store's driver.
        """


class CommittedConnection(Protocol):
    """A connection or session: of psycopg, sqlite3, SQLAlchemy or Django."""

    def commit(self) -> None:
        """Never called by us: the caller commits, or rolls back."""


class DjangoConnection(Protocol):
    """``django.db.connection``, which passes everything on: a checker sees no more of it."""

    def __getattr__(self, item: str) -> Any: ...

    def __contains__(self, key: str, /) -> bool: ...


class AwaitedConnection(Protocol):
    """As the first, awaited: of psycopg, aiosqlite or SQLAlchemy."""

    def commit(self) -> Awaitable[None]:
        """Never called by us."""


class AsyncpgConnection(Protocol):
    """Its transactions are blocks."""

    def is_in_transaction(self) -> bool:
        """It has to be."""


class AsyncpgPoolConnection(Protocol):
    """The same from a pool, which passes everything on."""

    _holder: Any


Connection = CommittedConnection | DjangoConnection
AsyncConnection = AwaitedConnection | AsyncpgConnection | AsyncpgPoolConnection


class Cursor(Protocol):
    """Of PEP 249, with ``%s`` for places on PostgreSQL; on SQLite it is the driver's own."""

    def execute(self, statement: str, values: Sequence[object] = ..., /) -> Any: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...


class JobsOnConnection(Protocol):
    """Nothing here begins or ends a transaction. Errors are those of the connection's library, and InvalidJob."""

    def enqueue_in(self, connection: object, job: NewJob) -> Job:
        """``connection``: the library's own. The job exists if and only if its owner commits."""

    def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""

    def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        """What its last ten attempts left that did not complete."""

    def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Due jobs, now processing in this transaction alone: for tests that see what only they have written."""

    def settle(self, lease: Lease, settlement: Settlement) -> bool:
        """Record how an attempt ended; False: the lease holds nothing any more."""

    def live(self) -> int:
        """Jobs that have not ended."""

    def empty(self) -> None:
        """Remove all rows of ``install``'s tables, jobs in whatever state; what is known of workers stays."""

    def install(self) -> None:
        """What is missing of the tables. No event loop may run in this thread. Raises SchemaError."""

    def uninstall(self) -> None:
        """Remove all that ``install`` has made, jobs included."""


class JobStanding(msgspec.Struct, frozen=True):
    """How a job stands that has ended, that has made place for another one under its key, or that is nowhere."""

    job_id: int
    state: State | None = None
    """``None``: there is no trace of it."""
    is_known: bool = True
    """A job once had this id."""
    attempts: int = 0
    resets: int = 0
    last_error: str | None = None
    result_text: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    revision: int = 0
    replaced: int | None = None
    """The revision at which another job last took its place; ``None``: none did."""

    def ends(self, revision: int) -> bool:
        """Nothing more comes of the job as it was at this revision."""
        return self.state is None or self.state.terminal or self.is_replaced(revision)

    def is_replaced(self, revision: int) -> bool:
        """Another job has its place, and its id."""
        return self.replaced is not None and self.replaced > revision

    @property
    def is_dropped(self) -> bool:
        """It returned something that could not be kept."""
        return self.result_text == DROPPED_RESULT

    def applied(self, job: Job) -> Job:
        """The job as it stands now."""
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
    """How jobs ended. ``stores.kernel.results.ResultPoll`` asks, once for all callers of a loop."""

    @property
    def min_pause(self) -> float:
        """Seconds between two questions about the same job, at least."""

    @property
    def hear(self) -> Callable[[], Awaitable[object]] | None:
        """Returns after a commit that came since its last call; ``None``: the store does not hear of commits."""

    async def retention(self) -> float | None:
        """Seconds for which completed and canceled jobs are kept; ``None``: not at all."""

    async def ask(self, job_ids: Sequence[int]) -> Sequence[JobStanding]:
        """Those of them that have ended, have made place for another job, or are nowhere; in any order."""
