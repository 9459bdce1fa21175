"""Enqueueing inside the caller's own transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from stowhand.errors import ConfigurationError, InvalidJob, SchemaMissing
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.worker.worker import Worker
from tests.stores.postgres.conftest import Sql
from tests.worker.worker_harness import handler_of


@pytest.mark.parametrize("commits", [True, False])
def test_the_job_exists_if_and_only_if_the_caller_commits(
    store: PostgresStore, postgres_url: str, sql: Sql, commits: bool
) -> None:
    with psycopg.connect(postgres_url, row_factory=dict_row) as connection:
        job = store.transactions.enqueue_in(connection, NewJob(task="t", payload="[1]", delay=5.0, flags=("a",)))
        assert isinstance(job, Job)
        assert (job.state, job.payload_text, job.flags) == (State.QUEUED, "[1]", ("a",))
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        assert sql("select count(*) from stowhand.live") == [(0,)]
        (connection.commit if commits else connection.rollback)()
    assert sql("select count(*) from stowhand.live") == [(1 if commits else 0,)]


@pytest.mark.parametrize("commits", [True, False])
def test_the_job_exists_after_a_commit_on_an_asynchronous_connection(
    store: PostgresStore, postgres_url: str, sql: Sql, run: Any, commits: bool
) -> None:
    async def story() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url, row_factory=dict_row) as connection:
            job = await store.transactions.enqueue_in(connection, NewJob(task="t", key="k"))  # type: ignore[misc]
            assert (job.key, job.run_at.utcoffset().total_seconds()) == ("k", 0)
            await (connection.commit() if commits else connection.rollback())

    run(story())
    assert sql("select count(*) from stowhand.live") == [(1 if commits else 0,)]


def test_a_sleeping_worker_runs_it_within_a_second_of_the_commit_and_never_before(
    store: PostgresStore, postgres_url: str, run: Any
) -> None:
    ran: asyncio.Queue[int] = asyncio.Queue()

    async def act(attempt: Attempt[Job]) -> None:
        ran.put_nowait(attempt.record.id)

    async def story() -> list[float]:
        worker = Worker(store, handler_of(act), WorkerOptions(poll_interval=60.0))
        running = asyncio.create_task(worker.run())
        took, last = [], 0
        loop = asyncio.get_running_loop()
        for _ in range(3):
            async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
                await store.transactions.enqueue_in(connection, NewJob(task="t"))  # type: ignore[misc]
                await connection.rollback()
                job = await store.transactions.enqueue_in(connection, NewJob(task="t"))  # type: ignore[misc]
                await asyncio.sleep(0.3)
                assert ran.empty()
                committed = loop.time()
                await connection.commit()
                assert await asyncio.wait_for(ran.get(), 20) == job.id, "what was rolled back is nobody's"
                took.append(loop.time() - committed)
                last = job.id
        worker.stop()
        await running
        done = await store.jobs.get(last)
        assert done is not None
        assert (done.state, done.attempts, done.worker) == (State.COMPLETED, 1, None)
        await store.close()
        return took

    assert min(run(story(), timeout=100)) < 1, "a busy machine may be late once"


def test_a_job_that_is_refused_leaves_the_decision_to_the_caller(
    store: PostgresStore, postgres_url: str, sql: Sql
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table public.mine (id int)")
        with pytest.raises(InvalidJob, match="128"), connection.transaction():
            store.transactions.enqueue_in(connection, NewJob(task="t" * 129))
        connection.execute("insert into public.mine values (1)")
    assert sql("select count(*) from public.mine") == [(1,)]


def test_a_missing_schema_is_named(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, StoreOptions(schema="elsewhere"))
    with psycopg.connect(postgres_url) as connection, pytest.raises(SchemaMissing, match="elsewhere"):
        store.transactions.enqueue_in(connection, NewJob(task="t"))


def test_any_other_object_is_refused_by_its_type(store: PostgresStore) -> None:
    with pytest.raises(ConfigurationError, match="dict"):
        store.transactions.enqueue_in({}, NewJob(task="t"))
