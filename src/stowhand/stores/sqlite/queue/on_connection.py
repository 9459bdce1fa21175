"""The queue on a connection of another library, which may use a database in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.store import Claim, ClaimRequest, StoreOptions, Verdict
from stowhand.protocols.validation import validate_id
from stowhand.stores.callers.sqlite import plain_rows
from stowhand.stores.passed_over import PassedOver
from stowhand.stores.sqlite.queue import claim, moment, schema, settle
from stowhand.stores.sqlite.queue.in_transaction import enqueue_in
from stowhand.stores.sqlite.queue.producer import get
from stowhand.stores.sqlite.queue.rows import to_try
from stowhand.stores.sqlite.queue.transaction import Transaction


class SqliteOnConnection:
    """The queue in the transaction of a connection's owner. ``raw`` returns the driver's connection."""

    def __init__(self, raw: Callable[[], sqlite3.Connection], options: StoreOptions) -> None:
        self._raw = raw
        self._options = options
        self._now = moment.clock(options.pinned)

    def enqueue_in(self, connection: object, job: NewJob) -> Job:
        enqueued = enqueue_in(connection, self._options.with_max_attempts(job), self._make_transaction)
        assert isinstance(enqueued, Job)  # no library that lends its connection here is asynchronous
        return enqueued

    def get(self, job_id: int) -> Job | None:
        with self._transaction() as tx:
            return get(tx, job_id)

    def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        with self._transaction() as tx:
            return [to_try(row) for row in tx.rows("tries", id=validate_id(job_id))]

    def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        passed_over = PassedOver("job", lambda warning: None)
        with self._transaction() as tx:
            while True:
                claimed = claim.claim(tx, request, passed_over) if claim.refresh_heads(tx) else None
                if claimed is not None:
                    return claimed

    def settle(self, lease: Lease, settlement: Settlement) -> bool:
        with self._transaction() as tx:
            return settle.settle_one(tx, lease, settlement, repeat=False) is not Verdict.LOST

    def count_unfinished(self) -> int:
        with self._transaction() as tx:
            ((count,),) = tx.raw.execute("SELECT count(*) FROM stowhand_jobs WHERE state <> 'failed'")
            return int(count)

    def empty(self) -> None:
        with self._transaction() as tx:
            schema.empty(tx.raw)

    def install(self) -> None:
        with self._transaction() as tx:
            schema.install(tx)

    def uninstall(self) -> None:
        with self._transaction() as tx:
            schema.uninstall(tx.raw)

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        raw = self._raw()
        with plain_rows(raw):
            yield self._make_transaction(raw)

    def _make_transaction(self, raw: sqlite3.Connection) -> Transaction:
        return Transaction(raw, self._now(), keeps_history=self._options.history is not None)
