"""Figures of a large schema: by indexes, exact up to a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import State
from stowhand.protocols.figures import Amount
from stowhand.protocols.queue_store import Inspector
from stowhand.protocols.store import StoreOptions
from stowhand.stores.kernel import counts
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
        "insert into stowhand.live (task, payload, state, run_at, serial, scout)"
        " select 't' || (n % 4), json_build_object('n', repeat('x', 100)),"
        " case when n % 10 = 0 then 'errored' else 'queued' end,"
        " now() + case when n % 2 = 0 then interval '1 hour' else interval '-1 hour' end,"
        " case when n % 4 = 3 then 'q' || (n % 8) end, false from generate_series(1, 20000) n"
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


def test_counts_are_the_same_after_a_vacuum(large: Sql, inspect: Ask) -> None:
    """A vacuum in the midst of a burst said how many rows it had seen."""
    before = inspect(lambda store: store.figures())
    large("vacuum stowhand.live")
    assert inspect(lambda store: store.figures()) == before
    assert before.states[State.QUEUED] == Amount(10_000, least=True)
    assert before.states[State.ERRORED] == Amount(2_000)


def test_counting_reads_indexes_and_no_more_than_the_limit(
    large: Sql, connection: psycopg.Connection[Any], postgres_url: str, run: Run
) -> None:
    """Whatever statistics say: of 40,000 rows some hundred entries are read."""

    def reads() -> tuple[int, int]:
        wait_until_closed(connection)
        large("select pg_stat_force_next_flush()")
        ((scans, rows),) = large(
            "select seq_scan, idx_tup_fetch from pg_stat_user_tables where relid = 'stowhand.live'::regclass"
        )
        return scans, rows

    async def count() -> None:
        context = PostgresContext(postgres_url, StoreOptions())
        await Reader(context).answer(lambda: counts.count_states(50))
        await context.pool.close()

    large("vacuum stowhand.live")
    before = reads()
    run(count())
    scans, rows = (now - then for now, then in zip(reads(), before, strict=True))
    assert scans == 0
    assert rows < 10_000


def test_every_day_can_be_asked_for_a_time(sql: Sql) -> None:
    """Others would be read whole."""
    rows = sql(
        "select count(*) from pg_inherits i where i.inhparent = 'stowhand.history'::regclass and not exists ("
        "select from pg_index x join pg_class c on c.oid = x.indexrelid join pg_am a on a.oid = c.relam"
        " where x.indrelid = i.inhrelid and a.amname = 'brin' and x.indisvalid)"
    )
    assert rows == [(0,)]


def test_what_ended_is_in_the_index_of_times_after_maintenance(large: Sql) -> None:
    """And not only when autovacuum has come round: until then all of it is read at each look."""
    assert large("select stowhand.maintain(86400)") == [(None,)]
    left = large(
        "select sum(brin_summarize_new_values(inhrelid)) from pg_inherits"
        " where inhparent = 'stowhand.history_ended'::regclass"
    )
    assert left == [(0,)]
