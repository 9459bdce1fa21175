"""Lent store: a queue or a user's table, and the operations that only one of them has."""

from __future__ import annotations

from typing import Any, cast

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt import Attempt, ExecutionLog
from stowhand.protocols.queue_store import AnyStore, JobFilter, QueueStore
from stowhand.protocols.store import Claim
from stowhand.remote.server.refusals import Refused
from stowhand.remote.wire import ErrorKind, TermsReply
from stowhand.retry import wait

QUEUE, TABLE = "queue", "table"


class SharedStore:
    """Lent store, with its terms and its operations beyond claims."""

    def __init__(self, store: AnyStore[Any]) -> None:
        self.store = store
        self.kind = QUEUE if store.jobs is not None else TABLE
        self.name = store.capabilities.table or self.kind
        self._enclosing = store.enclosing
        if self._enclosing is not None and self._log(Lease("", "", 0)) is None:
            raise ConfigurationError(
                f"{self.name}: transactional handlers need a connection to the database, so they do not run over HTTP;"
                " lend a TableStore with transactional=False"
            )

    def lease(self, requested_seconds: float) -> float:
        """Return the seconds of a lease: those of the store's terms, otherwise the requested ones."""
        terms = self.store.terms
        return requested_seconds if terms is None else terms.lease

    def terms(self) -> TermsReply:
        """Return the store's terms for remote workers."""
        terms = self.store.terms
        return TermsReply(
            name=self.name,
            kind=self.kind,
            lease=terms.lease if terms is not None else None,
            heartbeat_interval=terms.heartbeat_interval if terms is not None else None,
            cancel_interval=terms.cancel_interval if terms is not None else None,
            retry_after=wait(terms.backoff, 1, None) if terms is not None and terms.backoff is not None else None,
            polls=terms is not None and terms.polls,
            logs=self._enclosing is not None,
        )

    def queue(self, operation: str) -> QueueStore:
        """Return the store as a queue. Raises Refused for a table, which does not support the operation."""
        if self.kind != QUEUE:
            raise Refused(
                ErrorKind.UNKNOWN,
                f"the table {self.name!r} does not support {operation}",
                "its rows belong to the application: use SQL in the database",
            )
        return cast("QueueStore", self.store)

    async def holder(self, key: str) -> Job | None:
        """Return the live job with this key."""
        jobs = await self.queue("enqueueing").inspect.list(JobFilter(key=key, limit=1))
        return jobs[0] if jobs else None

    def log_of(self, lease: Lease) -> ExecutionLog:
        """Return the execution log of the attempt with this lease. Raises Refused if the store keeps none."""
        log = self._log(lease)
        if log is None:
            raise Refused(
                ErrorKind.UNKNOWN,
                "this store keeps no execution logs",
                "lend a table, or log on the worker's machine",
            )
        return log

    def _log(self, lease: Lease) -> ExecutionLog | None:
        """Return the log; ``None`` also if the store needs a transaction around the attempt."""
        if self._enclosing is None:
            return None
        attempt: Attempt[Any] = Attempt(Claim(lease, None, self.name, 1, 1), 0.0)
        if self._enclosing.around(attempt) is not None:
            return None
        log: ExecutionLog = attempt.store
        return log
