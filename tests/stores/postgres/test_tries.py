"""The table `tries`: what maintenance leaves in it."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg

from stowhand.jobs.job import NewJob
from stowhand.stores.postgres.queue import PostgresStore
from tests.conftest import Run


def test_maintenance_deletes_only_the_entries_of_deleted_jobs(postgres_url: str, run: Run) -> None:
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


FAIL = """
    select * from stowhand.settle_attempts(%s::bigint[], %s::uuid[], '{errored}', '{0}', '{f}', array[%s],
      '{ValueError}', '{null}', '{null}', true)"""


def bytes_logged(connection: psycopg.Connection[Any], error: str | None) -> int:
    """Of a claim of a job, which has failed with that ten times before; the middle of nine."""
    rows = []
    for _ in range(9):
        connection.execute("select stowhand.add_job('t', '{\"customer\": 4711}')")
        for _ in range(10 if error is not None else 0):
            token = uuid.uuid4()
            row = connection.execute("select id from stowhand.claim('w', %s, 1, 30, null, null, false)", [token])
            (job,) = row.fetchall()[0]
            connection.execute(FAIL, ([job], [token], error))
        # Of this connection alone, whatever others do to the server.
        claim_one = f"select stowhand.claim('w', '{uuid.uuid4()}', 1, 30, null, null, false)"
        request = f"explain (analyze, wal, format json) {claim_one}"
        ((plan,),) = connection.execute(request.encode()).fetchall()
        rows.append(plan[0]["Plan"]["WAL Bytes"])
        connection.execute("delete from stowhand.live")
    return int(sorted(rows)[4])


def test_a_claim_of_a_job_that_failed_ten_times_logs_no_more_than_one_that_never_did(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        plain = bytes_logged(connection, None)
        # Beside the row, the index of jobs with an error is written (live_errors). The error text is not.
        allowed = plain + 200
        traceback = "ValueError: no such customer\n" + '  File "/srv/shop/tasks/mail.py", line 12, in mail\n' * 12
        assert plain > 100
        assert len(traceback) > 3 * 200
        assert bytes_logged(connection, traceback) <= allowed
        assert bytes_logged(connection, "ValueError: no such customer") <= allowed
