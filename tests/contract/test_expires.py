"""``expires``: a job that no worker has claimed in time is canceled, and never run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import EXPIRED_ERROR, KeyMode, NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, Settlement
from stowhand.protocols.queue_store import Reschedule
from stowhand.protocols.store import Verdict
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, SNOOZED, StoreHarness

pytestmark = needs("jobs")


async def test_it_is_claimed_until_its_moment_and_canceled_from_then_on(harness: StoreHarness) -> None:
    early, late = [await harness.add(task, expires=10.0) for task in ("early", "late")]
    await harness.pass_time(9.5)
    assert await harness.settle(await harness.take(tasks=("early",))) is Verdict.SETTLED
    await harness.pass_time(0.5)
    assert list(await harness.claim()) == []
    job = await harness.job(late.id)
    assert (job.state, job.last_error, job.attempts, job.finished_at) == (State.CANCELED, EXPIRED_ERROR, 0, harness.now)
    assert (await harness.job(early.id)).state is State.COMPLETED


async def test_it_is_counted_from_its_run_time(harness: StoreHarness) -> None:
    delayed = await harness.add("a", delay=60.0, expires=10.0)
    missed = await harness.add("b", run_at=harness.now - timedelta(minutes=5), expires=10.0)
    await harness.pass_time(60)
    assert (await harness.take(tasks=("a", "b"))).job_id == delayed.id
    assert (await harness.job(missed.id)).state is State.CANCELED


async def test_a_claim_of_any_task_cancels_it_and_takes_what_is_behind_it(harness: StoreHarness) -> None:
    expired = [await harness.add(task, expires=1.0, serial=serial) for task in "ab" for serial in (None, "q")]
    good = [await harness.add("a", serial=serial) for serial in (None, "q")]
    await harness.pass_time(1)
    claims = await harness.claim(10, tasks=("a",))
    assert sorted(claim.lease.job_id for claim in claims) == [job.id for job in good]
    assert {(await harness.job(job.id)).state for job in expired} == {State.CANCELED}


async def test_a_repeat_that_keeps_the_run_time_keeps_what_it_is_counted_from(harness: StoreHarness) -> None:
    keyed = {"key": "k", "key_mode": KeyMode.PRESERVE_RUN_AT}
    job = await harness.add(expires=10.0, **keyed)
    await harness.pass_time(6)
    assert (await harness.add(expires=10.0, **keyed)).id == job.id
    await harness.pass_time(5)
    assert list(await harness.claim()) == []
    assert (await harness.job(job.id)).last_error == EXPIRED_ERROR


@pytest.mark.parametrize("settlement", [ERRORED, SNOOZED])
async def test_once_an_attempt_has_begun_it_expires_no_more(harness: StoreHarness, settlement: Settlement) -> None:
    lease = await harness.start(expires=10.0)
    await harness.settle(lease, settlement)
    await harness.pass_time(100)
    assert (await harness.take()).job_id == lease.job_id


async def test_a_job_whose_worker_died_expires_no_more(harness: StoreHarness) -> None:
    lease = await harness.start(expires=10.0)
    await harness.lose(lease)
    await harness.pass_time(100)
    assert (await harness.take()).job_id == lease.job_id


async def test_a_job_that_was_handed_back_still_expires(harness: StoreHarness) -> None:
    lease = await harness.start(expires=10.0)
    await harness.heartbeats.release([lease])
    await harness.pass_time(10)
    assert list(await harness.claim()) == []
    assert (await harness.job(lease.job_id)).state is State.CANCELED


async def test_what_was_claimed_in_time_may_run_for_longer(harness: StoreHarness) -> None:
    lease = await harness.start(expires=10.0)
    await harness.pass_time(20)
    assert list(await harness.claim()) == []
    assert await harness.settle(lease, ERRORED) is Verdict.SETTLED
    assert (await harness.job(lease.job_id)).state is State.ERRORED


@needs("keys")
async def test_its_key_is_free_and_a_key_update_counts_anew(harness: StoreHarness) -> None:
    old = await harness.add(key="k", expires=10.0)
    await harness.pass_time(9)
    again = await harness.add(key="k", expires=10.0)
    assert again.id == old.id
    await harness.pass_time(9)
    kept = await harness.add(key="k", key_mode=KeyMode.UNIQUE, expires=100.0)
    assert kept == again
    await harness.pass_time(1)
    assert list(await harness.claim()) == []
    new = await harness.add(key="k")
    assert new.id != old.id
    await harness.pass_time(1000)
    assert (await harness.take()).job_id == new.id


@needs("keys")
async def test_one_that_has_expired_and_is_not_canceled_yet_holds_no_unique_key(harness: StoreHarness) -> None:
    old = await harness.add(key="k", key_mode=KeyMode.UNIQUE, expires=10.0)
    await harness.pass_time(10)
    new = await harness.add(key="k", key_mode=KeyMode.UNIQUE, expires=10.0)
    assert new.id != old.id
    ended = await harness.job(old.id)
    assert (ended.state, ended.last_error) == (State.CANCELED, EXPIRED_ERROR)
    assert await harness.add(key="k", key_mode=KeyMode.UNIQUE, expires=10.0) == new
    assert (await harness.take()).job_id == new.id
    await harness.pass_time(100)
    assert (await harness.add(key="k", key_mode=KeyMode.UNIQUE)).id == new.id


@needs("keys")
@pytest.mark.parametrize("mode", list(KeyMode))
async def test_a_repeat_of_one_that_has_expired_is_a_new_job(harness: StoreHarness, mode: KeyMode) -> None:
    """Whether a claim has canceled the dead one, or not yet."""
    old = await harness.add(key="k", key_mode=mode, payload="[1]", expires=10.0)
    await harness.pass_time(10)
    new = await harness.add(key="k", key_mode=mode, payload="[2]", expires=10.0)
    assert (new.id != old.id, new.revision, new.payload, new.run_at) == (True, 0, [2], harness.now)
    ended = await harness.job(old.id)
    assert (ended.state, ended.last_error, ended.payload, ended.revision) == (State.CANCELED, EXPIRED_ERROR, [1], 0)
    assert (await harness.take()).job_id == new.id


@needs("keys")
async def test_a_key_update_without_it_expires_no_more(harness: StoreHarness) -> None:
    old = await harness.add(key="k", expires=10.0)
    await harness.add(key="k")
    await harness.pass_time(100)
    assert (await harness.take()).job_id == old.id


@needs("admin")
async def test_a_retry_of_one_that_has_expired_runs_it(harness: StoreHarness) -> None:
    job = await harness.add(expires=10.0)
    await harness.pass_time(10)
    assert list(await harness.claim()) == []
    await harness.store.admin.retry(job.id)
    await harness.pass_time(100)
    assert (await harness.take()).job_id == job.id


@needs("admin")
async def test_a_retry_of_one_that_waits_makes_it_wait_for_as_long_as_it_takes(harness: StoreHarness) -> None:
    job, failed = [await harness.add(expires=10.0) for _ in range(2)]
    await harness.store.admin.permanently_fail_jobs([failed.id])
    await harness.store.admin.retry(job.id)
    assert list(await harness.store.admin.retry_failed([failed.id])) == [failed.id]
    await harness.pass_time(100)
    assert sorted(claim.lease.job_id for claim in await harness.claim(5)) == [job.id, failed.id]


@needs("admin")
async def test_a_new_run_time_moves_it_along(harness: StoreHarness) -> None:
    job = await harness.add(expires=10.0)
    await harness.store.admin.reschedule_jobs([job.id], Reschedule(run_at=harness.now + timedelta(seconds=60)))
    await harness.pass_time(69)
    assert (await harness.take()).job_id == job.id
    late = await harness.add("late", expires=10.0)
    await harness.store.admin.reschedule_jobs([late.id], Reschedule(run_at=harness.now + timedelta(seconds=60)))
    await harness.pass_time(70)
    assert list(await harness.claim()) == []
    assert (await harness.job(late.id)).state is State.CANCELED


async def test_every_way_of_enqueueing_keeps_it(harness: StoreHarness) -> None:
    job = NewJob(task="t", expires=10.0)
    ids = await harness.store.jobs.enqueue_many([job, NewJob(task="t", key="k", expires=10.0)])
    ids += [one.id for one in await harness.store.jobs.add_jobs([job])]
    first = await harness.start("first")
    await harness.settle(first, Settlement(State.COMPLETED, COMPLETED.ended, then=(job,)))
    await harness.pass_time(10)
    assert list(await harness.claim(10)) == []
    assert {(await harness.job(one)).state for one in ids} == {State.CANCELED}


async def test_thousands_that_expire_at_once_keep_no_job_waiting(harness: StoreHarness) -> None:
    await harness.store.jobs.enqueue_many(NewJob(task="t", expires=1.0) for _ in range(1200))
    good = await harness.add("t")
    await harness.pass_time(1)
    claims = list(await harness.claim(2))
    while not claims:
        assert await harness.store.next_due(None) == 0
        claims += await harness.claim(2)
    assert [claim.lease.job_id for claim in claims] == [good.id]


async def test_a_worker_that_sleeps_knows_when_the_next_one_expires_whatever_its_task(harness: StoreHarness) -> None:
    """Else it was canceled at the worker's next poll, which may be ten seconds away."""
    soon = await harness.add("unknown", expires=10.0)
    await harness.add("unknown", delay=5.0, expires=60.0)
    assert list(await harness.claim(tasks=("known",))) == []
    assert await harness.store.next_due(("known",)) == 10
    await harness.pass_time(10)
    assert await harness.store.next_due(("known", "other")) == 0
    assert list(await harness.claim(tasks=("known",))) == []
    assert (await harness.job(soon.id)).state is State.CANCELED
    assert await harness.store.next_due(("known",)) == 55
    lease = await harness.take(tasks=("unknown",))
    assert await harness.store.next_due(("other",)) is None
    await harness.settle(lease)


@pytest.mark.parametrize("wrong", [0, -1.0, float("inf"), "soon", 4e9])
async def test_what_is_no_time_is_refused(harness: StoreHarness, wrong: float) -> None:
    with pytest.raises(InvalidJob, match="expires"):
        await harness.store.jobs.enqueue(NewJob(task="t", expires=wrong))
