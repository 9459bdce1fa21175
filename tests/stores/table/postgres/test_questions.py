"""Counts, waits, requeues and execution logs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stowhand.errors import LogRefused, StoreUnreachable
from stowhand.jobs.conditions import Where, sql
from stowhand.jobs.execution_log import MAX_LOG_ENTRIES
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import Verdict
from tests.stores.table.postgres.jobs import FAILED, Jobs, new_token

EVERY = tuple(State)
NOW = datetime(2031, 5, 6, 12, tzinfo=UTC)


def now() -> datetime:
    """What time it is for the store, where it matters to the second."""
    return NOW


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


async def test_counts_and_existence_by_state_and_condition(jobs: Jobs) -> None:
    jobs.add(2, size=5)
    jobs.add(process_after=ago(-5))
    for state in ("processing", "completed", "errored"):
        jobs.add(state=state)
    async with jobs.served() as served:
        table = served.table
        assert await table.queries.count([State.QUEUED, State.ERRORED]) == {State.QUEUED: 3, State.ERRORED: 1}
        assert sum((await table.queries.count(EVERY)).values()) == 6
        value = (Where("size", ">", 1), sql("path = 'p' or path = 'q'"))
        assert await table.queries.count([State.QUEUED, State.FAILED], value) == {State.QUEUED: 2, State.FAILED: 0}
        assert await table.queries.exists([State.PROCESSING])
        assert not await table.queries.exists([State.FAILED])
        assert not await table.queries.exists([State.PROCESSING], value)


async def test_a_view_without_a_state_is_counted_by_the_state_of_the_table(jobs: Jobs) -> None:
    jobs.sql("create view shown as select id, size * 2 as twice from jobs")
    jobs.add(2)
    async with jobs.served(view_name="shown") as served:
        assert await served.table.queries.count([State.QUEUED], (Where("twice", "=", 2),)) == {State.QUEUED: 2}
        assert [taken.values for taken in await served.claim()] == [(1, 2), (2, 2)]


async def test_the_longest_wait_counts_from_the_due_time(jobs: Jobs) -> None:
    async with jobs.served(pinned=now, max_num_retries=1, retry_after=300) as served:

        async def minutes() -> float:
            return await served.table.queries.longest_wait() / 60

        assert await minutes() == 0
        jobs.add(queued_at=ago(50), process_after=ago(-1))
        assert await minutes() == 0
        jobs.add(state="errored", queued_at=ago(60), finished_at=ago(30))
        assert await minutes() == 25
        jobs.add(queued_at=ago(40), process_after=ago(30))
        assert await minutes() == 30
        jobs.add(queued_at=ago(35))
        assert await minutes() == 35


async def test_without_retries_errored_records_are_not_due(jobs: Jobs) -> None:
    jobs.add(state="errored", finished_at=ago(30))
    async with jobs.served(pinned=now) as served:
        assert await served.table.queries.longest_wait() == 0
        assert await served.table.queries.next_due() is None


async def test_the_longest_run(jobs: Jobs) -> None:
    jobs.add(state="processing", started_at=ago(5), last_heartbeat_at=ago(0))
    jobs.add(state="completed", started_at=ago(50))
    async with jobs.served(pinned=now) as served:
        assert await served.table.queries.longest_run() == 300


async def test_next_due_is_the_time_of_the_earliest_record(jobs: Jobs) -> None:
    async with jobs.served(pinned=now, max_num_retries=1, retry_after=300) as served:

        async def minutes() -> float | None:
            seconds = await served.table.queries.next_due()
            return None if seconds is None else seconds / 60

        jobs.add(state="completed")
        assert await minutes() is None
        jobs.add(process_after=("'infinity'",))
        assert await minutes() == 24 * 60
        jobs.add(process_after=ago(-30))
        assert await minutes() == 30
        jobs.add(state="errored", finished_at=ago(1))
        assert await minutes() == 4
        jobs.add(state="errored", finished_at=ago(10), process_after=ago(-2))
        assert await minutes() == 2
        jobs.add(process_after=("'-infinity'",))
        assert await minutes() == 0
        jobs.sql("delete from jobs where process_after = '-infinity'")
        jobs.add()
        assert await minutes() == 0


async def test_next_due_is_exact_with_many_errored_records(jobs: Jobs) -> None:
    """A hundred are looked at: the answer may be too early, and is never too late."""
    jobs.add(150, state="errored", finished_at=ago(1), process_after=ago(-2))
    jobs.add(state="errored", finished_at=ago(10), process_after=ago(-3))
    async with jobs.served(pinned=now, max_num_retries=1, retry_after=300) as served:
        assert await served.table.queries.next_due() == 120
        jobs.sql("delete from jobs where id <= 100")
        assert await served.table.queries.next_due() == 180


async def test_requeue_sets_the_due_time_and_fences_a_running_attempt(jobs: Jobs) -> None:
    jobs.add()
    moment = datetime(2040, 1, 1, tzinfo=UTC)
    async with jobs.served() as served:
        lease = await served.take()
        assert (await served.table.queries.requeue(1, moment)).result is ActionResult.DONE
        row = jobs.row(1)
        assert (row["state"], row["process_after"], row["started_at"]) == ("queued", moment, None)
        assert await served.settle(lease) is Verdict.LOST
        assert (await served.table.queries.requeue(1, 90.0)).result is ActionResult.DONE
        row = jobs.row(1)
        assert row["process_after"] - row["queued_at"] == timedelta(seconds=90)
        assert 0 < await served.table.queries.seconds_until(row["process_after"]) <= 90
        assert (await served.table.queries.requeue(1, None)).result is ActionResult.DONE
        assert await served.ids() == [1]


async def test_a_record_in_a_final_state_is_not_requeued(jobs: Jobs) -> None:
    async with jobs.served() as served:
        for state in (State.COMPLETED, State.FAILED, State.CANCELED):
            (job_id,) = jobs.add(state=state.value)
            before = jobs.row(job_id)
            answer = await served.table.queries.requeue(job_id, None)
            assert (answer.result, answer.reason) == (
                ActionResult.REFUSED,
                f"it is {state}, which is final: INSERT a record anew",
            )
            assert jobs.row(job_id) == before
        assert (await served.table.queries.requeue(99, None)).result is ActionResult.MISSING


async def test_a_requeue_of_a_record_with_a_cancellation_request_cancels_it(jobs: Jobs) -> None:
    jobs.add(cancel=True, state="errored")
    async with jobs.served() as served:
        answer = await served.table.queries.requeue(1, None)
        assert answer.result is ActionResult.DONE
        assert "cancel" in answer.reason
    assert jobs.states() == ["canceled"]


async def test_a_requeue_does_not_wait_for_a_locked_record(jobs: Jobs) -> None:
    jobs.add()
    async with jobs.served() as served:
        with jobs.locked(), pytest.raises(StoreUnreachable, match="open transaction holds record 1"):
            await served.table.queries.requeue(1, None)


async def test_log_entries_are_numbered_in_order_and_replaced(jobs: Jobs) -> None:
    jobs.add()
    async with jobs.served() as served:
        lease = await served.take()
        assert [await served.table.add_log(lease, f'{{"key":"{at}"}}') for at in range(5)] == [1, 2, 3, 4, 5]
        await served.table.update_log(lease, 3, '{"key":"it\'s new"}')
        assert await served.table.queries.logs(1) == [
            '{"key":"0"}',
            '{"key":"1"}',
            '{"key":"it\'s new"}',
            '{"key":"3"}',
            '{"key":"4"}',
        ]
        assert await served.table.queries.logs(2) is None
        for number in (0, 6, -1):
            with pytest.raises(LogRefused, match=f"no entry {number}, it has 5"):
                await served.table.update_log(lease, number, "{}")
        await served.settle(lease, FAILED)
        assert len(await served.table.queries.logs(1) or ()) == 5


async def test_only_the_lease_can_write_the_log(jobs: Jobs) -> None:
    jobs.add()
    async with jobs.served() as served:
        lease = await served.take()
        stranger = Lease(1, new_token(), 1)
        with pytest.raises(LogRefused, match="is over"):
            await served.table.add_log(stranger, "{}")
        await served.table.add_log(lease, "{}")
        with pytest.raises(LogRefused, match="is over"):
            await served.table.update_log(stranger, 1, '{"key":"theirs"}')
        await served.settle(lease)
        for call in (served.table.add_log(lease, "{}"), served.table.update_log(lease, 1, '{"late":1}')):
            with pytest.raises(LogRefused, match="is over"):
                await call
        assert await served.table.queries.logs(1) == ["{}"]


async def test_a_log_is_bounded(jobs: Jobs) -> None:
    jobs.add()
    async with jobs.served() as served:
        lease = await served.take()
        jobs.sql(f"update jobs set execution_logs = array_fill('{{}}'::json, array[{MAX_LOG_ENTRIES}])")
        with pytest.raises(LogRefused, match="full"):
            await served.table.add_log(lease, "{}")


async def test_the_log_of_a_locked_record_is_waited_for_within_the_timeout(jobs: Jobs) -> None:
    jobs.add()
    async with jobs.served() as served:
        lease = await served.take()
        with jobs.locked(), pytest.raises(StoreUnreachable, match="try again"):
            await served.table.add_log(lease, "{}")
        assert await served.table.add_log(lease, "{}") == 1
