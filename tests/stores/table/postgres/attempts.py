"""A transactional table, and a worker's part played by hand: claim, begin, act, settle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import dict_row

from stowhand.jobs.lifecycle import Fail, Outcome, Retry, Settlement, settle
from stowhand.jobs.outcomes import from_error, from_returned
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.store import Claim, ClaimRequest, RefusedSettlement, Reply, Verdict
from stowhand.table import TableOptions, TableStore
from tests.support.jobs_table import jobs_table

TABLES = f"""
drop schema public cascade;
create schema public;
{jobs_table("jobs", "note text")};
create table effects (id serial primary key, job bigint, what text);
"""
WRITE = "insert into effects (job, what) values (%s, %s)"
Work = Callable[[Attempt[Any]], Awaitable[object]]


def options(**given: Any) -> TableOptions[dict[str, Any]]:
    """Of the table above."""
    defaults: dict[str, Any] = {"name": "jobs", "table_name": "jobs", "transactional": True, "max_num_retries": 2}
    return TableOptions(**defaults | given)


class AttemptHarness:
    """One store on that table, and another session that looks on."""

    def __init__(self, url: str, store: TableStore[dict[str, Any]], other: psycopg.AsyncConnection[Any]) -> None:
        self.url, self.store, self.other = url, store, other
        self.heartbeats = store.heartbeats()

    async def execute(self, statement: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        """In the other session, committed at once."""
        cursor = await self.other.execute(statement.encode(), values or None)
        return await cursor.fetchall() if cursor.description else []

    async def claim(self, rows: int = 1) -> Claim[Any]:
        """Insert so many, claim the first."""
        await self.execute(f"insert into jobs (note) select 'n' from generate_series(1, {rows})")
        claims = await self.store.claim(ClaimRequest(worker="w-1", token=str(uuid4()), limit=1, lease=30.0))
        return claims[0]

    async def row(self, job_id: object) -> dict[str, Any]:
        """As other sessions see it."""
        ((row),) = await self.execute("select * from jobs where id = %s", (job_id,))
        return row

    async def effects(self) -> list[str]:
        """What handlers did, as other sessions see it."""
        return [row["what"] for row in await self.execute("select what from effects order by id")]

    @asynccontextmanager
    async def attempt(self, claim: Claim[Any] | None = None) -> AsyncIterator[Attempt[Any]]:
        """A begun attempt; at the end of the block it is rolled back, unless it has ended."""
        attempt: Attempt[Any] = Attempt(claim or await self.claim(), 0.0)
        around = self.store.around(attempt)
        assert around is not None
        try:
            async with around:
                yield attempt
        finally:
            if (transaction := control_of(attempt).transaction) is not None:
                await transaction.rollback()

    async def run(self, work: Work, claim: Claim[Any] | None = None) -> tuple[Reply, dict[str, Any]]:
        """As a worker does it; the verdict, and the row afterwards."""
        async with self.attempt(claim) as attempt:
            try:
                outcome = from_returned(await work(attempt))
            except Exception as error:  # noqa: BLE001 - a worker's boundary
                outcome = from_error(error)
            reply = await self.settle(attempt, control_of(attempt).decided or outcome)
        return reply, await self.row(attempt.lease.job_id)

    async def settle(self, attempt: Attempt[Any], outcome: Outcome) -> Reply:
        """Judge, and record; what the store refuses, otherwise."""
        transaction = control_of(attempt).transaction
        assert transaction is not None
        reply = await transaction.settle(judged(attempt, outcome))
        for instead in (Retry, Fail):
            if isinstance(reply, RefusedSettlement):
                why = f"its settlement could not be written: {reply.reason}"
                reply = await transaction.settle(judged(attempt, instead(why)))
        if isinstance(reply, Settlement):  # what is told is what stands there
            assert reply.state == (await self.row(attempt.lease.job_id))["state"]
            return Verdict.SETTLED
        return reply


def judged(attempt: Attempt[Any], outcome: Outcome) -> Settlement:
    """The settlement."""
    claim = attempt.claim
    return settle(
        outcome,
        attempts=claim.attempts,
        max_attempts=claim.max_attempts,
        backoff=lambda attempts: 0.0,
        then=tuple(attempt.then),
    )


@asynccontextmanager
async def opened(url: str, place: object = None, **given: Any) -> AsyncIterator[AttemptHarness]:
    """The tables made, the store open. ``place``: where the store goes, if not straight to the URL."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row) as other:
        await other.execute(TABLES.encode())
        async with TableStore(place or url, options(**given)) as store:
            harness = AttemptHarness(url, store, other)
            try:
                yield harness
            finally:
                await harness.heartbeats.close()


def write(what: str) -> Work:
    """A handler that leaves that behind."""

    async def work(attempt: Attempt[Any]) -> None:
        await attempt.connection.execute(WRITE, (attempt.lease.job_id, what))

    return work


async def leaves_a_pipeline(attempt: Attempt[Any]) -> None:
    """A handler that does."""
    await attempt.connection.pipeline().__aenter__()
    await attempt.connection.execute(WRITE, (0, "x"))


async def soon(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Until it holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.01)
