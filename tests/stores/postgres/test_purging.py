"""Purging beside others: locked rows are passed over, days that are too young are not read, indexes are used."""

from __future__ import annotations

from typing import Any

import psycopg

from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.operator import Ages, PurgeResult
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import claim

OLD = "update stowhand.{table} set finished_at = now() - interval '10 days'"


async def finish(store: PostgresStore, count: int) -> None:
    await store.jobs.enqueue_many(NewJob(task="t") for _ in range(count))
    await store.settle([(one.lease, COMPLETED) for one in await claim(store, count)])


def test_a_locked_job_is_deleted_by_the_next_purge(store: PostgresStore, postgres_url: str, sql: Sql, run: Any) -> None:
    async def story() -> None:
        await finish(store, 5)
        sql(OLD.format(table="history"))
        with psycopg.connect(postgres_url) as locking:
            locking.execute("select from stowhand.history where id = 3 for update")
            assert await store.operate.purge(Ages(completed=60)) == PurgeResult(completed=4)
        assert await store.operate.purge(Ages(completed=60)) == PurgeResult(completed=1)
        await store.close()

    run(story())


def test_a_page_reads_neither_young_days_nor_the_rest_of_the_old_ones(store: PostgresStore, sql: Sql, run: Any) -> None:
    sql(
        """insert into stowhand.history (id, task, payload, priority, run_at, state, attempts, max_attempts, resets,
             revision, epoch, finished_at, created_at, updated_at, cancel_requested)
           select g, 't', '{}', 0, now(), 'completed', 1, 25, 0, 0, 1,
             case when g % 2 = 0 then now() - interval '100 days' else now() end, now(), now(), false
           from generate_series(1, 20000) g"""
    )
    ((plan,),) = sql(
        "explain (analyze, buffers, format json) select * from stowhand.purge_history(86400, null, 0, 100)"
    )
    read = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
    assert read < 2000, f"{read} blocks for a page of a hundred"
    assert sql("select count(*) from stowhand.history") == [(19_900,)]
    assert run(purged(store)) == PurgeResult(completed=9900)


def test_failed_jobs_are_found_by_their_age(sql: Sql) -> None:
    sql(
        """insert into stowhand.live (task, state, finished_at)
           select 't', 'failed', now() - g * interval '10 seconds' from generate_series(1, 20000) g"""
    )
    sql("select stowhand.purge_failed(300000, 5000)")  # nothing; the catalog is read once in a connection
    ((plan,),) = sql("explain (analyze, buffers, format json) select stowhand.purge_failed(199900, 5000)")
    read = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
    assert read < 300, f"{read} blocks for a dozen jobs"
    ((left,),) = sql("select count(*) from stowhand.live")
    assert 19_980 < left <= 19_991


async def purged(store: PostgresStore) -> PurgeResult:
    result = await store.operate.purge(Ages(completed=86_400))
    await store.close()
    return result
