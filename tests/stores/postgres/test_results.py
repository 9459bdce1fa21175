"""Waiting for the end of jobs on PostgreSQL: marks, who is notified, and a connection that is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from stowhand.clock import SystemClock
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import ClaimRequest
from stowhand.protocols.waits import Waits
from stowhand.stores.postgres.queue import PostgresStore
from tests.conftest import Run
from tests.contract.store_harness import new_token

HEARD = 60.0


@pytest.fixture(autouse=True)
def only_by_hearing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowhand.stores.postgres.queue.results.HEALTHY", 600.0)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[PostgresStore, Waits]]:
    store = PostgresStore(url)
    await store.schema.install()
    waits = Waits(store.results, SystemClock())
    try:
        async with asyncio.timeout(HEARD):
            yield store, waits
    finally:
        await waits.close()
        await store.close()


async def quiet(waits: Waits) -> None:
    await asyncio.sleep(0)
    while not waits.is_quiet:  # noqa: ASYNC110 - a test looks from outside
        await asyncio.sleep(0.005)


async def complete(store: PostgresStore) -> None:
    (claim,) = await store.claim(ClaimRequest(worker="w", token=new_token(), limit=1, lease=30.0))
    await store.settle([(claim.lease, COMPLETED)])


def test_an_end_is_heard_of_after_the_listening_connection_was_cut(postgres_url: str, run: Run) -> None:
    async def scenario() -> None:
        async with opened(postgres_url) as (store, waits):
            for _ in range(3):
                job = await store.jobs.enqueue(NewJob(task="t"))
                waiter = asyncio.create_task(waits.end(job.id, 0))
                await quiet(waits)
                with psycopg.connect(postgres_url, autocommit=True) as connection:
                    connection.execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity"
                        " where application_name = 'stowhand:results' and datname = current_database()"
                    )
                await complete(store)
                assert (await waiter).state is State.COMPLETED

    run(scenario())


def test_a_row_that_a_transaction_holds_is_marked_when_it_is_free(postgres_url: str, run: Run) -> None:
    async def scenario() -> None:
        async with opened(postgres_url) as (store, waits):
            job = await store.jobs.enqueue(NewJob(task="t"))
            with psycopg.connect(postgres_url) as connection:
                connection.execute("select from stowhand.live where id = %s for update", (job.id,))
                waiter = asyncio.create_task(waits.end(job.id, 0))
                (standing,) = await store.results.mark([job.id])
                assert (standing.is_marked, waits.is_quiet) == (False, False)
            await quiet(waits)
            await complete(store)
            assert (await waiter).state is State.COMPLETED

    run(scenario())


def test_only_who_waits_for_a_job_is_notified_of_its_end(postgres_url: str, run: Run) -> None:
    async def scenario() -> None:
        async with opened(postgres_url) as (store, _), opened(postgres_url) as (other, others):
            awaited = await store.jobs.enqueue(NewJob(task="awaited", delay=3600.0))
            waiter = asyncio.create_task(others.end(awaited.id, 0))
            await quiet(others)
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                for channel in ("stowhand:ended", f"stowhand:ended:{other.results.waiter}"):
                    connection.execute(f'listen "{channel}"'.encode())
                for _ in range(3):
                    await store.jobs.enqueue(NewJob(task="t"))
                    await complete(store)
                assert list(connection.notifies(timeout=0.1, stop_after=1)) == []
                await store.admin.cancel(awaited.id)
                (note,) = connection.notifies(timeout=HEARD, stop_after=1)
            assert (note.channel, note.payload) == (f"stowhand:ended:{other.results.waiter}", "")
            assert (await waiter).state is State.CANCELED

    run(scenario())
