"""Handing back: unspent, as if it had never been claimed; and tokens given up for lost."""

from __future__ import annotations

from stowhand.jobs.job import State
from stowhand.protocols.store import Verdict
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, StoreHarness, new_token


@needs("keys")
async def test_a_released_job_is_as_it_was_before_its_claim(harness: StoreHarness) -> None:
    job = await harness.add(key="k", serial="q", flags=("a",), priority=2)
    lease = await harness.take()
    await harness.pass_time(5)
    await harness.heartbeats.release([lease])
    back = await harness.job(job.id)
    assert (back.state, back.attempts, back.run_at, back.worker) == (State.QUEUED, 0, job.run_at, None)
    assert (back.key, back.serial, back.flags, back.priority) == ("k", "q", ("a",), 2)
    assert (back.resets, back.last_error, back.revision, back.finished_at) == (0, None, 0, None)


@needs("epochs")
async def test_a_released_job_is_due_at_once(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.heartbeats.release([lease])
    again = await harness.take()
    assert (again.job_id, again.epoch) == (lease.job_id, 2)
    assert (await harness.job(lease.job_id)).attempts == 1


@needs("messages")
async def test_releasing_a_retry_restores_only_that_attempt(harness: StoreHarness) -> None:
    job = await harness.in_state(State.ERRORED)
    await harness.pass_time(60)
    due = (await harness.job(job.id)).run_at
    await harness.heartbeats.release([await harness.take()])
    back = await harness.job(job.id)
    assert (back.state, back.attempts, back.last_error, back.run_at) == (State.QUEUED, 1, "it failed", due)


async def test_a_release_does_not_touch_the_resets(harness: StoreHarness) -> None:
    job = await harness.make_suspect(times=1)
    await harness.heartbeats.release([await harness.take()])
    assert (await harness.job(job.id)).resets == 1


async def test_releasing_many_takes_each_by_its_own_pair(harness: StoreHarness) -> None:
    kept, *given = [await harness.start(task) for task in "abcd"]
    await harness.settle(given[0])
    await harness.heartbeats.release(given)
    states = [(await harness.job(lease.job_id)).state for lease in (kept, *given)]
    assert states == [State.PROCESSING, State.COMPLETED, State.QUEUED, State.QUEUED]


async def test_releasing_nothing_or_twice_is_harmless(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.heartbeats.release([])
    await harness.heartbeats.release([lease])
    before = await harness.image(lease.job_id)
    await harness.heartbeats.release([lease])
    assert await harness.image(lease.job_id) == before


@needs("keys")
async def test_a_release_cancels_a_job_with_a_cancellation_request(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.store.admin.cancel(lease.job_id)
    await harness.heartbeats.release([lease])
    job = await harness.job(lease.job_id)
    assert (job.state, job.finished_at, job.worker) == (State.CANCELED, harness.now, None)
    assert (await harness.add(key="k")).id != job.id


@needs("keys")
async def test_a_release_of_a_job_whose_key_was_removed_cancels_it(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.store.admin.remove_key("k")
    await harness.heartbeats.release([lease])
    assert (await harness.job(lease.job_id)).state is State.CANCELED


@needs("keys")
async def test_a_release_of_a_job_whose_key_was_taken_runs_it_again(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    newer = await harness.add("newer", key="k")
    await harness.heartbeats.release([lease])
    back = await harness.job(lease.job_id)
    assert (back.state, back.key) == (State.QUEUED, None)
    assert (await harness.job(newer.id)).key == "k"
    again = await harness.take(tasks=("t",))
    await harness.settle(again, ERRORED)
    assert (await harness.job(lease.job_id)).state is State.FAILED


async def test_abandoning_a_token_releases_its_jobs_only(harness: StoreHarness) -> None:
    for _ in range(4):
        await harness.add()
    lost = await harness.claim(2)
    (other,) = await harness.claim(1)
    await harness.heartbeats.abandon(lost[0].lease.token)
    for claim in lost:
        job = await harness.job(claim.lease.job_id)
        assert (job.state, job.attempts, job.resets) == (State.QUEUED, 0, 0)
    assert (await harness.job(other.lease.job_id)).state is State.PROCESSING


@needs("epochs")
async def test_an_abandoned_token_never_claims_again(harness: StoreHarness) -> None:
    await harness.add()
    token = new_token()
    await harness.take(token=token)
    await harness.heartbeats.abandon(token)
    await harness.pass_time(60)
    assert list(await harness.claim(token=token)) == []
    assert (await harness.take()).epoch == 2


async def test_abandoning_twice_or_a_token_that_never_claimed_is_harmless(harness: StoreHarness) -> None:
    token = new_token()
    await harness.heartbeats.abandon(token)
    await harness.heartbeats.abandon(token)
    assert await harness.settle(await harness.start()) is Verdict.SETTLED


@needs("cancel")
async def test_abandoning_cancels_a_job_with_a_cancellation_request(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.store.admin.cancel(lease.job_id)
    await harness.heartbeats.abandon(lease.token)
    assert (await harness.job(lease.job_id)).state is State.CANCELED
