"""More slots than connections: a job waits for its first one, and goes back unspent rather than spend an attempt."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg_pool
import pytest

from stowhand.app.app import App
from stowhand.errors import ConfigurationError
from stowhand.events import ConnectionAwaited, Events, JobEnded
from stowhand.jobs.job import Job, State
from stowhand.jobs.lifecycle import Ended
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.store import StoreOptions
from stowhand.stores.database import borrower, link
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.tasks import dispatch
from stowhand.tasks.context import BlockingHelpers, Context

ONE = 6
"""A pool of one connection for tasks, and the worker's five."""


class Crowd:
    """An App whose task ``hog`` holds the only connection until it is let go, and whatever else is declared."""

    def __init__(self, url: str, **options: Any) -> None:
        self.app = App(url, **({"pool_size": ONE} | options))
        self.taken, self.free = asyncio.Event(), asyncio.Event()
        self.told: list[ConnectionAwaited] = []

        @self.app.task
        async def hog(ctx: Context) -> None:
            async with ctx.connection():
                self.taken.set()
                await self.free.wait()

        self.hog = hog

    async def run(self, name: str, until: Ended) -> Job:
        """Beside the hog run one job of that task, until an attempt of it has ended so."""
        events, over = Events(), asyncio.Event()
        events.on(ConnectionAwaited, self.told.append)
        events.on(JobEnded, lambda event: over.set() if (event.task, event.ended) == (name, until) else None)
        async with self.app, self.app.run_in_background(events=events, concurrency=2):
            await self.hog.enqueue()
            await self.taken.wait()
            store = await self.app.open()
            await store.jobs.enqueue(self.app.registry.new_job(name, None, {}))
            await asyncio.wait_for(over.wait(), 10)
            self.free.set()
            return await _only(store, name)


async def _only(store: Any, name: str) -> Job:
    (job,) = await store.inspect.list(JobFilter(task=name))
    return job  # type: ignore[no-any-return]


@pytest.fixture
def crowd(postgres_url: str) -> Crowd:
    return Crowd(postgres_url)


async def test_a_job_that_finds_no_first_connection_goes_back_unspent_and_is_told(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(borrower, "FIRST", 0.1)

    @crowd.app.task
    async def modest(ctx: Context) -> None:
        try:
            async with ctx.connection():
                pass
        except Exception as error:
            raise RuntimeError("what a task makes of it is still the same trouble") from error

    job = await crowd.run("modest", Ended.SNOOZED)
    assert (job.attempts, job.last_error) == (0, None)
    assert [(event.job_id, event.task, event.times, event.later) for event in crowd.told] == [(job.id, "modest", 1, 30)]


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_timeout_while_it_waits_spends_nothing_either(crowd: Crowd, threaded: bool) -> None:
    @crowd.app.task(timeout=0.2)
    async def modest(ctx: Context) -> None:
        async with ctx.connection():
            pass

    @crowd.app.task(timeout=0.2)
    def blocking(helpers: BlockingHelpers) -> None:
        helpers.query("select 1")

    job = await crowd.run("blocking" if threaded else "modest", Ended.SNOOZED)
    assert (job.attempts, job.last_error) == (0, None)
    assert [event.times for event in crowd.told] == [1]


async def test_a_timeout_after_the_connection_was_found_is_an_error(crowd: Crowd) -> None:
    crowd.free.set()

    @crowd.app.task(timeout=0.1)
    async def modest(ctx: Context) -> None:
        async with ctx.connection():
            await asyncio.sleep(60)

    job = await crowd.run("modest", Ended.RETRY)
    assert job.attempts == 1
    assert job.last_error is not None
    assert "timed out" in job.last_error
    assert crowd.told == []


async def test_after_so_many_times_it_is_an_error_of_the_attempt(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borrower, "FIRST", 0.02)
    monkeypatch.setattr(dispatch, "LATER", 0.0)

    @crowd.app.task
    async def modest(ctx: Context) -> None:
        async with ctx.connection():
            pass

    job = await crowd.run("modest", Ended.RETRY)
    assert job.attempts == 1
    assert job.last_error is not None
    assert "all connections (1 that tasks may have) are in use, and none became free within 0.02 s" in job.last_error
    assert [event.times for event in crowd.told] == [1, 2, 3, 4, 5, 6]


async def test_an_attempt_that_holds_one_waits_no_longer_than_a_statement_for_another(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "DEADLINE", 0.1)
    crowd = Crowd(postgres_url, pool_size=ONE + 1)

    @crowd.app.task
    async def greedy(ctx: Context) -> None:
        async with ctx.connection(), ctx.connection():
            pass

    job = await crowd.run("greedy", Ended.RETRY)
    assert job.attempts == 1
    assert job.last_error is not None
    assert "this attempt holds one already" in job.last_error
    assert crowd.told == []


async def test_of_a_pool_of_the_applications_too(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borrower, "FIRST", 0.1)
    async with psycopg_pool.AsyncConnectionPool(postgres_url, min_size=1, max_size=1, open=False) as pool:
        app = App(pool=pool)

        @app.task
        async def modest(ctx: Context) -> None:
            async with ctx.connection():
                pass

        told: list[ConnectionAwaited] = []
        events, gone_back = Events(), asyncio.Event()
        events.on(ConnectionAwaited, told.append)
        events.on(ConnectionAwaited, lambda event: gone_back.set())
        async with app:
            await modest.enqueue()
            async with pool.connection(), app.run_in_background(events=events, concurrency=2):
                await asyncio.wait_for(gone_back.wait(), 10)
            job = await _only(await app.open(), "modest")
    assert (job.attempts, job.last_error, len(told)) == (0, None, 1)


async def test_without_a_size_the_pool_has_a_connection_for_every_slot(postgres_url: str) -> None:
    app, together = App(postgres_url), asyncio.Barrier(12)

    @app.task
    async def hold(ctx: Context) -> None:
        async with ctx.connection():
            await asyncio.wait_for(together.wait(), 10)

    async with app:
        await app.enqueue_many(hold.new_job() for _ in range(12))
        worker = app.worker(concurrency=12, once=True)
        await worker.run()
        assert (await (await app.open()).inspect.counts())[State.COMPLETED] == 12


async def test_a_pool_with_fewer_connections_than_slots_is_said_with_the_sum(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(postgres_url, pool_size=6)
    app.task(hold)
    with caplog.at_level(logging.WARNING, "stowhand"):
        async with app:
            app.worker(concurrency=8)
    assert "8 + 5 = 13, so tasks have 1 for 8 jobs" in caplog.text


async def test_a_pool_that_leaves_none_to_tasks_is_refused(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, StoreOptions(pool_size=5))
    with pytest.raises(ConfigurationError, match=r"5 \+ 1 = 6"):
        store.connections.seat(1)


async def hold() -> None:
    """Nothing."""
