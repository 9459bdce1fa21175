"""A task's own statements: ``helpers.query``, ``helpers.with_pg_client``, ``ctx.connection()``."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import sql

from stowhand.app.app import App
from stowhand.errors import ConfigurationError, Misuse
from stowhand.jobs.job import Job, State
from stowhand.protocols.store import StoreOptions
from stowhand.runner import make_worker_utils, run_once
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.tasks.context import BlockingHelpers, Context, Helpers


async def work(url: str, task: Any, **options: Any) -> Job:
    """Run the task once; what became of its job."""
    async with await make_worker_utils(connection_string=url) as utils:
        await utils.migrate()
        job = await utils.add_job("task", max_attempts=1)
        await run_once(connection_string=url, task_list={"task": task}, **options)
        result = await utils._store.jobs.get(job.id)
        assert result is not None
        return result


async def test_a_query_returns_rows_by_column(postgres_url: str) -> None:
    rows: list[Any] = []

    async def task(payload: Any, helpers: Helpers) -> None:
        rows.append(await helpers.query("select 1 as one, %s::text as two", ["b"]))
        rows.append(await helpers.query("select %(x)s::int as x", {"x": 7}))
        rows.append(await helpers.query("create table mine (id int)"))
        rows.append(await helpers.query("insert into mine values (1), (2) returning id"))
        rows.append(await helpers.query("select '%' as percent"))
        composed = sql.SQL("select %s as {}").format(sql.Identifier("grüße"))
        rows.append(await helpers.query(composed, ["€"]))

    job = await work(postgres_url, task)
    assert job.state is State.COMPLETED, job.last_error
    assert rows == [
        [{"one": 1, "two": "b"}], [{"x": 7}], [], [{"id": 1}, {"id": 2}], [{"percent": "%"}], [{"grüße": "€"}],
    ]  # fmt: skip
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select count(*) from mine").fetchone() == (2,)


async def test_a_callback_borrows_a_connection_and_its_result_is_returned(postgres_url: str) -> None:
    got: list[Any] = []

    async def task(payload: Any, helpers: Helpers) -> None:
        async def read(connection: psycopg.AsyncConnection[Any]) -> Any:
            cursor = await connection.execute("select 1 as one")
            return await cursor.fetchone()

        got.append(await helpers.with_pg_client(read))

    assert (await work(postgres_url, task)).state is State.COMPLETED
    assert got == [(1,)]


async def test_a_callback_that_is_not_asynchronous_is_refused_in_an_async_task(postgres_url: str) -> None:
    async def task(payload: Any, helpers: Helpers) -> None:
        never_awaited: Any = lambda connection: None  # noqa: E731
        with pytest.raises(ConfigurationError, match="pass an async function in an async task"):
            await helpers.with_pg_client(never_awaited)
        assert await helpers.query("select 1 as n") == [{"n": 1}], "the connection went back whole"

    job = await work(postgres_url, task)
    assert job.state is State.COMPLETED, job.last_error


async def test_a_connection_is_returned_even_if_the_callback_raises(postgres_url: str) -> None:
    """The pool has one connection for tasks: a second use would wait for ever if the first had kept it."""

    async def task(payload: Any, helpers: Helpers) -> None:
        async def fail(connection: psycopg.AsyncConnection[Any]) -> None:
            await connection.execute("create table undone (id int)")
            raise LookupError("on purpose")

        for _ in range(3):
            with pytest.raises(LookupError):
                await helpers.with_pg_client(fail)
        with pytest.raises(psycopg.errors.DivisionByZero):
            await helpers.query("select 1/0")
        assert await helpers.query("select to_regclass('undone') as name") == [{"name": None}]

    job = await work(postgres_url, task, max_pool_size=6)
    assert job.state is State.COMPLETED, job.last_error


async def test_statements_of_a_task_are_outside_the_transaction_of_its_job(postgres_url: str) -> None:
    """They are committed although the job fails, and the job is settled although they were rolled back."""

    async def task(payload: Any, helpers: Helpers) -> None:
        await helpers.query("create table kept (id int)")
        raise RuntimeError("no")

    assert (await work(postgres_url, task)).state is State.FAILED
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select count(*) from kept").fetchone() == (0,)


async def test_settings_of_a_task_on_a_connection_do_not_affect_the_store(postgres_url: str) -> None:
    async def task(payload: Any, helpers: Helpers) -> None:
        async def spoil(connection: psycopg.AsyncConnection[Any]) -> None:
            connection.row_factory = psycopg.rows.dict_row
            await connection.set_autocommit(True)
            await connection.execute("set default_transaction_read_only = on")

        async def next_one(connection: psycopg.AsyncConnection[Any]) -> Any:
            await connection.execute("set default_transaction_read_only = off")
            return connection.autocommit, await (await connection.execute("select 1")).fetchone()

        await helpers.with_pg_client(spoil)
        assert await helpers.with_pg_client(next_one) == (False, (1,))
        await helpers.with_pg_client(spoil)
        await helpers.add_job("other")

    job = await work(postgres_url, task, max_pool_size=7)
    assert job.state is State.COMPLETED, job.last_error


async def test_no_more_connections_are_open_than_the_pool_allows(postgres_url: str) -> None:
    count = "select count(*) from pg_stat_activity where datname = current_database() and application_name like %s"
    seen: list[int] = []
    store = PostgresStore(postgres_url, StoreOptions(pool_size=7))  # two to be lent, and one that never is
    together = asyncio.Barrier(2)

    async def lend() -> None:
        async with store.connections.connection() as connection:
            await together.wait()
            number = 0
            for _ in range(100):  # the server counts one for some moments after it was closed
                cursor = await connection.execute(count, ["stowhand:%"])
                (number,) = await cursor.fetchone()
                await connection.rollback()  # what is counted stands still within a transaction
                if number == 3:
                    break
                await asyncio.sleep(0.05)
            seen.append(number)
            await together.wait()

    try:
        for _ in range(3):
            await asyncio.gather(store.inspect.counts(), store.inspect.counts())
            await asyncio.gather(lend(), lend())
    finally:
        await store.close()
    assert seen == [3] * 6


async def test_a_synchronous_task_has_blocking_twins(postgres_url: str) -> None:
    got: list[Any] = []

    def task(payload: Any, helpers: BlockingHelpers) -> None:
        got.append(helpers.query("select %s::int as n", [1]))

        def read(connection: Any) -> Any:
            with connection.transaction():
                connection.execute("create table mine as select generate_series(1, 3) as n")
            with connection.cursor() as cursor:
                cursor.execute("select n from mine order by n")
                return [cursor.fetchone(), list(cursor), connection.autocommit]

        got.append(helpers.with_pg_client(read))

        def fail(connection: Any) -> None:
            connection.execute("delete from mine")
            raise LookupError("on purpose")

        with pytest.raises(LookupError):
            helpers.with_pg_client(fail)

        async def later(connection: Any) -> None:
            await connection.execute("delete from mine")

        never_awaited: Any = later
        with pytest.raises(Misuse, match="pass a plain function in a def task"):
            helpers.with_pg_client(never_awaited)
        got.append(helpers.query("select count(*) as n from mine"))

    job = await work(postgres_url, task)
    assert job.state is State.COMPLETED, job.last_error
    assert got == [[{"n": 1}], [(1,), [(2,), (3,)], False], [{"n": 3}]]


async def test_a_typed_task_borrows_a_connection_from_its_context(postgres_url: str) -> None:
    app = App(postgres_url)
    got: list[Any] = []

    @app.task
    async def count(ctx: Context) -> None:
        async with ctx.connection() as connection:
            cursor = await connection.execute("select count(*) from stowhand.live")
            got.append(await cursor.fetchone())

    async with app:
        await count.enqueue()
        await app.worker(once=True).run()
    await app.close()
    assert got == [(1,)]


@pytest.mark.parametrize("blocking", [False, True])
async def test_other_stores_report_that_they_have_no_such_connection(sqlite_url: str, blocking: bool) -> None:
    errors: list[BaseException] = []

    def plain(payload: Any, helpers: BlockingHelpers) -> None:
        try:
            helpers.query("select 1")
        except ConfigurationError as error:
            errors.append(error)

    async def waiting(payload: Any, helpers: Helpers) -> None:
        try:
            await helpers.query("select 1")
        except ConfigurationError as error:
            errors.append(error)

    assert (await work(sqlite_url, plain if blocking else waiting)).state is State.COMPLETED
    assert "PostgreSQL" in str(errors[0])
