"""Many rows, many workers: what a claim costs does not grow with what it does not take."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stowhand.jobs.conditions import sql
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.stores.postgres.table.plan import TablePlan
from stowhand.stores.table.ddl import RECOMMENDED_INDEXES, index_ddl
from stowhand.stores.table.names import read_shape
from tests.stores.table.postgres.jobs import SNOOZED, TABLE, Jobs, Served

FINISHED = 30_000
HUNDRED = 100
"""Pages. The table has many hundreds."""


@pytest.fixture
def crowd(jobs: Jobs) -> Jobs:
    """Many finished records, some at work, one that waits; with the indexes that the DDL recommends."""
    jobs.add(FINISHED, state="completed", started_at=("now()",), finished_at=("now()",))
    jobs.add(20, state="processing", started_at=("now()",), last_heartbeat_at=("now()",))
    jobs.add(300, process_after=("now() + interval '1 hour'",))
    jobs.add()
    for index in RECOMMENDED_INDEXES:
        jobs.sql(index_ddl(read_shape("jobs", None, {}), index))
    jobs.sql("create view shown as select j.*, size * 2 as twice from jobs j")
    jobs.sql("vacuum analyze jobs")
    return jobs


def pages_read(jobs: Jobs, statement: bytes, values: Mapping[str, object]) -> int:
    """Pages of tables and indexes that the statement looks at. It is rolled back."""
    explain = b"explain (analyze, buffers, format json) " + statement
    with jobs.transaction() as connection:
        ((found,),) = connection.execute(explain, values).fetchall()
        connection.rollback()
    plan: dict[str, Any] = found[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def indexes_of(jobs: Jobs, statement: bytes, values: Mapping[str, object]) -> set[str]:
    """Names of the indexes by which the statement finds its rows."""
    with jobs.transaction() as connection:
        ((found,),) = connection.execute(b"explain (format json) " + statement, values).fetchall()
    return {node["Index Name"] for node in nodes(found[0]["Plan"]) if "Index Name" in node}


def hot_statements(served: Served) -> dict[str, tuple[bytes, dict[str, object]]]:
    context = served.table._context
    options = {
        "limit": 1,
        "mark": "w",
        "token": "00000000-0000-0000-0000-000000000000",
        "stalled": 30.0,
        "slack": 0.0,
        "page": 1000,
        "ids": ["1"],
    }
    result = {}
    for suspects in (False, True):
        statement, values = context.composer.claim((), suspects=suspects)
        result["claim of suspects" if suspects else "claim"] = statement, {**values, **context.values(**options)}
    for name in ("find_stalled", "foreign_leases", "next_due", "longest_run", "cancel_waiting"):
        result[name] = context.statement(name), dict(context.values(**options))
    return result


@pytest.mark.parametrize(
    "options",
    [{}, {"view_name": "shown v"}, {"max_num_retries": 1, "order_by_expression": sql("size desc, id")}],
)
async def test_plans_do_not_read_finished_records(crowd: Jobs, options: dict[str, Any]) -> None:
    async with crowd.served(**options) as served:
        pages = {name: pages_read(crowd, *asked) for name, asked in hot_statements(served).items()}
    assert max(pages.values()) < HUNDRED, pages


async def test_suspects_are_found_without_reading_all_waiting_records(crowd: Jobs) -> None:
    crowd.add(FINISHED)
    crowd.add(2, num_resets=2)
    crowd.sql("vacuum analyze jobs")
    async with crowd.served() as served:
        statement, values = served.table._context.composer.claim((), suspects=True)
        options = {**values, **served.table._context.values(limit=1, mark="w")}
        assert pages_read(crowd, statement, options) < HUNDRED
        crowd.sql("drop index jobs_suspects")
        assert pages_read(crowd, statement, options) > HUNDRED, "which is why it is recommended"


async def test_settlements_and_heartbeats_do_not_read_dead_entries_of_processing(jobs: Jobs) -> None:
    """Since the last vacuum an index on what is in processing holds that too."""
    jobs.make(f"{TABLE} with (autovacuum_enabled = off)")
    for index in RECOMMENDED_INDEXES:
        jobs.sql(index_ddl(read_shape("jobs", None, {}), index))
    jobs.add(FINISHED, state="processing", last_heartbeat_at=("now()",))
    jobs.sql("update jobs set state = 'completed'")
    jobs.add(20)
    async with jobs.served() as served:
        context, plan = served.table._context, TablePlan(served.table._context)
        leases = [taken.lease for taken in await served.claim(20)]
        entries = [(lease, SNOOZED) for lease in leases]
        value = context.values(**context.leases(leases))
        request = {name: (context.statement(name), value) for name in ("beat", "release", "settle_completed")}
        request["settle"] = context.statement("settle"), plan.settle_values(entries)
        used = {name: indexes_of(jobs, *one) for name, one in request.items()}
    assert used == {name: {"jobs_pkey"} for name in request}


def stale(jobs: Jobs, *indexes: str) -> None:
    """Statistics from when hardly anything waited, which nobody brings up to date."""
    jobs.make(f"{TABLE} with (autovacuum_enabled = off)", *indexes)
    over = {"started_at": ("now()",), "finished_at": ("now()",), "process_after": ("now()",)}
    jobs.add(FINISHED, state="completed", **over)
    jobs.add(20, process_after=("now()",))
    jobs.sql("analyze jobs")
    jobs.sql("update jobs set state = 'completed'")


async def plan_of_a_claim(jobs: Jobs, limit: int, **options: Any) -> dict[str, Any]:
    """As it is planned, and run, in the claim's own transaction."""
    async with jobs.served(**options) as served:
        context, claims = served.table._context, served.table._claims
        statement, values = context.composer.claim((), suspects=False)
        token = "00000000-0000-0000-0000-000000000000"
        given = {**values, **context.values(limit=limit, mark="w", token=token)}
        with jobs.transaction() as connection:
            connection.execute(
                context.statement("begin_walk" if claims._can_walk_index else "begin_claim"), {"token": token}
            )
            ((found,),) = connection.execute(b"explain (analyze, buffers, format json) " + statement, given).fetchall()
            connection.rollback()
    plan: dict[str, Any] = found[0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for one in plan.get("Plans", ()):
        yield from nodes(one)


async def test_a_new_backlog_is_read_in_index_order_without_a_sort(jobs: Jobs) -> None:
    """An index serves states and order, and the statistics know nothing of what waits."""
    usual = [index_ddl(read_shape("jobs", None, {}), index) for index in RECOMMENDED_INDEXES]
    stale(jobs, *usual, "create index by_size on jobs (size desc, id) where state in ('queued', 'errored')")
    jobs.add(20_000, process_after=("now()",))
    options = {"max_num_retries": 1, "order_by_expression": sql("size desc")}
    plan = await plan_of_a_claim(jobs, 500, **options)
    assert not [node for node in nodes(plan) if "Sort" in node["Node Type"]]
    (scan,) = [node for node in nodes(plan) if node.get("Index Name") == "by_size"]
    assert scan["Actual Rows"] == 500


async def test_few_waiting_records_among_many_finished_ones_are_found_by_state(jobs: Jobs) -> None:
    """The index is on the state alone: to walk in the order of ids would be to walk over all that is over."""
    stale(jobs, "create index by_state on jobs (state, process_after)")
    jobs.add(5)
    plan = await plan_of_a_claim(jobs, 5)
    assert int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"]) < HUNDRED
    assert "by_state" in {node.get("Index Name") for node in nodes(plan)}


async def test_reading_the_record_may_sort(jobs: Jobs) -> None:
    """The setting is for the claim, and not for the user's view, nor for anybody after it."""
    jobs.make(TABLE, "create view shown as select *, current_setting('enable_sort') as sorts from jobs")
    for index in RECOMMENDED_INDEXES:
        jobs.sql(index_ddl(read_shape("jobs", None, {}), index))
    jobs.add(2)
    async with jobs.served(view_name="shown", column_expressions=["sorts"]) as served:
        assert served.table._claims._can_walk_index
        assert [one.values for one in await served.claim(2)] == [("on",), ("on",)]


async def quickest(served: Served, found: list[Any]) -> float:
    """Seconds of a claim that finds these, on a machine that may pause now and then."""
    clock, took = asyncio.get_running_loop().time, float("inf")
    for _ in range(5):
        before = clock()
        taken = await served.claim(1)
        took = min(took, clock() - before)
        assert [one.lease.job_id for one in taken] == found
        if took < 1.0:
            break
        await served.heartbeats.release([one.lease for one in taken])
    return took


async def test_one_unlocked_record_after_ten_thousand_locked_ones_is_found(jobs: Jobs) -> None:
    jobs.add(10_000)
    (free,) = jobs.add()
    async with jobs.served() as served:
        with jobs.locked(f"id < {free}"):
            assert await quickest(served, [free]) < 1.0


async def test_one_due_record_after_ten_thousand_others_is_found(jobs: Jobs) -> None:
    jobs.add(10_000, process_after=("now() + interval '1 hour'",))
    (free,) = jobs.add()
    async with jobs.served() as served:
        assert await served.ids(1) == [free]
        assert await served.ids(1) == []


async def test_many_workers_share_the_records_and_none_is_claimed_twice(jobs: Jobs) -> None:
    jobs.add(400)
    taken: list[Any] = []
    async with jobs.served() as one, jobs.served() as two, jobs.served() as three:

        async def work(served: Served, name: str) -> None:
            while claims := await served.claim(7, worker=name):
                taken.extend(claim.lease.job_id for claim in claims)
                back, done = claims[:1], claims[1:]
                batch = [(claim.lease, COMPLETED) for claim in done] + [(claim.lease, SNOOZED) for claim in back]
                assert len(set(await served.table.settle(batch))) == 1

        await asyncio.gather(*(work(served, f"w{at}") for at, served in enumerate((one, two, three, one, two, three))))
    assert len(taken) == len(set(taken)) == 400
    assert jobs.sql("select count(*) from jobs where state not in ('completed', 'queued')") == [(0,)]


async def test_a_database_with_serializable_transactions_by_default_works(jobs: Jobs) -> None:
    (name,) = jobs.sql("select current_database()")[0]
    jobs.sql(f"alter database {name} set default_transaction_isolation = 'serializable'")
    try:
        await test_many_workers_share_the_records_and_none_is_claimed_twice(jobs)
    finally:
        jobs.sql(f"alter database {name} reset all")


async def test_the_search_for_suspects_pauses_after_an_empty_result(jobs: Jobs) -> None:
    """No index helps to find them among a million that wait: the search is rare if it is dear."""
    jobs.add()
    async with jobs.served() as served:
        assert await served.ids(suspects=True) == []
        served.table._claims._suspects_not_before = float("inf")
        jobs.sql("update jobs set num_resets = 2")
        assert await served.ids(suspects=True) == []
        served.table._claims._suspects_not_before = 0.0
        assert await served.ids(suspects=True) == [1]
