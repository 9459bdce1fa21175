"""The queue on a connection of another library: its statements, run by a cursor of any driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, cast

from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.producer import Cursor
from stowhand.protocols.store import Claim, ClaimRequest, StoreOptions
from stowhand.protocols.validation import validate_id
from stowhand.stores.callers.caller import function_call
from stowhand.stores.database.link import Session
from stowhand.stores.postgres.queue.claims import MAX_ROUNDS, UNFINISHED_ID, limit_values, queue_values
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.in_transaction import InTransaction
from stowhand.stores.postgres.queue.installer import Installer
from stowhand.stores.postgres.queue.rows import Row, read_failed_attempt, read_job
from stowhand.stores.postgres.queue.settlements import QueuePlan

_NONEMPTY_TABLES = """
select format('%%I.%%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relkind = 'r' and c.relname <> all (%s) and pg_relation_size(c.oid) > 0"""
_KEPT_TABLES = ["applied_migrations", "settings", "workers", "app_versions"]
"""Migrations fill the first two tables. A running worker needs its row in the others."""


class PostgresOnConnection:
    """The queue in the transaction of a connection's owner.

    ``cursor`` returns a cursor for one statement. ``raw`` returns the driver's connection for work on an event loop, in
    which the library may refuse to return a cursor.
    """

    def __init__(self, cursor: Callable[[], Cursor], raw: Callable[[], Any], options: StoreOptions) -> None:
        self._cursor = cursor
        self._raw = raw
        self._context = PostgresContext("postgresql://", options)
        self._plan = QueuePlan(self._context)
        self._in_transaction = InTransaction(self._context)

    def enqueue_in(self, connection: object, job: NewJob) -> Job:
        enqueued = self._in_transaction.enqueue_in(connection, job)
        assert isinstance(enqueued, Job)  # no library that passes its connection here is asynchronous
        return enqueued

    def get(self, job_id: int) -> Job | None:
        rows = self._rows("get", (validate_id(job_id),))
        return read_job(rows[0]) if rows else None

    def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        return [read_failed_attempt(row) for row in self._rows("tries", (validate_id(job_id),))]

    def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        tasks = None if request.tasks is None else list(request.tasks)
        values = (
            *(request.worker, request.token, request.limit, request.lease, tasks, None, False),
            *(self._context.now(), None, None, None, None, False),
            *queue_values(request.queues),
            *limit_values(request),
        )
        rows = self._rows("claim", values)
        for _ in range(MAX_ROUNDS):
            if not rows or rows[0][0] != UNFINISHED_ID:
                break
            rows = self._rows("claim", values)
        return [self._claim(row[0], row[-1], request.token) for row in rows if row[0] > 0]

    def settle(self, lease: Lease, settlement: Settlement) -> bool:
        query = self._plan.settle([(lease, settlement)])
        written = [query.read(row)[1] for row in self._run(query.statement, query.values)]
        for job in settlement.then if written == [settlement.state] else ():
            text = self._in_transaction.text_of(job)
            self._run(function_call(self._in_transaction.function).encode(), (text,))
        return bool(written)

    def count_unfinished(self) -> int:
        schema = self._context.fillings["schema"]
        ((count,),) = self._run(f"select count(*) from {schema}.live where state <> 'failed'".encode(), ())
        return int(count)

    def empty(self) -> None:
        if tables := [name for (name,) in self._run(_NONEMPTY_TABLES.encode(), (self._context.schema, _KEPT_TABLES))]:
            self._cursor().execute(f"truncate {', '.join(tables)} cascade".replace("%", "%%"), ())

    def install(self) -> None:
        asyncio.run(self._installer().install())

    def uninstall(self) -> None:
        asyncio.run(self._installer().uninstall())

    def _installer(self) -> Installer:
        session = _OwnerSession(self._raw())

        @asynccontextmanager
        async def connect() -> AsyncIterator[Session]:
            yield cast("Session", session)

        return Installer(self._context, connect)

    def _claim(self, job_id: int, epoch: int, token: str) -> Claim[Job]:
        job = self.get(job_id)
        assert job is not None  # it has just been claimed in this transaction
        return Claim(Lease(job_id, token, epoch), job, job.task, job.attempts, job.max_attempts, job.serial, job.resets)

    def _rows(self, name: str, values: Sequence[object]) -> list[Row]:
        return self._run(self._context.statements[name], values)

    def _run(self, statement: bytes, values: Any) -> list[Row]:
        cursor = self._cursor()
        cursor.execute(statement.decode(), values)
        return cursor.fetchall()


class _OwnerSession:
    """The owner's connection as a session for the installer. Calls block, and run in the owner's transaction."""

    needs_transaction = False

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._cursor: Any = None

    def reader(self) -> _OwnerSession:
        return self

    def prepare_setting(self, should_prepare: bool | None) -> None:
        """Do nothing: the driver may not prepare statements."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return nullcontext()

    async def execute(self, statement: bytes, values: Sequence[object] | None = None, *, prepare: None = None) -> None:
        self._cursor = self._raw.cursor()
        text = statement.decode()
        # Without values, a % is an ordinary character, as the installer expects. psycopg2 refuses a text of comments.
        if any(line and not line.startswith("--") for line in map(str.strip, text.splitlines())):
            self._cursor.execute(text, values)

    @property
    def rownumber(self) -> int | None:
        return None if self._cursor.description is None else 0

    async def fetchall(self) -> list[Row]:
        return cast("list[Row]", self._cursor.fetchall())
