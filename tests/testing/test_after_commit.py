"""``enqueue_in`` in a test in memory: the job is there after the caller's commit, where that can be heard."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from stowhand import App
from stowhand.errors import ConfigurationError
from stowhand.testing import Jobs

app = App("sqlite:///never-made.db")


@app.task
async def send(to: str) -> str:
    return to


@pytest.fixture
def stowhand_app() -> App:
    return app


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    yield engine
    engine.dispose()


def waiting(jobs: Jobs) -> list[str]:
    return [job.payload["to"] for job in jobs.enqueued]


def test_a_session_shows_its_jobs_when_it_has_committed(jobs: Jobs, engine: Engine) -> None:
    with Session(engine) as session:
        job = send.enqueue_in(session, "a")
        send.enqueue_in(session, "b")
        assert waiting(jobs) == []
        session.commit()
        assert waiting(jobs) == ["a", "b"]
        send.enqueue_in(session, "c")
        session.rollback()
        send.enqueue_in(session, "d")
    assert waiting(jobs) == ["a", "b"]  # the last was closed without a commit
    assert jobs.assert_enqueued(send, to="a").id == job.id
    assert jobs.drain().results == ["a", "b"]


def test_a_savepoint_takes_its_jobs_with_it(jobs: Jobs, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        send.enqueue_in(session, "before")
        with session.begin_nested() as outer:
            send.enqueue_in(session, "outer")
            with session.begin_nested():
                send.enqueue_in(session, "inner")
            outer.rollback()
        with session.begin_nested():
            send.enqueue_in(session, "kept")
    assert waiting(jobs) == ["before", "kept"]
    with engine.connect() as connection, connection.begin():
        with connection.begin_nested() as begun_before:
            send.enqueue_in(connection, "gone")
            begun_before.rollback()
        send.enqueue_in(connection, "after")
    assert waiting(jobs) == ["before", "kept", "after"]


@pytest.mark.parametrize("kind", [Connection, scoped_session])
def test_connections_and_scoped_sessions_too(jobs: Jobs, engine: Engine, kind: type) -> None:
    if kind is Connection:
        with engine.begin() as connection:
            send.enqueue_in(connection, "a")
            assert waiting(jobs) == []
    else:
        instance = scoped_session(sessionmaker(engine))
        send.enqueue_in(instance, "a")
        assert waiting(jobs) == []
        instance.commit()
        instance.remove()
    assert waiting(jobs) == ["a"]


def test_asynchronous_resources_work_too(jobs: Jobs) -> None:
    async def scenario() -> None:
        engine = create_async_engine("sqlite+aiosqlite://")
        async with AsyncSession(engine) as session:
            job = await send.enqueue_in(session, "a")
            assert (job.id, waiting(jobs)) == (1, [])
            await session.commit()
            assert waiting(jobs) == ["a"]
        async with AsyncConnection(engine) as connection:
            await connection.execute(text("select 1"))
            await send.enqueue_in(connection, "b")
            await connection.rollback()
        assert (await jobs.adrain()).results == ["a"]
        await engine.dispose()

    asyncio.run(scenario())


def test_a_key_that_was_given_away_before_the_commit_is_shared(jobs: Jobs, engine: Engine) -> None:
    keyed = send.options(key="k")
    with Session(engine) as session:
        keyed.enqueue_in(session, "mine")
        app.sync.enqueue(keyed, "theirs")
        assert waiting(jobs) == ["theirs"]
        session.commit()
    assert waiting(jobs) == ["mine"]


def test_without_commit_notifications_a_job_runs_at_once_with_a_warning(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        send.enqueue_in(connection, "a")
        send.enqueue_in(connection, "b")
        connection.rollback()
    assert waiting(jobs) == ["a", "b"]
    (said,) = [record.getMessage() for record in caplog.records if "enqueue_in" in record.getMessage()]
    assert "a Connection does not report its commit" in said


@pytest.mark.parametrize("wrong", ["engine", 3])
def test_what_is_no_connection_is_refused(jobs: Jobs, engine: Engine, wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="enqueue_in needs a connection or a session"):
        send.enqueue_in(engine if wrong == "engine" else wrong, "x")  # type: ignore[call-overload]
