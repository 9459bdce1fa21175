"""Which record is claimed, what the claim writes, and what it reads."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import sql as composed

from stowhand.errors import ConfigurationError, TableUnsuitable
from stowhand.jobs.conditions import Where, sql
from tests.stores.table.postgres.jobs import COLUMNS, ERRORED, Jobs, new_token, until

RETRIES: dict[str, Any] = {"max_num_retries": 2, "retry_after": 300.0}


async def test_two_concurrent_claims_return_distinct_rows_and_a_third_none(jobs: Jobs) -> None:
    first, second = jobs.add(2)
    async with jobs.served() as served:
        assert await served.ids(1) == [first]
        assert await served.ids(1) == [second]
        assert await served.ids(1) == []


async def test_a_claim_marks_the_row_and_clears_values_of_an_earlier_attempt(jobs: Jobs) -> None:
    (job_id,) = jobs.add(
        state="errored", finished_at=("now() - interval '1 hour'",), failure_message="old", execution_logs=("'{1,2}'",)
    )
    token = new_token()
    async with jobs.served(**RETRIES) as served:
        (taken,) = await served.claim(1, token=token)
    row = jobs.row(job_id)
    assert row["state"] == "processing"
    assert row["worker_hostname"] == f"w1/{token}"
    assert row["started_at"] == row["last_heartbeat_at"] is not None
    assert row["finished_at"] is row["failure_message"] is row["execution_logs"] is None
    assert taken.lease.epoch == round(row["started_at"].timestamp() * 1e6)
    assert (taken.lease.job_id, taken.lease.token) == (job_id, token)


async def test_the_record_is_read_after_the_update(jobs: Jobs) -> None:
    jobs.add(state="errored", failure_message="old")
    columns = [
        "state",
        "failure_message",
        sql("worker_hostname || {} as mark -- why", "!"),
        sql("started_at is not null"),
    ]
    async with jobs.served(**RETRIES, column_expressions=columns) as served:
        (taken,) = await served.claim(1, token=new_token())
        assert taken.values == ("processing", None, f"w1/{taken.lease.token}!", True)
        assert served.table.names == ("state", "failure_message", "mark", "?column?")


async def test_due_records_of_both_states_have_one_order(jobs: Jobs) -> None:
    def at(minutes: int) -> tuple[str]:
        return (f"now() + interval '{minutes} minutes'",)

    jobs.add(state="errored", finished_at=at(-4))
    jobs.add(state="failed", finished_at=at(-6))
    jobs.add(state="completed", finished_at=at(-6))
    (late,) = jobs.add(size=9)
    (again,) = jobs.add(size=3, state="errored", finished_at=at(-6))
    jobs.add(size=1, process_after=at(5))
    jobs.add(size=1, state="errored", finished_at=at(-6), process_after=at(5))
    (soon,) = jobs.add(size=2, process_after=at(-1))
    async with jobs.served(**RETRIES, order_by_expression="size") as served:
        assert await served.ids() == [soon, again, late]


async def test_without_retries_an_errored_record_is_never_claimed(jobs: Jobs) -> None:
    jobs.add(state="errored", finished_at=("now() - interval '1 day'",))
    async with jobs.served() as served:
        assert await served.ids() == []


async def test_a_retry_delay_below_a_second_is_respected(jobs: Jobs) -> None:
    now = datetime(2031, 1, 1, tzinfo=UTC)
    jobs.add(state="errored", finished_at=now)
    async with jobs.served(pinned=lambda: now, max_num_retries=1, retry_after=3600.25) as served:
        assert await served.ids() == []
        jobs.sql("update jobs set finished_at = %s", now - timedelta(seconds=3600.2))
        assert await served.ids() == []
        jobs.sql("update jobs set finished_at = %s", now - timedelta(seconds=3600.3))
        assert len(await served.ids()) == 1


async def test_conditions_all_hold_and_an_or_does_not_escape(jobs: Jobs) -> None:
    jobs.add(size=5, path="no")
    (wanted,) = jobs.add(size=5, path="it's 100%")
    jobs.add(size=50, path="yes", state="completed")
    value = (Where("size", "<", 10), sql("path = 'yes' or path = {}", "it's 100%"), sql("path like '%100%' -- why"))
    async with jobs.served() as served:
        assert await served.ids(conditions=value) == [wanted]


CONDITIONS = (
    (Where("size", "in", [1, 3]), [1, 3]),
    (Where("size", "not in", [1, 3]), [2]),
    (Where("path", "is null"), [3]),
    (Where("path", "!=", "a"), [2]),
    (Where("jobs.path", "=", "a"), [1]),
)


async def test_every_closed_condition_is_understood(jobs: Jobs) -> None:
    jobs.sql("alter table jobs alter path drop not null")
    for size, path in ((1, "a"), (2, "b"), (3, None)):
        jobs.add(size=size, path=path)
    async with jobs.served() as served:
        for condition, found in CONDITIONS:
            taken = await served.claim(conditions=(condition,))
            assert [one.lease.job_id for one in taken] == found, condition
            await served.heartbeats.release([one.lease for one in taken])


async def test_a_text_and_a_placeholder_are_no_conditions(jobs: Jobs) -> None:
    async with jobs.served() as served:
        with pytest.raises(ConfigurationError, match="sql"):
            await served.claim(conditions=("size < 10",))
        with pytest.raises(ConfigurationError, match="placeholder"):
            await served.claim(conditions=(composed.SQL("size < {}").format(composed.Placeholder()),))
        jobs.add(size=7, path="50%")
        wanted = composed.SQL("{} like '%%' and size = {}").format(composed.Identifier("path"), composed.Literal(7))
        assert len(await served.ids(conditions=(wanted,))) == 1


async def test_a_condition_on_a_missing_column_is_an_error_and_claims_nothing(jobs: Jobs) -> None:
    jobs.add()
    async with jobs.served() as served:
        with pytest.raises(TableUnsuitable, match="weight"):
            await served.claim(conditions=(Where("weight", "<", 1),))
        assert len(await served.ids()) == 1


async def test_several_records_have_the_requested_order(jobs: Jobs) -> None:
    for size in (3, 1, 2, 1):
        jobs.add(size=size)
    async with jobs.served(order_by_expression=sql("jobs.size desc nulls last, jobs.id desc")) as served:
        assert await served.ids() == [1, 3, 4, 2]


async def test_suspects_are_claimed_only_on_request(jobs: Jobs) -> None:
    (suspect,) = jobs.add(num_resets=2)
    (innocent,) = jobs.add(num_resets=1)
    async with jobs.served() as served:
        assert await served.ids() == [innocent]
        (taken,) = await served.claim(suspects=True)
        assert (taken.lease.job_id, taken.num_resets) == (suspect, 2)


async def test_a_record_with_a_cancellation_request_is_never_started(jobs: Jobs) -> None:
    flagged = jobs.add(5, cancel=True)
    (wanted,) = jobs.add()
    async with jobs.served() as served:
        assert await served.ids(1) == [wanted]
    for job_id in flagged:
        row = jobs.row(job_id)
        assert (row["state"], row["started_at"], row["worker_hostname"]) == ("canceled", None, "")
        assert row["finished_at"] is not None


async def test_a_locked_record_is_skipped_and_not_waited_for(jobs: Jobs) -> None:
    first, second = jobs.add(2)
    async with jobs.served() as served:
        with jobs.locked(f"id = {first}"):
            assert await served.ids() == [second]
        assert await served.ids() == [first]


async def test_a_view_supplies_computed_values_for_records_and_conditions(jobs: Jobs) -> None:
    jobs.sql("create view shown as select j.*, j.size * 7 as seven from jobs j")
    for size in (1, 2, 3):
        jobs.add(size=size)
    async with jobs.served(view_name="shown v", column_expressions=["id", "seven"]) as served:
        (taken,) = await served.claim(conditions=(Where("seven", ">", 10), sql("size < 3")))
        assert taken.values == (2, 14)


@pytest.mark.parametrize(
    ("table", "view"),
    [("jobs j", "shown j"), ("jobs", "shown jobs"), ("jobs j", "shown v"), ("jobs", "shown")],
)
async def test_expressions_may_use_either_alias(jobs: Jobs, table: str, view: str) -> None:
    """The founding documents alias the view as the table; or each has its own, and either may be used."""
    jobs.make(
        f"create table jobs (id serial primary key, {COLUMNS}, repository_id integer not null)",
        "create table repo (id serial primary key, name text)",
        "insert into repo (name) values ('b'), ('a')",
        "create view shown as select ej.*, r.name as repository_name from jobs ej join repo r"
        " on r.id = ej.repository_id",
    )
    for repository in (2, 1, 2, 1):
        jobs.sql("insert into jobs (repository_id) values (%s)", repository)
    t, v = table.split()[-1], view.split()[-1]
    options: dict[str, Any] = {
        "table_name": table,
        "view_name": view,
        "order_by_expression": sql(f"{t}.repository_id, {v}.id"),
        "column_expressions": [sql(f"{t}.state"), sql(f"{v}.repository_name"), "repository_id", sql("upper(state)")],
    }
    async with jobs.served(**options) as served:
        assert await served.ids(2, conditions=(sql(f"{t}.repository_id > 0"), Where(f"{v}.id", ">", 0))) == [2, 4]
        (taken, _) = await served.claim()
        assert taken.values == ("processing", "a", 2, "PROCESSING")


async def test_a_view_that_hides_records_in_processing_claims_nothing(jobs: Jobs) -> None:
    jobs.sql("create view shown as select * from jobs where state <> 'processing' or size > 1")
    jobs.add(2, size=1, failure_message="kept")
    async with jobs.served(view_name="shown") as served:
        for limit in (1, 2):
            with pytest.raises(TableUnsuitable, match=r"shown: none of 2 .* record 1: the view does not show it"):
                await served.claim(limit)
        assert jobs.states() == ["queued", "queued"]
        assert jobs.row(1)["failure_message"] == "kept"
        jobs.sql("update jobs set size = 2")
        assert await served.ids(1) == [1]


async def test_a_record_unreadable_in_python_does_not_prevent_the_others(jobs: Jobs) -> None:
    jobs.sql("alter table jobs add moment timestamptz, add day date, add kind point, add word name default 'x'")
    jobs.add(moment=("'infinity'",), day=("'-infinity'",), kind=("'(1,2)'",))
    jobs.add(moment=("'20000-01-01 00:00Z'",), process_after=("'-infinity'",))
    async with jobs.served() as served:
        assert len(await served.claim()) == 2


async def test_a_canceled_claim_leaves_the_store_usable(jobs: Jobs) -> None:
    jobs.add(2)
    async with jobs.served() as served:
        with jobs.locked(how="; lock table jobs in access exclusive mode"):
            waiting = asyncio.create_task(served.claim())
            await until(lambda: jobs.sql("select 1 from pg_locks where not granted"))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert len(await served.ids()) == 2


async def test_num_failures_are_returned_with_the_record(jobs: Jobs) -> None:
    jobs.add()
    async with jobs.served(max_num_retries=2) as served:
        (taken,) = await served.claim(1)
        assert taken.num_failures == 0
        await served.settle(taken.lease, ERRORED)
        jobs.sql("update jobs set process_after = null, finished_at = now() - interval '1 hour'")
        (taken,) = await served.claim(1)
        assert taken.num_failures == 1
