"""A table of jobs as an application has it, SQL behind the store's back, and the store's own verbs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, Cancel, Fail, Outcome, Retry, Settlement, Snooze, settle
from stowhand.protocols.store import ClaimRequest, Heartbeats, Reply
from stowhand.stores.postgres.table import PostgresTable
from stowhand.stores.table.backend import ClaimedRow
from stowhand.stores.table.names import read_shape
from stowhand.stores.table.options import TableOptions
from tests.support.jobs_table import columns, jobs_table

COLUMNS = columns()
TABLE = jobs_table("jobs", "path text not null default 'p'", "size int default 1")


class Jobs:
    """A database of the tests; each test makes the table that it is about."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    def make(self, *statements: str) -> None:
        """Begin with these tables and nothing else."""
        self.sql("drop schema if exists app cascade")
        self.sql("drop schema public cascade; create schema public; create schema app")
        for statement in statements or (TABLE,):
            self.sql(statement)

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """One statement, committed at once."""
        cursor = self._connection.execute(text.encode(), values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def add(self, number: int = 1, /, **columns: Any) -> list[Any]:
        """Insert so many alike; their ids. A value in a tuple of one is SQL."""
        columns = columns or {"state": "queued"}
        names, places = (
            ", ".join(columns),
            ", ".join(str(value[0]) if isinstance(value, tuple) else "%s" for value in columns.values()),
        )
        values = [value for value in columns.values() if not isinstance(value, tuple)]
        text = f"insert into jobs ({names}) select {places} from generate_series(1, {number}) returning id"
        return [row[0] for row in self.sql(text, *values)]

    def row(self, job_id: object) -> dict[str, Any]:
        with self._connection.cursor(row_factory=dict_row) as cursor:
            result = cursor.execute("select * from jobs where id = %s", (job_id,)).fetchone()
        assert result is not None, f"row {job_id} is gone"
        return result

    def states(self) -> list[str]:
        return [state for (state,) in self.sql("select state from jobs order by id")]

    def hang_up(self, role: str) -> None:
        """End the store's connections that serve this; they are gone when it returns."""
        name = f"stowhand:{role}%"
        self.sql("select pg_terminate_backend(pid, 20000) from pg_stat_activity where application_name like %s", name)

    @contextmanager
    def locked(self, where: str = "true", how: str = "for update") -> Iterator[psycopg.Connection[Any]]:
        """Somebody's open transaction on these rows."""
        with psycopg.connect(self.url) as other:
            other.execute(f"select id from jobs where {where} {how}".encode())
            yield other
            other.rollback()

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Several statements, on a connection of their own."""
        with psycopg.connect(self.url) as connection:
            yield connection

    @asynccontextmanager
    async def served(self, *, pinned: Callable[[], datetime] | None = None, **given: Any) -> AsyncIterator[Served]:
        """The store on it, open."""
        options = TableOptions(**({"name": "jobs", "table_name": "jobs"} | given))
        shape = read_shape(options.table_name, options.view_name, options.alternate_column_names)
        table = PostgresTable(self.url, options, shape, pinned=pinned)
        await table.open()
        heartbeats = table.heartbeats()
        try:
            yield Served(table, heartbeats)
        finally:
            await heartbeats.close()
            await table.close()


class Served:
    """An open store."""

    def __init__(self, table: PostgresTable, heartbeats: Heartbeats) -> None:
        self.table, self.heartbeats = table, heartbeats

    async def claim(
        self, limit: int = 10, *, worker: str = "w1", token: str = "", **asked: Any
    ) -> Sequence[ClaimedRow]:
        request = ClaimRequest(worker=worker, token=token or new_token(), limit=limit, lease=30.0, **asked)
        return await self.table.claim(request)

    async def ids(self, limit: int = 10, **asked: Any) -> list[Any]:
        return [taken.lease.job_id for taken in await self.claim(limit, **asked)]

    async def take(self, **asked: Any) -> Lease:
        (taken,) = await self.claim(1, **asked)
        return taken.lease

    async def settle(self, lease: Lease, settlement: Settlement = COMPLETED, *, repeat: bool = False) -> Reply:
        (verdict,) = await self.table.settle([(lease, settlement)], repeat=repeat)
        return verdict


async def until(there: Callable[[], object]) -> None:
    """Look again and again, on a loop that goes on meanwhile."""
    while not there():  # noqa: ASYNC110 - what it waits for happens in a server
        await asyncio.sleep(0.005)


def judged(outcome: Outcome, attempts: int = 1, max_attempts: int = 3) -> Settlement:
    return settle(outcome, attempts=attempts, max_attempts=max_attempts, backoff=lambda attempt: 60.0)


def new_token() -> str:
    return str(uuid.uuid4())


ERRORED = judged(Retry("it failed"))
FAILED = judged(Fail("it is broken"))
SNOOZED = judged(Snooze(60.0))
CANCELED = judged(Cancel("not wanted"))
SETTLEMENTS = {
    State.COMPLETED: COMPLETED,
    State.ERRORED: ERRORED,
    State.FAILED: FAILED,
    State.QUEUED: SNOOZED,
    State.CANCELED: CANCELED,
}
