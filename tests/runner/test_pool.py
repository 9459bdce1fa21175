"""A pool of the program's own: borrowed from, never closed, and its connections left as they were found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from stowhand.app.app import App
from stowhand.errors import ConfigurationError, StoreUnreachable
from stowhand.jobs.job import State
from stowhand.protocols.store import StoreOptions
from stowhand.runner import make_worker_utils, quick_add_job, run, run_once
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.tasks.context import Helpers


@asynccontextmanager
async def pool_at(url: str, size: int = 2, **options: Any) -> AsyncIterator[AsyncConnectionPool[Any]]:
    async with AsyncConnectionPool(url, min_size=1, max_size=size, **options) as pool:
        yield pool
        assert not pool.closed, "it is ours"
        async with pool.connection() as connection:
            await connection.execute("select 1")


async def test_a_worker_and_its_tasks_use_the_pool(postgres_url: str) -> None:
    ran: list[Any] = []

    async def task(payload: Any, helpers: Helpers) -> None:
        ran.append(await helpers.query("select current_setting('application_name') as name"))
        await helpers.add_job("other")

    async with pool_at(postgres_url, kwargs={"application_name": "the program"}) as pool:
        async with await make_worker_utils(pg_pool=pool) as utils:
            await utils.add_job("task")
        await run_once(pg_pool=pool, task_list={"task": task})
        assert (await quick_add_job({"pg_pool": pool}, "task")).id == 3
    assert ran == [[{"name": "the program"}]]


async def test_connections_are_left_as_they_were_found(postgres_url: str) -> None:
    """Whatever a connection is made like, our statements work on it, and it is the same afterwards."""
    for autocommit in (False, True):
        kwargs = {"autocommit": autocommit, "row_factory": dict_row, "prepare_threshold": None}
        async with pool_at(postgres_url, size=1, kwargs=kwargs) as pool:
            async with await make_worker_utils(pg_pool=pool) as utils:
                await utils.add_job("x", job_key="k")
                await utils.add_jobs([{"identifier": "x"}, {"identifier": "y", "job_key": "l"}])
                await utils._store.jobs.enqueue_many([])
                assert sum((await utils._store.inspect.counts()).values()) == (4 if autocommit else 3)
            async with pool.connection() as connection:
                assert connection.autocommit is autocommit
                assert connection.row_factory is dict_row
                assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
                cursor = await connection.execute("select now() as moment, count(*) as n from pg_prepared_statements")
                row = await cursor.fetchone()
                assert row is not None
                assert row["n"] == 0


async def test_a_callback_that_raises_is_rolled_back_even_on_autocommit_connections(
    postgres_url: str,
) -> None:
    counts: list[Any] = []

    async def task(payload: Any, helpers: Helpers) -> None:
        async def fail(connection: Any) -> None:
            await connection.execute("insert into mine values (1)")
            raise LookupError("on purpose")

        await helpers.query("create table mine (id int)")
        with pytest.raises(LookupError):
            await helpers.with_pg_client(fail)
        counts.extend(await helpers.query("select count(*) from mine"))

    async with pool_at(postgres_url, kwargs={"autocommit": True}) as pool:
        async with await make_worker_utils(pg_pool=pool) as utils:
            await utils.add_job("task", max_attempts=1)
        await run_once(pg_pool=pool, task_list={"task": task})
        async with pool.connection() as connection:
            assert connection.autocommit
    assert counts == [{"count": 0}]


async def test_no_prepared_statements_means_none_on_borrowed_connections(postgres_url: str) -> None:
    async with pool_at(postgres_url, size=1) as pool:
        async with await make_worker_utils(pg_pool=pool, no_prepared_statements=True) as utils:
            for _ in range(8):
                await utils.add_job("x")
        async with pool.connection() as connection:
            cursor = await connection.execute("select count(*) from pg_prepared_statements", prepare=False)
            assert await cursor.fetchone() == (0,)


async def test_the_reserved_connections_are_made_as_the_pool_makes_its_own(postgres_url: str) -> None:
    host_only = postgres_url.replace("/stowhand_test_", "/no_such_", 1)
    database = postgres_url.partition("/stowhand_test_")[2].partition("?")[0]
    kwargs = {"dbname": f"stowhand_test_{database}", "options": "-c stowhand.mark=me"}
    store = PostgresStore("postgresql://", StoreOptions(pool=(pool := AsyncConnectionPool(host_only, open=False))))
    assert "no_such_" in store.description
    await store.close()
    await pool.close()
    async with pool_at(host_only, kwargs=kwargs) as pool:
        runner = await run(pg_pool=pool, task_list={"x": lambda payload: None}, no_handle_signals=True)
        listening = asyncio.get_running_loop().create_future()
        runner.events.on("pool:listen:success", lambda event: listening.set_result(event.client))
        client: Any = await listening
        job = await runner.add_job("x")
        made_with = client.info.get_parameters()
        assert (made_with["dbname"], made_with["options"]) == (kwargs["dbname"], kwargs["options"])
        await runner.stop()
        async with await make_worker_utils(pg_pool=pool) as utils:
            assert await utils._store.jobs.get(job.id) is not None


async def test_an_exhausted_pool_is_an_error_in_time_and_no_deadlock(postgres_url: str) -> None:
    """Two tasks hold the only two connections and ask for a third: both fail, and the worker goes on."""
    together = asyncio.Barrier(2)
    errors: list[BaseException] = []

    async def greedy(payload: Any, helpers: Helpers) -> None:
        async def inner(connection: psycopg.AsyncConnection[Any]) -> None:
            await together.wait()
            pool.timeout = 0.3
            try:
                await helpers.add_job("never")
            except StoreUnreachable as error:
                errors.append(error)
            await together.wait()
            pool.timeout = 30.0

        await helpers.with_pg_client(inner)

    async with pool_at(postgres_url, size=2) as pool, await make_worker_utils(pg_pool=pool) as utils:
        await utils.add_jobs([{"identifier": "greedy"}, {"identifier": "greedy"}])
        await run_once(pg_pool=pool, task_list={"greedy": greedy}, concurrency=2)
        assert (await utils._store.inspect.counts())[State.COMPLETED] == 2
    assert len(errors) == 2
    assert "no connection of the pool became free" in str(errors[0])


async def test_a_pool_that_is_not_open_is_refused(postgres_url: str) -> None:
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(postgres_url, open=False)
    with pytest.raises(StoreUnreachable, match="not open"):
        await make_worker_utils(pg_pool=pool)
    await pool.close()


async def test_a_cut_connection_of_the_pool_is_replaced(postgres_url: str) -> None:
    async with pool_at(postgres_url, size=1) as pool, await make_worker_utils(pg_pool=pool) as utils:
        await utils.add_job("x")
        async with pool.connection() as connection:
            pid = connection.info.backend_pid
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 5000)", [pid])
        assert (await utils.add_job("x")).task == "x"


def test_a_pool_with_changing_parameters_is_refused(postgres_url: str) -> None:
    async def scenario() -> None:
        pool: AsyncConnectionPool[Any] = AsyncConnectionPool(lambda: postgres_url, open=False)
        with pytest.raises(ConfigurationError, match="are a function"):
            PostgresStore("postgresql://", StoreOptions(pool=pool))
        await pool.close()

    asyncio.run(scenario())


async def test_an_app_takes_a_pool_instead_of_a_url(postgres_url: str) -> None:
    with pytest.raises(ConfigurationError, match="both given"):
        App(postgres_url, pool=object())
    async with pool_at(postgres_url) as pool:
        app = App(pool=pool)

        @app.task
        async def one() -> int:
            return 1

        async with app:
            job = await one.enqueue()
            await app.worker(once=True).run()
            done = await (await app.open()).jobs.get(job.id)
        assert done is not None
        assert done.result == 1
