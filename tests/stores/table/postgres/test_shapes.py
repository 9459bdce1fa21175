"""Tables as people have them: other names, keys and types, schemas, quotes, missing columns, zones."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from stowhand.errors import StoreError, TableUnsuitable
from stowhand.jobs.conditions import Where, sql
from stowhand.jobs.job import State
from stowhand.protocols.store import Verdict
from stowhand.stores.table.arguments import KeyType
from tests.stores.table.postgres.jobs import COLUMNS, ERRORED, FAILED, SNOOZED, TABLE, Jobs, Served

QUOTED = """
    create table "app"."Träge ""Jobs"" 100% {id}" ("The id" bigserial primary key,
    "status" text not null default 'queued', "why?" text, started timestamptz, finished timestamptz,
    "after" timestamptz, resets int, "num failures" int, beaten timestamptz, "logs" jsonb[], "who's 50%" text,
    "order" int)
"""
OWN_NAMES = {
    "id": '"The id"',
    "state": "status",
    "failure_message": '"why?"',
    "started_at": "started",
    "finished_at": "finished",
    "process_after": '"after"',
    "num_resets": "resets",
    "num_failures": '"num failures"',
    "last_heartbeat_at": "beaten",
    "execution_logs": "logs",
    "worker_hostname": '"who\'s 50%"',
}


async def through_its_life(served: Served) -> None:
    """Two records: everything that a worker and people do with them."""
    first, second = [taken.lease for taken in await served.claim(2)]
    assert await served.table.add_log(first, '{"key": "a"}') == 1
    await served.table.update_log(first, 1, '{"key": "b"}')
    assert (await served.heartbeats.beat([first, second], 30)).lost == frozenset()
    assert await served.settle(first, ERRORED) is Verdict.SETTLED
    assert await served.settle(first, ERRORED, repeat=True) is Verdict.ALREADY_SETTLED
    assert list(await served.heartbeats.release([second])) == []
    second = await served.take()
    assert await served.settle(second, SNOOZED) is Verdict.SETTLED
    assert 50 < (await served.table.queries.next_due() or 0) <= 60
    assert (await served.table.queries.requeue(second.job_id, None)).result == "done"
    assert await served.table.queries.next_due() == 0
    second = await served.take()
    assert [one.job_id for one in await served.heartbeats.reset_lease(second)] == [second.job_id]
    assert list(await served.heartbeats.reset_stalled(0)) == []
    assert await served.settle(await served.take()) is Verdict.SETTLED
    assert await served.table.queries.count([State.ERRORED, State.COMPLETED]) == {State.ERRORED: 1, State.COMPLETED: 1}
    assert await served.table.queries.logs(first.job_id) == ['{"key": "b"}']
    assert await served.table.queries.longest_run() == 0


async def test_every_name_can_be_mapped_and_quoted(jobs: Jobs) -> None:
    jobs.make(QUOTED)
    table = '"Träge ""Jobs"" 100% {id}"'
    for order in (2, 1):
        jobs.sql(f'insert into app.{table} ("order") values ({order})')
    options: dict[str, Any] = {
        "table_name": f"app.{table}",
        "alternate_column_names": OWN_NAMES,
        "order_by_expression": ['"order"'],
        "column_expressions": ['"The id"', sql('"order" % 2 as "odd %"')],
        "max_num_retries": 1,
        "retry_after": 60,
    }
    async with jobs.served(**options) as served:
        (taken,) = await served.claim(1, conditions=(Where('"who\'s 50%"', "is null"),))
        assert (taken.values, served.table.names) == ((2, 1), ("The id", "odd %"))
        await served.heartbeats.release([taken.lease])
        await through_its_life(served)


def keyed(value: Any) -> dict[str, Any]:
    return {} if value is None else {"id": value}


@pytest.mark.parametrize(
    ("key", "kind", "values"),
    [
        ("smallserial primary key", KeyType.INTEGER, None),
        ("bigint primary key", KeyType.INTEGER, [2**40, -5]),
        ("uuid primary key default gen_random_uuid()", KeyType.UUID, None),
        ("text primary key", KeyType.TEXT, ['x"y,{}', "1"]),
        ("varchar(36) primary key", KeyType.TEXT, ["a", "b"]),
    ],
)
async def test_ids_of_any_type_work(jobs: Jobs, key: str, kind: KeyType, values: list[Any] | None) -> None:
    jobs.make(f"create table jobs (id {key}, {COLUMNS})")
    ids = [jobs.add(**keyed(value))[0] for value in values or (None, None)]
    async with jobs.served(max_num_retries=1, retry_after=60) as served:
        assert served.table.key is kind
        result = await served.ids()
        assert sorted(result) == sorted(str(one) if isinstance(one, uuid.UUID) else one for one in ids)
        jobs.sql("update jobs set state = 'queued'")
        await through_its_life(served)


async def test_a_table_without_cancel_and_queued_at_works(jobs: Jobs) -> None:
    jobs.make(TABLE)
    jobs.sql(
        "alter table jobs drop cancel, drop queued_at, alter num_resets drop not null, alter num_failures drop not null"
    )
    jobs.sql("insert into jobs (num_resets, num_failures) values (null, null), (null, null)")
    async with jobs.served(max_num_retries=1, retry_after=60) as served:
        await through_its_life(served)
        assert await served.table.queries.longest_wait() == 0


async def test_an_enum_state_works(jobs: Jobs) -> None:
    jobs.make(
        "create type app.job_state as enum ('queued', 'processing', 'errored', 'failed', 'completed', 'canceled')",
        TABLE,
        "alter table jobs alter state drop default, alter state type app.job_state using state::app.job_state,"
        " alter state set default 'queued'",
    )
    jobs.sql("insert into jobs default values; insert into jobs default values")
    async with jobs.served(max_num_retries=1, retry_after=60) as served:
        await through_its_life(served)


@pytest.mark.parametrize(("moment", "zone"), [("timestamptz", "America/New_York"), ("timestamp", "Asia/Kolkata")])
async def test_times_are_right_in_any_time_zone_of_the_session(jobs: Jobs, moment: str, zone: str) -> None:
    """Columns without a zone keep UTC, as older tables of the original's have them."""
    jobs.make(TABLE.replace("timestamptz", moment).replace("default now()", "default timezone('utc', now())"))
    if moment == "timestamptz":
        jobs.sql("alter table jobs alter queued_at set default now()")
    (name,) = jobs.sql("select current_database()")[0]
    jobs.sql(f"alter database {name} set timezone to '{zone}'")
    jobs.sql(f"alter database {name} set datestyle to 'German'")
    try:
        with psycopg.connect(jobs.url) as fresh:
            assert fresh.execute("show timezone").fetchone() == (zone,)
        jobs.add(2)
        async with jobs.served(max_num_retries=1, retry_after=60) as served:
            (taken,) = await served.claim(1)
            record = dict(zip(served.table.names, taken.values, strict=True))
            now = datetime.now(UTC)
            started = record["started_at"] if moment == "timestamptz" else record["started_at"].replace(tzinfo=UTC)
            assert abs(started - now) < timedelta(seconds=10)
            assert abs(taken.lease.epoch / 1e6 - now.timestamp()) < 10
            written = "started_at" if moment == "timestamptz" else "started_at at time zone 'utc'"
            assert jobs.sql(f"select abs(extract(epoch from now() - {written})) < 10 from jobs where id = 1") == [
                (True,)
            ]
            assert list(await served.heartbeats.reset_stalled(0)) == []
            await served.heartbeats.release([taken.lease])
            assert await served.table.queries.longest_wait() < 10
            await through_its_life(served)
    finally:
        jobs.sql(f"alter database {name} reset all")


async def test_a_frozen_time_is_the_only_time_of_the_table(jobs: Jobs) -> None:
    at = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    jobs.add(3)
    async with jobs.served(pinned=lambda: at, max_num_retries=1) as served:
        leases = [taken.lease for taken in await served.claim()]
        assert {lease.epoch for lease in leases} == {round(at.timestamp() * 1_000_000)}
        await served.table.settle(list(zip(leases, (ERRORED, FAILED, SNOOZED), strict=True)))
    for job_id in (1, 2):
        assert (jobs.row(job_id)["started_at"], jobs.row(job_id)["finished_at"]) == (at, at)
    assert jobs.row(1)["process_after"] == jobs.row(3)["process_after"] == at + timedelta(seconds=60)
    assert jobs.row(3)["queued_at"] == at


async def test_required_columns_of_the_application_do_not_matter(jobs: Jobs) -> None:
    jobs.sql(
        "alter table jobs add must text not null default 'have',"
        " add also int not null generated always as (size * 2) stored"
    )
    jobs.add(2)
    async with jobs.served(max_num_retries=1, retry_after=60) as served:
        await through_its_life(served)


async def test_a_table_in_another_schema_and_search_path_works(jobs: Jobs) -> None:
    jobs.make(TABLE.replace("table jobs", "table app.jobs"))
    jobs.sql("insert into app.jobs (path) values ('a'), ('b')")
    async with jobs.served(table_name="app.jobs", max_num_retries=1, retry_after=60) as served:
        await through_its_life(served)


async def test_names_that_contain_sql_are_only_names(jobs: Jobs) -> None:
    jobs.add(2)
    with pytest.raises(TableUnsuitable):
        async with jobs.served(table_name='"jobs; drop table jobs"'):
            pass
    assert len(jobs.states()) == 2


async def test_an_older_server_works(older_postgres_url: str) -> None:
    jobs = Jobs(older_postgres_url)
    try:
        jobs.make()
        jobs.add(2)
        async with jobs.served(max_num_retries=1, retry_after=60) as served:
            await through_its_life(served)
    finally:
        jobs.close()


async def test_a_pool_of_the_application_works(jobs: Jobs) -> None:
    jobs.add(2)
    async with AsyncConnectionPool(jobs.url, min_size=1, max_size=2, open=False) as pool:
        url, jobs.url = jobs.url, pool  # type: ignore[assignment]
        try:
            async with jobs.served(max_num_retries=1, retry_after=60) as served:
                await through_its_life(served)
        finally:
            jobs.url = url


async def test_a_login_without_the_right_to_update_gets_an_error(jobs: Jobs) -> None:
    jobs.sql("drop role if exists jobs_reader")
    jobs.sql("create role jobs_reader login password 'x'")
    jobs.sql("grant select on jobs to jobs_reader; grant usage on schema public to jobs_reader")
    jobs.add()
    url = jobs.url
    try:
        jobs.url = psycopg.conninfo.make_conninfo(url, user="jobs_reader", password="x")
        with pytest.raises(StoreError, match=r"(?i)grant|privilege|permission"):
            async with jobs.served():
                pass
        assert jobs.states() == ["queued"]
    finally:
        jobs.url = url
        jobs.sql("drop owned by jobs_reader; drop role jobs_reader")
