"""Figures of a large schema: by indexes, exact up to a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import State
from stowhand.protocols.counts import BoundedCount
from stowhand.protocols.queue_store import Inspector
from stowhand.protocols.store import StoreOptions
from stowhand.stores.kernel import counts, due, workers
from stowhand.stores.kernel.question import Engine, Question
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.reader import Reader
from tests.conftest import Run
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import wait_until_closed

Ask = Callable[[Callable[[Inspector], Awaitable[Any]]], Any]


@pytest.fixture
def large(sql: Sql) -> Sql:
    """20,000 jobs wait and 20,000 are over, without statistics; few run, few have failed, and one task is rare."""
    sql(
        "insert into stowhand.live (task, payload, state, run_at, serial)"
        " select 't' || (n % 4), json_build_object('n', repeat('x', 100)),"
        " case when n % 10 = 0 then 'errored' else 'queued' end,"
        " now() + case when n % 2 = 0 then interval '1 hour' else interval '-1 hour' end,"
        " case when n % 4 = 3 then 'q' || (n % 8) end from generate_series(1, 20000) n"
    )
    sql("insert into stowhand.live (task) values ('rare'), ('rare'), ('rare')")
    sql(
        "insert into stowhand.live (task, state, token, worker, lease_until, started_at)"
        " select 't0', 'processing', gen_random_uuid(), 'w' || (n % 2), now() + interval '1 hour', now()"
        " from generate_series(1, 7) n"
    )
    sql(
        "insert into stowhand.live (task, state, finished_at) select 't1', 'failed', now() - n * interval '1 minute'"
        " from generate_series(1, 11) n"
    )
    sql(
        "insert into stowhand.history (id, task, payload, priority, run_at, state, attempts, max_attempts, resets,"
        " revision, epoch, finished_at, created_at, updated_at, cancel_requested)"
        " select 1000000 + n, 't' || (n % 2), json_build_object('n', repeat('x', 100)), 0, now(),"
        " case when n % 10 = 0 then 'canceled' else 'completed' end, 1, 25, 0, 0, 1,"
        " now() - (20000 - n) * interval '1 second', now(), now(), false from generate_series(1, 20000) n"
    )
    return sql


@pytest.fixture
def inspect(postgres_url: str, run: Run) -> Ask:
    """Ask a store that is opened for one question."""

    async def ask(question: Callable[[Inspector], Awaitable[Any]]) -> Any:
        store = PostgresStore(postgres_url)
        try:
            return await question(store.inspect)
        finally:
            await store.close()

    return lambda question: run(ask(question))


def reads_of_live(sql: Sql, connection: psycopg.Connection[Any]) -> tuple[int, int, int]:
    """Scans of the whole table; rows and entries of indexes that were read."""
    wait_until_closed(connection)
    sql("select pg_stat_force_next_flush()")
    ((scans, rows, entries),) = sql(
        "select t.seq_scan, t.idx_tup_fetch,"
        " (select sum(i.idx_tup_read) from pg_stat_user_indexes i where i.relid = t.relid)"
        " from pg_stat_user_tables t where t.relid = 'stowhand.live'::regclass"
    )
    return scans, rows, int(entries)


def test_counts_are_the_same_after_a_vacuum(large: Sql, inspect: Ask) -> None:
    """A vacuum in the midst of a burst said how many rows it had seen."""
    before = inspect(lambda store: store.figures())
    large("vacuum stowhand.live")
    assert inspect(lambda store: store.figures()) == before
    assert before.states[State.QUEUED] == BoundedCount(10_000, is_lower_bound=True)
    assert before.states[State.ERRORED] == BoundedCount(2_000)


def test_counting_reads_indexes_and_no_more_than_the_limit(
    large: Sql, connection: psycopg.Connection[Any], postgres_url: str, run: Run
) -> None:
    """Whatever statistics say: of 40,000 rows some hundred entries are read."""

    async def count() -> None:
        context = PostgresContext(postgres_url, StoreOptions())
        await Reader(context).answer(lambda: counts.count_states(50))
        await context.pool.close()

    large("vacuum stowhand.live")
    before = reads_of_live(large, connection)
    run(count())
    scans, rows, _ = (now - then for now, then in zip(reads_of_live(large, connection), before, strict=True))
    assert scans == 0
    assert rows < 10_000


@pytest.mark.parametrize(
    "question",
    [
        due.oldest_due,
        lambda engine: due.find_overdue(engine, ["t0"], 60.0),
        lambda engine: workers.list_held(engine, 3),
    ],
    ids=["oldest", "overdue", "held"],
)
def test_wrong_statistics_cause_no_table_scan_for_due_and_held_jobs(
    question: Callable[[Engine], Question[object]],
    sql: Sql,
    connection: psycopg.Connection[Any],
    postgres_url: str,
    run: Run,
) -> None:
    """Analyzed when a burst had just been worked off, it says: pages, but no rows. Then the next burst comes."""
    burst = (
        "insert into stowhand.live (task, run_at, priority, serial)"
        " select 't' || (n % 4), now() - interval '1 hour', n % 3,"
        " case when n % 2 = 0 then 'q' || (n % 10) end"
        " from generate_series(1, 20000) n"
    )
    sql(burst)
    sql("delete from stowhand.live")
    sql("vacuum (analyze, truncate off) stowhand.live")
    sql(burst)
    sql(
        "insert into stowhand.live (task, state, token, worker, lease_until, started_at)"
        " select 't0', 'processing', gen_random_uuid(), 'w' || (n % 2), now() + interval '1 hour', now()"
        " from generate_series(1, 20) n"
    )

    async def ask() -> None:
        context = PostgresContext(postgres_url, StoreOptions())
        reader = Reader(context)
        assert await reader.answer(lambda: question(reader))
        await context.pool.close()

    before = reads_of_live(sql, connection)
    run(ask())
    scans, _, entries = (now - then for now, then in zip(reads_of_live(sql, connection), before, strict=True))
    assert scans == 0
    assert entries < 500, "there are 32 tasks, serial keys and priorities"


def test_every_day_of_the_history_has_the_index_of_end_times(sql: Sql) -> None:
    """Others would be read whole."""
    rows = sql(
        "select count(*) from pg_inherits i where i.inhparent = 'stowhand.history'::regclass and not exists ("
        "select from pg_index x join pg_class c on c.oid = x.indexrelid join pg_am a on a.oid = c.relam"
        " where x.indrelid = i.inhrelid and a.amname = 'brin' and x.indisvalid)"
    )
    assert rows == [(0,)]


def test_ended_jobs_are_in_the_index_of_end_times_after_maintenance(large: Sql) -> None:
    """And not only when autovacuum has come round: until then all of it is read at each look."""
    assert large("select stowhand.maintain(86400)") == [(None,)]
    left = large(
        "select sum(brin_summarize_new_values(inhrelid)) from pg_inherits"
        " where inhparent = 'stowhand.history_ended'::regclass"
    )
    assert left == [(0,)]
