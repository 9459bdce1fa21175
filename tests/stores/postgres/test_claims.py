"""How a claim is planned and committed."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import NewJob
from stowhand.jobs.task_limits import LimitValues, TaskDeclarations, TaskLimits
from stowhand.protocols.operator import WorkerList
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import claim


@pytest.fixture
def postgres_url(own_url: str) -> str:
    """What is done here to the schema must not reach other tests."""
    return own_url


CLAIM = "select * from stowhand.claim('w', %s, 10, 30.0, null, null, false)"


def plans_of_a_claim(url: str) -> str:
    """Every plan that one claim runs, as the server reports them."""
    plans: list[str] = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
        connection.execute("load 'auto_explain'")
        connection.execute("set auto_explain.log_min_duration = 0")
        connection.execute("set auto_explain.log_nested_statements = on")
        connection.execute("set auto_explain.log_level = notice")
        connection.execute(CLAIM, (str(uuid.uuid4()),))
    return "\n".join(plans)


@pytest.mark.parametrize("analysed", [None, "empty", "full"])
@pytest.mark.parametrize("serial", [None, "'q' || g % 500"])
def test_a_claim_walks_its_index_whatever_the_statistics_say(
    postgres_url: str, sql: Sql, analysed: str | None, serial: str | None
) -> None:
    sql("alter table stowhand.live set (autovacuum_enabled = off)")
    if analysed == "empty":
        sql("analyze stowhand.live")
    sql(
        "insert into stowhand.live (task, serial) select 't', "
        + (serial or "null")
        + " from generate_series(1, 5000) g"
    )
    if analysed == "full":
        sql("analyze stowhand.live")
    plans = plans_of_a_claim(postgres_url)
    wanted = "live_ready" if serial is None else "live_scouts"
    assert f"using {wanted}" in plans
    assert "Seq Scan" not in plans
    assert "Bitmap" not in plans
    assert "Hash" not in plans


def commit_mode_after_a_claim(url: str) -> str:
    with psycopg.connect(url) as connection:
        connection.execute("set synchronous_commit = on")
        assert connection.execute(CLAIM, (str(uuid.uuid4()),)).fetchall()
        row = connection.execute("show synchronous_commit").fetchone()
    assert row is not None
    return str(row[0])


def test_a_claim_commits_asynchronously_only_if_no_job_of_it_has_a_queue(
    store: PostgresStore, postgres_url: str, run: Any
) -> None:
    async def add(serial: str | None) -> None:
        await store.jobs.enqueue(NewJob(task="t", serial=serial))
        await store.close()

    run(add(None))
    assert commit_mode_after_a_claim(postgres_url) == "off"
    run(add("q"))
    assert commit_mode_after_a_claim(postgres_url) == "on"


@pytest.mark.parametrize(
    "limits",
    [
        TaskDeclarations({}, {"t": TaskLimits(concurrency="t")}, {"t": LimitValues(concurrency=2)}),
        TaskDeclarations({}, {"t": TaskLimits(key_limit="t", key="k")}, {"t": LimitValues(key_concurrency=2)}),
    ],
)
def test_a_claim_of_a_slot_commits_durably(
    store: PostgresStore, postgres_url: str, run: Any, limits: TaskDeclarations
) -> None:
    async def declare() -> None:
        heartbeats = store.heartbeats()
        assert isinstance(heartbeats, WorkerList)
        await heartbeats.declare_tasks(TaskDeclarations({"t": "default"}, limits.tasks, limits.limits))
        await heartbeats.close()
        await store.jobs.enqueue(NewJob(task="t"))
        await store.close()

    run(declare())
    assert commit_mode_after_a_claim(postgres_url) == "on"


def test_a_claim_leaves_nothing_behind_on_its_connection(store: PostgresStore, postgres_url: str, run: Any) -> None:
    async def story() -> None:
        await store.jobs.enqueue_many([NewJob(task="t"), NewJob(task="t")])
        await store._claims._link.rows(b"set synchronous_commit = on")  # the server of the tests has it off
        await claim(store, 1)
        ((mode,),) = await store._claims._link.rows(b"show synchronous_commit")
        assert mode == "on", "the next claim on it may be one of a serial key's job"
        await store.close()

    run(story())


def test_a_run_time_beyond_python_makes_no_job_unreadable(store: PostgresStore, sql: Sql, run: Any) -> None:
    sql("select stowhand.add_job('t', run_at := 'infinity')")
    sql("select stowhand.add_job('t', run_at := '-infinity')")
    sql("select stowhand.add_job('t', run_at := '-infinity', priority := 1)")

    async def story() -> None:
        assert len(await claim(store, 5)) == 2
        ((left,),) = sql("select id from stowhand.live where state = 'queued'")
        job = await store.jobs.get(left)
        assert job is not None
        assert job.run_at.year == 9999
        await store.close()

    run(story())


def test_two_claims_without_serial_keys_do_not_wait(store: PostgresStore, postgres_url: str, run: Any) -> None:
    async def story() -> None:
        ids = await store.jobs.enqueue_many(NewJob(task="t") for _ in range(4))
        with psycopg.connect(postgres_url) as other:
            other.execute(CLAIM.replace("10", "2"), (str(uuid.uuid4()),))  # not committed
            assert [each.lease.job_id for each in await claim(store, 10)] == ids[2:]
        await store.close()

    run(story())
