"""Resets: a job whose worker died is found, counted, and goes back; a killer ends as failed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import ResetJob
from stowhand.protocols.store import Verdict
from tests.contract.needs import cases, needs
from tests.contract.store_harness import ERRORED, StoreHarness

pytestmark = needs("sweeps")


@needs("expired_leases")
async def test_a_lease_is_stalled_only_after_its_deadline_and_the_slack(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.pass_time(30)
    assert list(await harness.heartbeats.reset_stalled(10)) == []
    await harness.pass_time(10)
    assert list(await harness.heartbeats.reset_stalled(10)) == []
    await harness.pass_time(0.001)
    (reset,) = await harness.heartbeats.reset_stalled(10)
    assert replace(reset, heartbeat_age=None) == ResetJob(lease.job_id, "t", State.QUEUED, "w1")


@needs("keys")
async def test_a_reset_restores_the_attempt_and_counts_itself(harness: StoreHarness) -> None:
    job = await harness.in_state(State.ERRORED, key="k", serial="q")
    await harness.pass_time(60)
    due = (await harness.job(job.id)).run_at
    await harness.take()
    await harness.pass_time(31)
    await harness.heartbeats.reset_stalled(0)
    back = await harness.job(job.id)
    assert (back.state, back.attempts, back.resets, back.worker) == (State.QUEUED, 1, 1, None)
    assert (back.run_at, back.last_error, back.key, back.serial) == (due, "it failed", "k", "q")
    assert (await harness.take()).epoch == 4


async def test_what_was_reset_is_not_reset_again(harness: StoreHarness) -> None:
    await harness.start()
    await harness.pass_time(31)
    assert len(await harness.heartbeats.reset_stalled(0)) == 1
    assert list(await harness.heartbeats.reset_stalled(0)) == []


@cases(
    "state",
    [State.QUEUED, State.ERRORED, State.FAILED, State.CANCELED, State.COMPLETED],
    needs={State.ERRORED: "quiet_sweeps"},
)
async def test_only_running_jobs_are_reset(harness: StoreHarness, state: State) -> None:
    job = await harness.in_state(state)
    await harness.pass_time(3600)
    assert list(await harness.heartbeats.reset_stalled(0)) == []
    assert list(await harness.heartbeats.reset_worker("w1")) == []
    assert await harness.job(job.id) == job


DEATHS = [(25, None, 6), (25, 5, 6), (25, 0, 1), (25, 1, 2), (1, None, 1), (1, 3, 4), (2, None, 6)]


@pytest.mark.parametrize(("max_attempts", "max_resets", "fatal"), DEATHS)
@needs("limits")
async def test_a_job_that_kills_its_worker_too_often_fails_with_the_reason(
    harness: StoreHarness, max_attempts: int, max_resets: int | None, fatal: int
) -> None:
    job = await harness.add(max_attempts=max_attempts, max_resets=max_resets)
    for death in range(1, fatal + 1):
        lease = await harness.take(suspects=death > 2)
        (reset,) = await harness.heartbeats.reset_lease(lease)
        assert reset.state is (State.FAILED if death == fatal else State.QUEUED)
        assert (await harness.job(job.id)).resets == death
    dead = await harness.job(job.id)
    times = "1 time" if fatal == 1 else f"{fatal} times"
    assert dead.last_error == f"its worker died {times} while running it"
    assert (dead.state, dead.attempts, dead.finished_at, dead.worker) == (State.FAILED, 1, harness.now, None)


@needs("limits")
async def test_deaths_are_counted_from_the_last_attempt_that_settled(harness: StoreHarness) -> None:
    job = await harness.add(max_resets=1)
    await harness.lose(await harness.take())
    await harness.settle(await harness.take(), ERRORED)
    await harness.pass_time(60)
    await harness.lose(await harness.take())
    assert (await harness.job(job.id)).state is State.QUEUED


@needs("keys")
async def test_a_reset_cancels_a_job_with_a_cancellation_request(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.store.admin.cancel(lease.job_id)
    await harness.pass_time(31)
    (reset,) = await harness.heartbeats.reset_stalled(0)
    assert replace(reset, heartbeat_age=None) == ResetJob(lease.job_id, "t", State.CANCELED, "w1")
    assert (await harness.job(lease.job_id)).state is State.CANCELED
    assert (await harness.add(key="k")).id != lease.job_id


@needs("keys")
async def test_a_job_whose_key_was_removed_is_canceled_by_its_reset(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.store.admin.remove_key("k")
    (reset,) = await harness.heartbeats.reset_lease(lease)
    assert reset.state is State.CANCELED


@needs("keys")
async def test_a_job_whose_key_was_taken_runs_again_after_its_reset(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.add("newer", key="k")
    await harness.lose(lease)
    assert (await harness.job(lease.job_id)).state is State.QUEUED
    assert (await harness.take(tasks=("t",))).job_id == lease.job_id


async def test_only_the_jobs_of_a_dead_worker_are_reset_at_once(harness: StoreHarness) -> None:
    for _ in range(3):
        await harness.add()
    dead = await harness.claim(2, worker="dead")
    alive = await harness.take(worker="alive")
    resets = await harness.heartbeats.reset_worker("dead")
    assert [reset.job_id for reset in resets] == [claim.lease.job_id for claim in dead]
    assert {reset.worker for reset in resets} == {"dead"}
    assert (await harness.job(alive.job_id)).state is State.PROCESSING
    assert list(await harness.heartbeats.reset_worker("dead")) == []


async def test_a_dead_child_process_resets_one_job(harness: StoreHarness) -> None:
    await harness.add()
    await harness.add()
    first, second = await harness.claim(2)
    (reset,) = await harness.heartbeats.reset_lease(first.lease)
    assert reset.job_id == first.lease.job_id
    assert (await harness.job(second.lease.job_id)).state is State.PROCESSING


async def test_a_reset_may_come_in_pages_in_the_order_of_ids(harness: StoreHarness) -> None:
    await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(1100))
    ids = [claim.lease.job_id for claim in await harness.claim(1100)]
    await harness.pass_time(31)
    pages = []
    while page := await harness.heartbeats.reset_stalled(0):
        pages.append([reset.job_id for reset in page])
        assert len(page) <= 1000
    assert [job_id for page in pages for job_id in page] == ids


async def test_after_a_reset_the_old_holder_cannot_settle(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.pass_time(31)
    await harness.heartbeats.reset_stalled(0)
    assert await harness.settle(lease) is Verdict.LOST
    assert (await harness.job(lease.job_id)).state is State.QUEUED


@needs("leases", "clock")
async def test_a_short_lease_is_honoured_exactly(harness: StoreHarness) -> None:
    await harness.add()
    lease = await harness.take(lease=0.25)
    await harness.pass_time(0.249)
    assert list(await harness.heartbeats.reset_stalled(0)) == []
    await harness.pass_time(0.002)
    assert [reset.job_id for reset in await harness.heartbeats.reset_stalled(0)] == [lease.job_id]


async def test_a_reset_job_is_claimed_in_its_old_place(harness: StoreHarness) -> None:
    lease = await harness.start(run_at=harness.now - timedelta(seconds=5))
    later = await harness.add()
    await harness.lose(lease)
    assert [claim.lease.job_id for claim in await harness.claim(2)] == [lease.job_id, later.id]
