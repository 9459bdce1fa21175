"""Resets: a job whose worker died is found, counted, and goes back; a killer ends as failed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import ResetJob
from stowhand.protocols.store import Verdict
from tests.contract.bench import ERRORED, Bench


async def test_a_lease_is_stalled_only_after_its_deadline_and_the_slack(bench: Bench) -> None:
    lease = await bench.start()
    await bench.pass_time(30)
    assert list(bench.heart.reset_stalled(10)) == []
    await bench.pass_time(10)
    assert list(bench.heart.reset_stalled(10)) == []
    await bench.pass_time(0.001)
    (reset,) = bench.heart.reset_stalled(10)
    assert replace(reset, heartbeat_age=None) == ResetJob(lease.job_id, "t", State.QUEUED, "w1")


async def test_a_reset_gives_the_attempt_back_and_counts_the_death(bench: Bench) -> None:
    job = await bench.in_state(State.ERRORED, key="k", queue="q")
    await bench.pass_time(60)
    due = (await bench.job(job.id)).run_at
    await bench.take()
    await bench.pass_time(31)
    bench.heart.reset_stalled(0)
    back = await bench.job(job.id)
    assert (back.state, back.attempts, back.resets, back.worker) == (State.QUEUED, 1, 1, None)
    assert (back.run_at, back.last_error, back.key, back.queue) == (due, "it failed", "k", "q")
    assert (await bench.take()).epoch == 4


async def test_what_was_reset_is_not_reset_again(bench: Bench) -> None:
    await bench.start()
    await bench.pass_time(31)
    assert len(bench.heart.reset_stalled(0)) == 1
    assert list(bench.heart.reset_stalled(0)) == []


@pytest.mark.parametrize("state", [State.QUEUED, State.ERRORED, State.FAILED, State.CANCELED, State.COMPLETED], ids=str)
async def test_only_running_jobs_are_reset(bench: Bench, state: State) -> None:
    job = await bench.in_state(state)
    await bench.pass_time(3600)
    assert list(bench.heart.reset_stalled(0)) == []
    assert list(bench.heart.reset_worker("w1")) == []
    assert await bench.job(job.id) == job


DEATHS = [(25, None, 6), (25, 5, 6), (25, 0, 1), (25, 1, 2), (1, None, 1), (1, 3, 4), (2, None, 6)]


@pytest.mark.parametrize(("max_attempts", "max_resets", "fatal"), DEATHS)
async def test_a_job_that_kills_its_worker_too_often_fails_with_the_reason(
    bench: Bench, max_attempts: int, max_resets: int | None, fatal: int
) -> None:
    job = await bench.add(max_attempts=max_attempts, max_resets=max_resets)
    for death in range(1, fatal + 1):
        lease = await bench.take(suspects=death > 2)
        (reset,) = bench.heart.reset_lease(lease)
        assert reset.state is (State.FAILED if death == fatal else State.QUEUED)
        assert (await bench.job(job.id)).resets == death
    dead = await bench.job(job.id)
    times = "1 time" if fatal == 1 else f"{fatal} times"
    assert dead.last_error == f"its worker died {times} while running it"
    assert (dead.state, dead.attempts, dead.finished_at, dead.worker) == (State.FAILED, 1, bench.now, None)


async def test_deaths_are_counted_from_the_last_attempt_that_settled(bench: Bench) -> None:
    job = await bench.add(max_resets=1)
    await bench.lose(await bench.take())
    await bench.settle(await bench.take(), ERRORED)
    await bench.pass_time(60)
    await bench.lose(await bench.take())
    assert (await bench.job(job.id)).state is State.QUEUED


async def test_a_job_that_was_asked_to_cancel_is_canceled_by_its_reset(bench: Bench) -> None:
    lease = await bench.start(key="k")
    await bench.store.cancel(lease.job_id)
    await bench.pass_time(31)
    (reset,) = bench.heart.reset_stalled(0)
    assert replace(reset, heartbeat_age=None) == ResetJob(lease.job_id, "t", State.CANCELED, "w1")
    assert (await bench.job(lease.job_id)).state is State.CANCELED
    assert (await bench.add(key="k")).id != lease.job_id


async def test_a_job_whose_key_was_removed_is_canceled_by_its_reset(bench: Bench) -> None:
    lease = await bench.start(key="k")
    await bench.store.remove_key("k")
    (reset,) = bench.heart.reset_lease(lease)
    assert reset.state is State.CANCELED


async def test_a_job_whose_key_was_taken_runs_again_after_its_reset(bench: Bench) -> None:
    lease = await bench.start(key="k")
    await bench.add("newer", key="k")
    await bench.lose(lease)
    assert (await bench.job(lease.job_id)).state is State.QUEUED
    assert (await bench.take(tasks=("t",))).job_id == lease.job_id


async def test_a_worker_seen_dying_loses_what_it_holds_at_once_and_nobody_else_does(bench: Bench) -> None:
    for _ in range(3):
        await bench.add()
    dead = await bench.claim(2, worker="dead")
    alive = await bench.take(worker="alive")
    resets = bench.heart.reset_worker("dead")
    assert [reset.job_id for reset in resets] == [claim.lease.job_id for claim in dead]
    assert {reset.worker for reset in resets} == {"dead"}
    assert (await bench.job(alive.job_id)).state is State.PROCESSING
    assert list(bench.heart.reset_worker("dead")) == []


async def test_one_dead_child_costs_one_job(bench: Bench) -> None:
    await bench.add()
    await bench.add()
    first, second = await bench.claim(2)
    (reset,) = bench.heart.reset_lease(first.lease)
    assert reset.job_id == first.lease.job_id
    assert (await bench.job(second.lease.job_id)).state is State.PROCESSING


async def test_a_reset_may_come_in_pages_in_the_order_of_ids(bench: Bench) -> None:
    await bench.store.enqueue_many(NewJob(task="t") for _ in range(1100))
    ids = [claim.lease.job_id for claim in await bench.claim(1100)]
    await bench.pass_time(31)
    pages = []
    while page := bench.heart.reset_stalled(0):
        pages.append([reset.job_id for reset in page])
        assert len(page) <= 1000
    assert [job_id for page in pages for job_id in page] == ids


async def test_after_a_reset_the_old_holder_cannot_settle(bench: Bench) -> None:
    lease = await bench.start()
    await bench.pass_time(31)
    bench.heart.reset_stalled(0)
    assert await bench.settle(lease) is Verdict.LOST
    assert (await bench.job(lease.job_id)).state is State.QUEUED


async def test_a_short_lease_is_honoured_exactly(bench: Bench) -> None:
    await bench.add()
    lease = await bench.take(lease=0.25)
    await bench.pass_time(0.249)
    assert list(bench.heart.reset_stalled(0)) == []
    await bench.pass_time(0.002)
    assert [reset.job_id for reset in bench.heart.reset_stalled(0)] == [lease.job_id]


async def test_a_reset_job_is_claimed_in_its_old_place(bench: Bench) -> None:
    lease = await bench.start(run_at=bench.now - timedelta(seconds=5))
    later = await bench.add()
    await bench.lose(lease)
    assert [claim.lease.job_id for claim in await bench.claim(2)] == [lease.job_id, later.id]
