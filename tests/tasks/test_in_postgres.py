"""The same App on PostgreSQL: the caller's psycopg transaction, and a worker in the background."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from stowhand.app.app import App
from stowhand.jobs.job import State
from tests.app.test_app import add_send, settled
from tests.conftest import Run


@pytest.fixture
def app(postgres_url: str) -> Iterator[App]:
    app = App(postgres_url, schema="jobs", pool_size=7)
    app.sync.install()
    yield app
    app.sync.close()


def test_a_job_commits_and_rolls_back_with_the_callers_transaction(app: App, postgres_url: str, run: Run) -> None:
    send = add_send(app)
    with psycopg.connect(postgres_url) as connection:
        assert send.enqueue_in(connection, "rolled back").payload == {"to": "rolled back"}
        connection.rollback()
        first = send.options(serial="q").enqueue_in(connection, "committed")
        connection.commit()

    async def in_an_async_connection() -> list[Any]:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            await send.enqueue_in(connection, "rolled back")
            await connection.rollback()
            second = await send.enqueue_in(connection, "async")
        async with app:
            async with app.run_in_background(concurrency=2):
                jobs = await settled(await app.open(), first.id, second.id)
            store = await app.open()
            counts = await store.inspect.counts()
            assert counts[State.COMPLETED] == sum(counts.values()) == 2
            return [job.result for job in jobs]

    assert run(in_an_async_connection()) == ["committed", "async"]


def test_scripts_enqueue_many_in_one_transaction(app: App) -> None:
    send = add_send(app)
    ids = app.sync.enqueue_many(send.new_job(str(number)) for number in range(2_500))
    assert len(ids) == len(set(ids)) == 2_500
    assert app.sync.enqueue(send, "one more").id not in ids
