"""One record whose own trigger or policy raises: it alone is at fault, whatever SQLSTATE it raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from stowhand.errors import StoreError
from stowhand.events import Events, StoreWarning
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import RefusedSettlement, Verdict
from stowhand.table import TableOptions, TableStore
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.stores.table.postgres.jobs import ERRORED, Jobs, Served

LOGIN = "rows_at_fault"
AUDIT = """
create function audit() returns trigger language plpgsql as $$
begin if new.path = 'bad' then {body}; end if; return null; end $$;
create trigger audit after update on jobs for each row execute function audit()
"""
FAULTS = {
    "row security": f"""
        alter table jobs enable row level security;
        create policy seen on jobs for select to {LOGIN} using (true);
        create policy written on jobs for update to {LOGIN} using (true) with check (path <> 'bad')""",
    "audit table without a grant": "create table log (id bigint);"
    + AUDIT.format(body="insert into log values (new.id)"),
    "missing partition": f"create table log (path text) partition by list (path); grant insert on log to {LOGIN};"
    + AUDIT.format(body="insert into log values (new.path)"),
    "missing table": AUDIT.format(body="insert into nowhere values (new.id)"),
    **{
        code: AUDIT.format(body=f"raise 'not this one' using errcode = '{code}'")
        for code in ("P0001", "08006", "40001", "53100")
    },
}


@pytest.fixture
def application(jobs: Jobs) -> Iterator[Jobs]:
    """The table, worked on by a login that is not its owner."""
    jobs.sql(f"drop role if exists {LOGIN}")
    jobs.sql(f"create role {LOGIN} login password 'secret'")
    jobs.sql(f"grant usage on schema public to {LOGIN}; grant select, update on jobs to {LOGIN}")
    job = Jobs(make_conninfo(jobs.url, user=LOGIN, password="secret"))
    job.sql, job.add = jobs.sql, jobs.add  # type: ignore[method-assign]
    yield job
    jobs.sql(f"drop owned by {LOGIN} cascade; drop role {LOGIN}")
    job.close()


def begin_fault(jobs: Jobs, fault: str, *bad: int) -> None:
    for statement in FAULTS[fault].split(";\n"):
        jobs.sql(statement)
    jobs.sql("alter table jobs disable trigger user")
    jobs.sql("update jobs set path = 'bad' where id = any(%s)", list(bad))
    jobs.sql("alter table jobs enable trigger user")


async def test_the_store_opens_whatever_triggers_and_policies_there_are(application: Jobs) -> None:
    application.sql(
        "create function noted() returns trigger language plpgsql as $$ begin return new; end $$;"
        "create trigger changed before update on jobs for each row"
        " when (new.state is distinct from old.state) execute function noted();"
        "create trigger added after insert on jobs for each row when (new.size > 0) execute function noted();"
        "create trigger owned after update of path on jobs for each row when (new.path <> old.path)"
        " execute function noted()"
    )
    begin_fault(application, "row security")
    application.add(1)
    async with application.served() as served:
        assert await served.ids() == [1]
        assert [finding.problem for finding in await served.table.check() if finding.fatal] == []


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_claim_skips_the_faulty_record_and_takes_the_others(application: Jobs, fault: str) -> None:
    application.add(8)
    begin_fault(application, fault, 1)
    async with application.served() as served:
        assert await served.ids(1) == [2]
        assert await served.ids(10) == [3, 4, 5, 6, 7, 8]
        assert await served.ids(1) == []


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_heartbeat_renews_the_other_records(application: Jobs, fault: str) -> None:
    application.add(8)
    async with application.served() as served:
        leases = [taken.lease for taken in await served.claim(8)]
        application.sql("update jobs set last_heartbeat_at = now() - interval '1 hour'")
        begin_fault(application, fault, 3)
        pulse = await served.heartbeats.beat(leases, 30.0)
        assert pulse.refused == {leases[2].pair}
        assert not pulse.lost | pulse.busy | pulse.canceled
        assert [one.operation for one in served.heartbeats.refused()] == ["beat"]
    assert application.sql("select id from jobs where last_heartbeat_at < now() - interval '1 minute'") == [(3,)]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_reset_resets_the_other_records(application: Jobs, fault: str) -> None:
    application.add(8)
    async with application.served() as served:
        await served.claim(8)
        application.sql("update jobs set last_heartbeat_at = now() - interval '1 hour'")
        begin_fault(application, fault, 3)
        assert [one.job_id for one in await served.heartbeats.reset_stalled(0.0)] == [1, 2, 4, 5, 6, 7, 8]
        assert [(one.job_id, one.operation) for one in served.heartbeats.refused()] == [(3, "reset")]
        assert list(await served.heartbeats.reset_stalled(0.0)) == []


@pytest.mark.parametrize("fault", FAULTS)
async def test_other_records_are_settled_and_the_faulty_one_is_unwritten(application: Jobs, fault: str) -> None:
    application.add(8)
    async with application.served() as served:
        leases = [taken.lease for taken in await served.claim(8)]
        begin_fault(application, fault, 3)
        for settlement in (COMPLETED, ERRORED):
            replies = await served.table.settle([(one, settlement) for one in leases])
            assert isinstance(replies[2], RefusedSettlement), settlement
            expected = {Verdict.SETTLED} if settlement is COMPLETED else {Verdict.LOST}
            assert {reply for number, reply in enumerate(replies) if number != 2} == expected


async def test_the_store_is_at_fault_if_no_settlement_can_be_written_and_each_is_written_later(
    application: Jobs,
) -> None:
    application.add(3)
    async with application.served() as served:
        batch = [(taken.lease, COMPLETED) for taken in await served.claim(3)]
        begin_fault(application, "audit table without a grant", 1, 2, 3)
        with pytest.raises(StoreError, match="permission denied for table log"):
            await served.table.settle(batch)
        assert application.states() == ["processing"] * 3
        application.sql(f"grant insert on log to {LOGIN}")
        assert await served.table.settle(batch, repeat=True) == [Verdict.SETTLED] * 3


async def test_if_none_of_many_can_be_claimed_the_next_claim_finds_later_records(application: Jobs) -> None:
    application.add(60)
    begin_fault(application, "audit table without a grant", *range(1, 56))
    async with application.served() as served:
        with pytest.raises(StoreError, match="none of 10 records can be claimed: record 1: permission denied"):
            await served.claim(10)
        assert await until_claimed(served) == [56, 57, 58, 59, 60]


async def until_claimed(served: Served) -> list[Any]:
    """Of the first claim that is not refused."""
    while True:
        try:
            return await served.ids(10)
        except StoreError:
            continue


def test_a_record_that_cannot_be_completed_is_an_error_of_its_attempt_and_the_others_run_once(
    application: Jobs, run: Run
) -> None:
    application.add(8)
    application.sql(
        "create function refuses() returns trigger language plpgsql as $$ begin insert into log values (new.id);"
        " return null; end $$; create table log (id bigint)"
    )
    application.sql(
        "create trigger refuses after update on jobs for each row"
        " when (new.state = 'completed' and new.id = 3) execute function refuses()"
    )
    ran = list[Any]()
    events, warned = Events(), list[StoreWarning]()
    events.on(StoreWarning, warned.append)

    async def act(ctx: Attempt[Any], record: Any) -> None:
        ran.append(record["id"])

    async def scenario() -> None:
        options: TableOptions[Any] = TableOptions(name="jobs", table_name="jobs", max_num_retries=1)
        async with TableStore(application.url, options) as store:
            await Worker(store, act, WorkerOptions(once=True, concurrency=4), events=events).run()

    run(scenario())
    assert sorted(ran) == [1, 2, 3, 3, 4, 5, 6, 7, 8]
    assert application.states() == ["completed"] * 2 + ["failed"] + ["completed"] * 5
    ((message,),) = application.sql("select failure_message from jobs where id = 3")
    assert "its settlement could not be written: permission denied for table log" in message
