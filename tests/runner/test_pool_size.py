"""Connections for tasks: as many as slots where no size is given, and a clear error where there are fewer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg_pool
import pytest

from stowhand.app.app import App
from stowhand.errors import ConfigurationError
from stowhand.events import Events, JobEnded
from stowhand.jobs.job import State
from stowhand.protocols.store import StoreOptions
from stowhand.stores.database import borrowed_pool, link
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.tasks.context import BlockingHelpers, Context

ONE = 6
"""A pool of one connection for tasks, and the worker's five."""


async def _error_beside_a_hog(app: App, task: str) -> str:
    """The error of that task's attempt while another task holds the only connection that tasks may have."""
    taken, free = asyncio.Event(), asyncio.Event()

    @app.task
    async def hog(ctx: Context) -> None:
        async with ctx.connection():
            taken.set()
            await free.wait()

    events, errors = Events(), asyncio.Queue[str]()
    events.on(JobEnded, lambda event: errors.put_nowait(event.error or "") if event.task == task else None)
    async with app, app.run_in_background(events=events, concurrency=2):
        await hog.enqueue()
        await taken.wait()
        await app.add_job(task)
        error = await asyncio.wait_for(errors.get(), 10)
        free.set()
    return error


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_task_that_finds_no_free_connection_has_an_error_that_says_what_to_do(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, *, threaded: bool
) -> None:
    monkeypatch.setattr(link, "STATEMENT_DEADLINE_SECONDS", 0.1)
    app = App(postgres_url, pool_size=ONE)

    @app.task
    async def modest(ctx: Context) -> None:
        async with ctx.connection():
            pass

    @app.task
    def blocking(helpers: BlockingHelpers) -> None:
        helpers.query("select 1")

    error = await _error_beside_a_hog(app, "blocking" if threaded else "modest")
    assert "all connections (1 that tasks may have) are in use, and none became free within 0.1 s" in error
    assert "allow the pool more, or run fewer jobs at once" in error


async def test_a_task_without_a_free_connection_of_the_applications_pool_has_an_error(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(borrowed_pool, "STATEMENT_DEADLINE_SECONDS", 0.1)
    async with psycopg_pool.AsyncConnectionPool(postgres_url, min_size=1, max_size=2, open=False) as pool:
        app = App(pool=pool)

        @app.task
        async def greedy(ctx: Context) -> None:
            async with ctx.connection(), ctx.connection(), ctx.connection():
                pass

        events, errors = Events(), asyncio.Queue[str]()
        events.on(JobEnded, lambda event: errors.put_nowait(event.error or ""))
        async with app, app.run_in_background(events=events, concurrency=1):
            await greedy.enqueue()
            error = await asyncio.wait_for(errors.get(), 10)
    assert "no connection of the pool became free within 0.1 s; allow the pool more" in error


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


async def test_a_pool_with_fewer_connections_than_slots_is_reported_with_the_required_size(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app: Any = App(postgres_url, pool_size=6)
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
