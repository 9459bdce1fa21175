"""Under a publication FOR ALL TABLES nothing may be updated or deleted in a table without an identity."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from stowhand.errors import StoreError
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.operator import Ages
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import maintain, take

NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def postgres_url(own_url: str) -> str:
    """What is done here to the schema must not reach other tests."""
    return own_url


def test_every_table_has_an_identity(sql: Sql) -> None:
    sql("select stowhand.make_days('2031-05-01 12:00+00', 1)")
    nameless = sql(
        "select c.relname from pg_class c where c.relnamespace = 'stowhand'::regnamespace and c.relkind = 'r'"
        " and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and i.indisvalid)"
    )
    assert nameless == []
    # One index serves ids and identity: the settlement of a job without an error pays for no second one.
    by_id = "tablename = 'history' and indexdef like '%%(id%%' and indexdef !~ 'WHERE'"
    assert sql(f"select indexdef from pg_indexes where {by_id}") == [
        ("CREATE UNIQUE INDEX history_pkey ON ONLY stowhand.history USING btree (id, finished_at)",)
    ]


def test_deletions_work_under_a_publication(postgres_url: str, sql: Sql, run: Any) -> None:
    sql("create publication everything for all tables")
    now = [NOON]

    async def story() -> None:
        store = PostgresStore(postgres_url, StoreOptions(pinned=lambda: now[0], history=3600.0))
        heartbeats = store.heartbeats()
        await heartbeats.maintain()
        for _ in range(2):
            await store.jobs.enqueue(NewJob(task="t"))
            await store.settle([(await take(store), COMPLETED)])
        canceled = await store.jobs.enqueue(NewJob(task="t", key="k"))
        await store.admin.cancel(canceled.id)
        assert (await store.admin.retry(canceled.id)).result is ActionResult.DONE
        await store.admin.cancel(canceled.id)
        assert (await store.operate.purge(Ages(completed=0.000001, canceled=None, failed=None))).completed == 0
        now[0] = NOON.replace(minute=30)
        assert (await store.operate.purge(Ages(completed=60.0, canceled=None, failed=None))).completed == 2
        now[0] = NOON.replace(hour=14)
        await heartbeats.maintain()
        assert (await store.inspect.counts())[State.CANCELED] == 0
        now[0] = NOON.replace(day=5)
        await heartbeats.maintain()
        assert sql("select to_regclass('stowhand.history_20310501')") == [(None,)]
        forgetful = PostgresStore(postgres_url, StoreOptions(history=None))
        await forgetful.jobs.enqueue(NewJob(task="t"))
        await forgetful.settle([(await take(forgetful), COMPLETED)])
        await heartbeats.close()
        await forgetful.close()
        await store.close()

    run(story())


def test_maintenance_runs_each_duty_by_itself_and_reports_failed_ones(store: PostgresStore, sql: Sql, run: Any) -> None:
    """One that an application's trigger forbids does not keep the others from being done."""
    sql("insert into stowhand.dead_tokens (token, at) values (gen_random_uuid(), now() - interval '2 hours')")
    sql(
        "insert into stowhand.workers (name, host, pid, version, concurrency, stopping, started_at, seen_at)"
        " values ('w', 'h', 1, '1', 1, false, now(), now() - interval '2 days')"
    )
    sql("create function forbid() returns trigger language plpgsql as $$ begin raise exception 'never here'; end $$")
    sql("create trigger forbidden before delete on stowhand.workers execute function forbid()")
    sql("drop table stowhand.history_default")
    with pytest.raises(StoreError, match=r"history without a day: .*history_default.*; workers: never here"):
        run(maintain(store))
    assert sql("select count(*) from stowhand.dead_tokens") == [(0,)]
    run(store.close())
