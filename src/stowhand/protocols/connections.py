"""Connections and sessions of users' libraries: what ``enqueue_in`` accepts, and what a queue does inside their
transactions.

For type checkers, a ``commit`` that returns nothing makes an object synchronous, one that is awaited asynchronous;
asyncpg has none. At run time the stores recognize a connection (``stores/callers``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.tries import Try
from stowhand.protocols.store import Claim, ClaimRequest


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

    def tries(self, job_id: int) -> Sequence[Try]:
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
