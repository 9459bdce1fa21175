"""What a queue does inside the transaction of a connection that is another library's, step by step and at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.tries import Try
from stowhand.protocols.store import Claim, ClaimRequest


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
