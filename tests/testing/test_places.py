"""The fixture ``jobs`` on real stores: the same test in memory, in a file, and on PostgreSQL."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest

from stowhand import App, Context
from stowhand.testing import Jobs
from stowhand.testing.stores import ServerSchema
from tests.support.databases import Databases

app = App("postgresql://nobody@127.0.0.1:1/never")
done: list[object] = []


@app.task
async def send(to: str) -> str:
    done.append(to)
    return to


@app.task(backoff=lambda attempt: 60.0)
def flaky(ctx: Context) -> None:
    if ctx.attempt < 3:
        raise OSError("no answer")
    app.sync.enqueue(send, "from a thread")


@app.task
async def hourly() -> None:
    done.append("hourly")


app.cron("0 * * * *", hourly)

everywhere = pytest.mark.stowhand(store=["memory", "sqlite", "postgres"])


@pytest.fixture
def stowhand_app() -> App:
    done.clear()
    return app


@pytest.fixture(scope="session")
def stowhand_server(postgres_server: Databases) -> Iterator[ServerSchema]:
    with postgres_server.lend(None) as url:
        server = ServerSchema(url)
        yield server
        server.drop()
        with psycopg.connect(url) as connection:
            result = connection.execute("select nspname from pg_namespace where nspname like 'stowhand%'").fetchall()
        assert result == []


@everywhere
def test_a_test_without_a_loop(jobs: Jobs) -> None:
    assert app.sync.enqueue(send, "x").id == 1
    assert jobs.assert_enqueued(send, to="x").id == 1
    assert jobs.drain().results == ["x"]
    assert not jobs.enqueued


@everywhere
def test_a_test_in_a_loop_of_its_own_leaves_no_connection_behind(jobs: Jobs, recwarn: pytest.WarningsRecorder) -> None:
    async def scenario() -> None:
        job = await send.options(delay=60).enqueue("x")
        assert job.id == 1  # whatever the tests before had
        assert len(await jobs.adrain()) == 0
        jobs.assert_enqueued(send, to="x")
        assert "x" in (await jobs.aadvance("1m")).results
        assert await job.result() == "x"

    asyncio.run(scenario())
    gc.collect()
    assert [str(one.message) for one in recwarn] == []


@everywhere
@pytest.mark.stowhand(now="2030-01-01T12:30")
def test_time_passes_on_the_store_itself(jobs: Jobs) -> None:
    assert jobs.now == datetime(2030, 1, 1, 12, 30, tzinfo=UTC)
    app.sync.enqueue(flaky)
    assert jobs.drain(raises=False).counts == {"retry": 1}
    assert jobs.advance("1h", raises=False).counts == {"retry": 1, "ok": 3}
    assert done == ["from a thread", "hourly"]
    assert jobs.advance("3h").counts == {"ok": 3}


@pytest.mark.stowhand(store="postgres")
def test_the_transaction_of_a_test_takes_the_job_with_it(jobs: Jobs, stowhand_server: ServerSchema) -> None:
    with psycopg.connect(stowhand_server.url) as connection:
        send.enqueue_in(connection, "rolled back")
        connection.rollback()
        send.enqueue_in(connection, "committed")
    assert jobs.drain().results == ["committed"]
