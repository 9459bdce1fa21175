"""The table `tries`: what workers of before leave in it, and what maintenance leaves."""

from __future__ import annotations

import psycopg

from stowhand.jobs.job import NewJob
from stowhand.jobs.tries import TryEnd
from stowhand.stores.postgres.queue import PostgresStore
from tests.conftest import Run
from tests.stores.postgres.verbs import claim


def test_a_worker_of_before_leaves_entries_without_a_class(postgres_url: str, run: Run) -> None:
    async def story() -> None:
        store = PostgresStore(postgres_url)
        job = await store.jobs.enqueue(NewJob(task="t"))
        (one,) = await claim(store, 1)
        with psycopg.connect(postgres_url, autocommit=True) as older:
            older.execute(
                "select id, token::text, state from stowhand.settle(%s::bigint[], %s::uuid[], '{failed}', '{0}', '{f}',"
                " '{no}', '{null}', '{null}', true, null)",
                ([job.id], [one.lease.token]),
            )
        (entry,) = await store.jobs.tries(job.id)
        assert (entry.outcome, entry.error_class, entry.error, entry.number) == (TryEnd.ERROR, None, "no", 1)
        (group,) = await store.inspect.failures()
        assert (group.error_class, group.jobs) == (None, 1)
        await store.close()

    run(story())


def test_maintenance_takes_the_entries_of_jobs_that_are_gone_and_leaves_the_others(postgres_url: str, run: Run) -> None:
    """Over several windows of pages, from whichever it begins."""

    async def story() -> None:
        store = PostgresStore(postgres_url)
        kept = await store.jobs.enqueue(NewJob(task="t"))
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "insert into stowhand.tries select n, 1, 1, 1, null, null, now(), 'error', null, repeat('x', 900)"
                " from generate_series(%s, 3000) n",
                [kept.id],
            )
            size = connection.execute("select pg_relation_size('stowhand.tries') / 8192").fetchone()
            assert size is not None
            assert size[0] > 256
            heartbeats = store.heartbeats()
            left = None
            for _ in range(60):  # each call has half a second, which a slow machine may use up
                await heartbeats.maintain()
                left = connection.execute("select array_agg(job_id) from stowhand.tries").fetchone()
                if left == ([kept.id],):
                    break
            assert left == ([kept.id],)
            await heartbeats.close()
        await store.close()

    run(story())
