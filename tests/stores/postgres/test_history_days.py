"""The history's days: made ahead, dropped behind, and never missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import take


@pytest.fixture
def postgres_url(own_url: str) -> str:
    """What is done here to the schema must not reach other tests."""
    return own_url


DAYS = "select count(*) from pg_inherits where inhparent = 'stowhand.history'::regclass"


def test_days_are_made_ahead_and_dropped_when_past_the_retention(postgres_url: str, sql: Sql, run: Any) -> None:
    start = datetime(2031, 5, 1, 12, tzinfo=UTC)
    now = [start]

    async def story() -> None:
        store = PostgresStore(postgres_url, StoreOptions(pinned=lambda: now[0]))
        heartbeats = store.heartbeats()
        for day in range(6):
            now[0] = start + timedelta(days=day)
            await heartbeats.maintain()
            await store.jobs.enqueue(NewJob(task="t"))
            await store.settle([(await take(store), COMPLETED)])
        assert sql("select count(*) from stowhand.history_default") == [(0,)]
        # Two days of rows, three ahead, one that the retention still touches; and the days of the real date.
        names = [name for (name,) in sql(
            "select inhrelid::regclass::text from pg_inherits where inhparent = 'stowhand.history'::regclass"
            " and inhrelid::regclass::text like '%%history_2031%%' order by 1"
        )]  # fmt: skip
        assert names[0].endswith("20310505")
        assert names[-1].endswith("20310509")
        assert (await store.inspect.counts())[State.COMPLETED] == 2
        await heartbeats.close()
        await store.close()

    run(story())


def test_a_missing_day_of_the_history_never_fails_a_settlement(postgres_url: str, sql: Sql, run: Any) -> None:
    noon = datetime(2031, 5, 1, 12, tzinfo=UTC)
    store = PostgresStore(postgres_url, StoreOptions(pinned=lambda: noon))
    for (name,) in sql(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'stowhand.history'::regclass"
        " and inhrelid::regclass::text <> 'stowhand.history_default'"
    ):
        sql(f"drop table {name}")

    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t"))
        await store.settle([(await take(store), COMPLETED)])
        assert sql("select count(*) from stowhand.history_default") == [(1,)]
        heartbeats = store.heartbeats()
        await heartbeats.maintain()  # today stays in the default; the days after it are made
        assert sql(DAYS) == [(4,)]
        assert (await store.inspect.counts())[State.COMPLETED] == 1
        await heartbeats.close()
        await store.close()

    run(story())


def test_maintenance_does_not_wait_for_locks(store: PostgresStore, postgres_url: str, sql: Sql, run: Any) -> None:
    async def story() -> None:
        ((oldest,),) = sql(
            "select min(inhrelid::regclass::text) from pg_inherits where inhparent = 'stowhand.history'::regclass"
            " and inhrelid::regclass::text <> 'stowhand.history_default'"
        )
        sql(f"drop table {oldest}")
        with psycopg.connect(postgres_url) as reader:
            reader.execute("select count(*) from stowhand.history")
            reader.execute("lock table stowhand.history in share mode")
            heartbeats = store.heartbeats()
            await heartbeats.maintain()
            await heartbeats.close()
        await store.close()

    run(story())


PAST = """insert into stowhand.history (id, task, payload, priority, run_at, state, attempts, max_attempts, resets,
    revision, epoch, finished_at, created_at, updated_at, cancel_requested)
  select n, 't', to_json(repeat('x', %s)), 0, now(), 'completed', 1, 25, 0, 0, 0,
    timestamptz '2031-05-01 00:00+00' + n * interval '1 second', now(), now(), false
  from generate_series(1, %s) n"""
PAGES = "select pg_relation_size('stowhand.history_20310501') / current_setting('block_size')::int"


@pytest.mark.parametrize(("wide", "rows", "least_pages", "calls"), [(10, 12_000, 150, 1), (1700, 4400, 1025, 2)])
def test_a_retention_below_a_day_is_kept_within_the_day(
    sql: Sql, wide: int, rows: int, least_pages: int, calls: int
) -> None:
    """However much a day holds: of a large one it takes some calls, ten minutes apart."""
    sql("select stowhand.make_days('2031-05-01 12:00+00', 0)")
    sql(PAST, wide, rows)
    assert sql(PAGES)[0][0] >= least_pages
    newest = f"timestamptz '2031-05-01 00:00+00' + {rows} * interval '1 second'"
    for call in range(calls):
        assert sql("select count(*) > 100 from stowhand.history") == [(True,)]
        # The hundred last rows are younger than an hour in every call.
        sql(f"select stowhand.maintain(3600 + {call} * 600, {newest} + interval '3500 s' + {call} * interval '600 s')")
    assert sql("select count(*), min(id) from stowhand.history") == [(101, rows - 100)]


def test_rows_without_a_day_are_pruned(sql: Sql) -> None:
    sql(PAST, 10, 12_000)
    assert sql("select count(*) from stowhand.history_default") == [(12_000,)]
    sql("select stowhand.maintain(3600, '2031-05-02 12:00+00')")
    assert sql("select count(*) from stowhand.history") == [(0,)]
