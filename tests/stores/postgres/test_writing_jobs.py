"""The view `jobs`, written as people of graphile-worker write their table: by a function, or refused with its name."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import NewJob
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.test_serials import UNFINDABLE, WRONGLY_HELD
from tests.stores.postgres.verbs import claim, take


def test_an_insert_works_as_add_job(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        ((job_id,),) = sql(
            "insert into stowhand.jobs (task_identifier, queue_name, payload, key, priority, flags)"
            """ values ('t', 'q', '{"a": 1}', 'k', 3, '{f}') returning id"""
        )
        ((again,),) = sql(
            "insert into stowhand.jobs (task_identifier, queue_name, key) values ('t', 'q', 'k') returning id"
        )
        assert again == job_id, "the key is a job key"
        sql("insert into stowhand.jobs (task_identifier, queue_name) select 't', 'q' from generate_series(1, 2)")
        assert sql(UNFINDABLE) == []
        (found,) = await claim(store, 5)
        assert found.serial == "q"
        await store.close()

    run(story())


def test_an_insert_is_checked_as_add_job_checks(sql: Sql) -> None:
    with pytest.raises(psycopg.Error, match="A serial key has 1 to 128 characters"):
        sql("insert into stowhand.jobs (task_identifier, queue_name) values ('t', repeat('q', 129))")
    with pytest.raises(psycopg.Error, match="A task identifier has 1 to 128 characters"):
        sql("insert into stowhand.jobs (payload) values ('{}')")


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        ("insert into stowhand.jobs (task_identifier, attempts, state) values ('t', 3, 'queued')", "attempts, state"),
        ("update stowhand.jobs set locked_at = now(), locked_by = 'w'", "locked_at, locked_by"),
        ("""update stowhand.jobs set payload = '{"a": 1}'""", "payload"),
        ("update stowhand.jobs set state = 'failed'", "state"),
        ("update stowhand.jobs set run_at = null, queue_name = null", "run_at"),
    ],
)
def test_unsupported_changes_are_refused_with_the_available_functions(sql: Sql, statement: str, columns: str) -> None:
    sql("select stowhand.add_job('t', queue_name := 'q')")
    before = sql("select * from stowhand.live")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=f"does not take {columns}") as refused:
        sql(statement)
    assert "force_unlock_workers" in (refused.value.diag.message_hint or "")
    assert sql("select * from stowhand.live") == before


def test_an_update_moves_a_job_to_another_queue(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        first, second = await store.jobs.enqueue_many(NewJob(task="t", serial="a") for _ in range(2))
        assert (await take(store)).job_id == first
        assert sql(f"update stowhand.jobs set queue_name = 'b' where id = {second} returning queue_name") == [("b",)]
        assert sql(UNFINDABLE) == []
        assert (await take(store)).job_id == second
        assert sql(WRONGLY_HELD) == []
        await store.close()

    run(story())


def test_an_update_of_times_and_attempts_works_as_reschedule_jobs(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        job = await store.jobs.enqueue(NewJob(task="t", delay=600.0))
        sql("update stowhand.jobs set run_at = now(), priority = 5, work_queue = 'mail'")
        (found,) = await claim(store)
        assert (found.lease.job_id, found.record.priority, found.record.queue) == (job.id, 5, "mail")
        await store.close()

    run(story())
    other = "select id from stowhand.add_job('u')"
    ((other_id,),) = sql(other)
    sql("select stowhand.permanently_fail_jobs(array[%s::bigint])", other_id)
    assert sql(f"update stowhand.jobs set attempts = 0 where id = {other_id} returning state") == [("queued",)]


def test_a_waiting_job_is_deleted_and_its_serial_key_continues(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        first, second = await store.jobs.enqueue_many(NewJob(task="t", serial="q") for _ in range(2))
        assert sql(f"delete from stowhand.jobs where id = {first} returning id") == [(first,)]
        assert (await take(store)).job_id == second
        await store.close()

    run(story())


def test_a_running_job_is_neither_deleted_nor_changed(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        await store.jobs.enqueue_many(NewJob(task="t", serial="q") for _ in range(2))
        lease = await take(store)
        for statement in (
            "delete from stowhand.jobs",
            "update stowhand.jobs set queue_name = 'other'",
            "update stowhand.jobs set priority = 9",
        ):
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=f"Job {lease.job_id} ") as refused:
                sql(f"{statement} where id = {lease.job_id}")
            assert "cancel" in (refused.value.diag.message_hint or "")
        assert sql(WRONGLY_HELD) == []
        await store.close()

    run(story())
