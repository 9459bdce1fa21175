"""Jobs are found by their error without reading those that have none."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import State
from stowhand.protocols.queue_store import JobFilter
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import wait_until_closed

MANY = {
    "history": """insert into stowhand.history (id, task, payload, priority, run_at, state, attempts, max_attempts,
           resets, last_error, revision, epoch, finished_at, created_at, updated_at, cancel_requested)
         select g, 't', '{}', 0, now(), 'completed', 1, 25, 0,
           case when g % 1000 = 0 then 'ValueError: row ' || g end, 0, 1, now(), now(), now(), false
         from generate_series(1, 20000) g""",
    "live": """insert into stowhand.live (task, state, attempts, last_error)
         select 't', case when g % 1000 = 0 then 'errored' else 'queued' end, 1,
           case when g % 1000 = 0 then 'ValueError: row ' || g end
         from generate_series(1, 20000) g""",
}
READ = """select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int from pg_stat_user_tables
    where schemaname = 'stowhand' and relname ~ '^(live|history)'"""


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize(("table", "state"), [("history", State.COMPLETED), ("live", State.ERRORED)])
def test_a_search_by_error_reads_only_jobs_with_an_error(
    store: PostgresStore,
    connection: psycopg.Connection[Any],
    sql: Sql,
    run: Any,
    table: str,
    state: State,
    newest_first: bool,
) -> None:
    sql(MANY[table])
    sql(f"analyze stowhand.{table}")

    async def found(error: str) -> int:
        jobs = await store.inspect.list(JobFilter(states=(state,), error=error, newest_first=newest_first))
        return len(jobs)

    async def story() -> None:
        assert await found("row 7000") == 1
        assert await found("VALUEERROR") == 20
        assert await found("nothing of that") == 0
        await store.close()

    before = _rows_read(connection)
    run(story())
    assert _rows_read(connection) - before < 200


def _rows_read(connection: psycopg.Connection[Any]) -> int:
    wait_until_closed(connection)
    connection.execute("select pg_stat_clear_snapshot()")
    row = connection.execute(READ.encode()).fetchone()
    assert row is not None
    return int(row[0])
