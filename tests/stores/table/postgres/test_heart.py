"""Heartbeats, hand-backs, abandoned claims, and the reset of what nobody beats for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.stores.table.options import RESET_FAILURE_MESSAGE
from tests.stores.table.postgres.jobs import Jobs, new_token

STALE = ("now() - interval '2 minutes'",)
FRESH = ("now() - interval '10 seconds'",)


def running(jobs: Jobs, *, beat: object = STALE, **columns: Any) -> int:
    """A record in processing; whoever works on it is not of ours."""
    options: dict[str, Any] = {"worker_hostname": "executor-7"} | columns
    (job_id,) = jobs.add(state="processing", started_at=STALE, last_heartbeat_at=beat, **options)
    assert isinstance(job_id, int)
    return job_id


async def test_a_heartbeat_renews_held_leases_and_reports_lost_ones(jobs: Jobs) -> None:
    jobs.add(4)
    async with jobs.served() as served:
        leases = [taken.lease for taken in await served.claim()]
        jobs.sql("update jobs set last_heartbeat_at = now() - interval '1 hour'")
        jobs.sql("update jobs set state = 'queued' where id = 2")
        jobs.sql("update jobs set cancel = true where id in (2, 3)")
        jobs.sql("delete from jobs where id = 4")
        pulse = await served.heartbeats.beat(leases, 30)
    assert pulse.lost == {(2, leases[1].token), (4, leases[3].token)}
    assert pulse.canceled == {(3, leases[2].token)}
    assert pulse.busy == frozenset()
    fresh = jobs.sql("select id from jobs where last_heartbeat_at > now() - interval '1 minute' order by id")
    assert fresh == [(1,), (3,)]


async def test_a_heartbeat_without_leases_runs_no_statement(jobs: Jobs) -> None:
    async with jobs.served() as served:
        jobs.sql("drop table jobs")
        assert await served.heartbeats.beat([], 30) == await served.heartbeats.beat([], 30)


async def test_stale_records_return_to_the_queue_or_fail_permanently(jobs: Jobs) -> None:
    ids = [running(jobs, num_resets=count, num_failures=3) for count in (0, 4, 5, 6)]
    fresh = running(jobs, beat=FRESH)
    async with jobs.served() as served:
        result = await served.heartbeats.reset_stalled(10)
        assert [(one.job_id, one.state, one.worker, one.task) for one in result] == [
            *((ids[at], State.QUEUED, "executor-7", "jobs") for at in (0, 1)),
            *((ids[at], State.FAILED, "executor-7", "jobs") for at in (2, 3)),
        ]
        assert list(await served.heartbeats.reset_stalled(10)) == []
    assert [jobs.row(one)["num_resets"] for one in ids] == [1, 5, 5, 6]
    assert {jobs.row(one)["num_failures"] for one in ids} == {3}
    queued, failed = jobs.row(ids[0]), jobs.row(ids[2])
    assert (queued["started_at"], queued["failure_message"], queued["finished_at"]) == (None, None, None)
    assert failed["failure_message"] == RESET_FAILURE_MESSAGE
    assert failed["finished_at"] is not None
    assert jobs.row(fresh)["state"] == "processing"


async def test_the_message_of_used_up_resets_can_be_set(jobs: Jobs) -> None:
    job_id = running(jobs)
    async with jobs.served(max_resets=0, reset_failure_message="gave up") as served:
        await served.heartbeats.reset_stalled(0)
    assert jobs.row(job_id)["failure_message"] == "gave up"


async def test_slack_and_fractions_of_a_second_are_exact(jobs: Jobs) -> None:
    now = datetime.now(UTC)
    running(jobs, beat=now - timedelta(seconds=3600))
    async with jobs.served(pinned=lambda: now, stalled_max_age=3600.25) as served:
        assert list(await served.heartbeats.reset_stalled(0)) == []
        jobs.sql("update jobs set last_heartbeat_at = %s", now - timedelta(seconds=3600.3))
        assert list(await served.heartbeats.reset_stalled(0.25)) == []
        assert len(await served.heartbeats.reset_stalled(0)) == 1


async def test_a_record_locked_by_a_transaction_is_not_reset(jobs: Jobs) -> None:
    locked, free = running(jobs), running(jobs)
    async with jobs.served() as served:
        with jobs.locked(f"id = {locked}", "for key share"):
            assert [one.job_id for one in await served.heartbeats.reset_stalled(0)] == [free]
        assert [one.job_id for one in await served.heartbeats.reset_stalled(0)] == [locked]


async def test_a_reset_cancels_a_record_with_a_cancellation_request(jobs: Jobs) -> None:
    job_id = running(jobs, cancel=True)
    async with jobs.served() as served:
        assert [one.state for one in await served.heartbeats.reset_stalled(0)] == [State.CANCELED]
    row = jobs.row(job_id)
    assert (row["num_resets"], row["finished_at"] is None) == (0, False)


async def test_a_heartbeat_between_search_and_reset_wins(jobs: Jobs) -> None:
    """The reset's second statement writes only what is still as the first has found it."""
    job_id = running(jobs)
    async with jobs.served() as served:
        result = await served.heartbeats._find("find_stalled", slack=0.0)  # type: ignore[attr-defined]
        assert result
        jobs.sql("update jobs set last_heartbeat_at = now()")
        assert list(await served.heartbeats._reset(result, 0.0)) == []  # type: ignore[attr-defined]
        jobs.sql("update jobs set last_heartbeat_at = now() - interval '1 hour', started_at = now()")
        assert list(await served.heartbeats._reset(result, 0.0)) == []  # type: ignore[attr-defined]
    assert jobs.row(job_id)["state"] == "processing"


async def test_many_records_are_reset_page_by_page(jobs: Jobs) -> None:
    jobs.add(1500, state="processing", started_at=STALE, last_heartbeat_at=STALE)
    async with jobs.served() as served:
        pages = [len(await served.heartbeats.reset_stalled(0)) for _ in range(3)]
    assert pages == [1000, 500, 0]


async def test_the_records_of_a_lost_worker_are_reset_at_once(jobs: Jobs) -> None:
    jobs.add(3)
    async with jobs.served() as served:
        mine = (await served.take(worker="w")).job_id
        other = (await served.take(worker="w/2")).job_id
        also = (await served.take(worker="w")).job_id
        assert [(one.job_id, one.worker) for one in await served.heartbeats.reset_worker("w")] == [
            (mine, "w"),
            (also, "w"),
        ]
        assert jobs.row(other)["state"] == "processing"
        assert jobs.row(mine)["worker_hostname"] == "w"
        assert jobs.row(mine)["num_resets"] == 1


async def test_one_lease_is_reset(jobs: Jobs) -> None:
    jobs.add(2)
    async with jobs.served() as served:
        lease, _ = await served.take(), await served.take()
        assert [one.job_id for one in await served.heartbeats.reset_lease(lease)] == [lease.job_id]
        assert list(await served.heartbeats.reset_lease(lease)) == []
        assert list(await served.heartbeats.reset_lease(Lease(2, new_token(), 1))) == []
        assert jobs.states() == ["queued", "processing"]


async def test_a_released_record_is_due_at_once_without_using_an_attempt(jobs: Jobs) -> None:
    jobs.add(num_failures=1, num_resets=1, process_after=STALE)
    async with jobs.served() as served:
        before = jobs.row(1)
        lease = await served.take()
        assert list(await served.heartbeats.release([lease])) == []
        after = jobs.row(1)
        changed = {"worker_hostname", "last_heartbeat_at"}
        assert {name for name in after if after[name] != before[name]} == changed
        assert after["worker_hostname"] == "w1"
        assert await served.ids() == [1]


async def test_a_released_record_with_a_cancellation_request_is_canceled(jobs: Jobs) -> None:
    jobs.add()
    async with jobs.served() as served:
        lease = await served.take()
        jobs.sql("update jobs set cancel = true")
        await served.heartbeats.release([lease])
    assert jobs.states() == ["canceled"]


async def test_an_abandoned_token_returns_its_records(jobs: Jobs) -> None:
    jobs.add(3)
    token = new_token()
    async with jobs.served() as served:
        await served.claim(2, token=token)
        await served.take()
        with jobs.locked("id = 2"):
            assert not await served.heartbeats.abandon(token)
            assert jobs.states() == ["queued", "processing", "processing"]
        assert await served.heartbeats.abandon(token)
        assert jobs.states() == ["queued", "queued", "processing"]
        assert await served.heartbeats.abandon(new_token())


async def test_a_claim_in_progress_is_not_abandoned_yet(jobs: Jobs) -> None:
    """Its reply was lost, and its transaction has not ended: to say that it holds nothing would be too early."""
    jobs.add()
    token = new_token()
    async with jobs.served() as served:
        with psycopg.connect(jobs.url) as claiming:
            claiming.execute(served.table._context.statement("begin_claim"), {"token": token})
            assert not await served.heartbeats.abandon(token)
            claiming.rollback()
        assert await served.heartbeats.abandon(token)


async def test_an_abandoned_token_claims_nothing_more(jobs: Jobs) -> None:
    jobs.add()
    token = new_token()
    async with jobs.served() as served:
        assert await served.heartbeats.abandon(token)
        assert not await served.claim(1, token=token)
        assert jobs.states() == ["queued"]
        assert await served.claim(1)


async def test_a_claim_whose_token_is_abandoned_while_marking_takes_nothing(jobs: Jobs) -> None:
    jobs.add()
    token = new_token()
    async with jobs.served() as served:
        for _ in range(10):
            _, done = await asyncio.gather(served.claim(1, token=token), served.heartbeats.abandon(token))
            while not done:
                done = await served.heartbeats.abandon(token)
            assert jobs.states() == ["queued"]
            token = new_token()


async def test_waiting_records_with_a_cancellation_request_are_canceled_early(jobs: Jobs) -> None:
    jobs.add(cancel=True, process_after=("now() + interval '1 day'",))
    jobs.add(cancel=True, state="errored", failure_message="it failed")
    jobs.add(state="completed", cancel=True)
    jobs.add()
    async with jobs.served() as served:
        await served.heartbeats.maintain()
    assert jobs.states() == ["canceled", "canceled", "completed", "queued"]
    assert jobs.row(2)["failure_message"] == "it failed"


async def test_the_resetter_cancels_waiting_records_too(jobs: Jobs) -> None:
    jobs.add(cancel=True)
    async with jobs.served() as served:
        await served.heartbeats.reset_stalled(0)
    assert jobs.states() == ["canceled"]


async def test_the_heartbeats_reconnect(jobs: Jobs) -> None:
    jobs.add()
    async with jobs.served() as served:
        lease = await served.take()
        await served.heartbeats.beat([lease], 30)
        jobs.hang_up("heart")
        try:
            pulse = await served.heartbeats.beat([lease], 30)
        except Exception:  # noqa: BLE001 - once it may say that the store was unreachable
            pulse = await served.heartbeats.beat([lease], 30)
        assert pulse.lost == frozenset()


async def test_a_reset_returns_the_age_of_the_last_heartbeat(jobs: Jobs) -> None:
    jobs.add(state="processing", last_heartbeat_at=("now() - interval '90 seconds'",))
    async with jobs.served() as served:
        (beaten,) = await served.heartbeats.reset_stalled(0.0)
    assert beaten.heartbeat_age is not None
    assert 90 <= beaten.heartbeat_age < 100
