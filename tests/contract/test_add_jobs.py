"""Many jobs at once, given back whole: in the order given, all of them or none."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import KeyMode, NewJob, State
from tests.contract.backends import payload_of
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, FAILED, StoreHarness

pytestmark = needs("jobs")


async def test_they_come_back_as_they_were_committed_in_the_order_given(harness: StoreHarness) -> None:
    await harness.add("elder", key="b")
    wanted = [
        NewJob(task="one", payload='{"n": 1}', serial="q", priority=-3, flags=("f",), max_attempts=2, max_resets=0),
        NewJob(task="two", key="z", delay=60.0),
        NewJob(task="three", run_at=harness.now + timedelta(hours=1)),
        NewJob(task="four", key="b", payload="[1]"),
        NewJob(task="five", key="a"),
        NewJob(task="one"),
    ]
    jobs = await harness.store.jobs.add_jobs(wanted)
    assert [(job.task, job.key, job.serial, job.priority, job.flags) for job in jobs] == [
        (new.task, new.key, new.serial, new.priority, new.flags) for new in wanted
    ]
    assert [job.run_at - harness.now for job in jobs] == [timedelta(seconds=n) for n in (0, 60, 3600, 0, 0, 0)]
    assert [await harness.job(job.id) for job in jobs] == list(jobs)
    assert len({job.id for job in jobs}) == 6


async def test_none_are_none(harness: StoreHarness) -> None:
    assert list(await harness.store.jobs.add_jobs([])) == []


async def test_several_hundred_come_back_in_order(harness: StoreHarness) -> None:
    jobs = await harness.store.jobs.add_jobs(
        [NewJob(task="t", payload=str(n), key=f"k{n}" if n % 3 == 0 else None) for n in range(700)]
    )
    assert [payload_of(job.payload_text) for job in jobs] == list(range(700))
    assert (await harness.store.inspect.counts())[State.QUEUED] == 700


async def test_one_key_twice_is_refused_and_nothing_written(harness: StoreHarness) -> None:
    waiting = await harness.add(key="k", payload="[1]")
    with pytest.raises(InvalidJob, match="duplicate key"):
        await harness.store.jobs.add_jobs([NewJob(task="a"), NewJob(task="b", key="k"), NewJob(task="c", key="k")])
    assert list(await harness.everything()) == [waiting]


async def test_one_that_the_limits_forbid_refuses_them_all(harness: StoreHarness) -> None:
    waiting = await harness.add(key="k", payload="[1]")
    for bad in (NewJob(task="x" * 200), NewJob(task="x", max_attempts=0), NewJob(task="x", priority=2**31)):
        with pytest.raises(InvalidJob):
            await harness.store.jobs.add_jobs([NewJob(task="a"), NewJob(task="b", key="k", payload="[2]"), bad])
    assert list(await harness.everything()) == [waiting]


async def test_arrays_of_keyed_jobs_are_appended(harness: StoreHarness) -> None:
    first = await harness.store.jobs.add_jobs([NewJob(task="t", key="k", payload="[1]"), NewJob(task="t", key="l")])
    second = await harness.store.jobs.add_jobs(
        [NewJob(task="t", key="l", payload="[9]"), NewJob(task="t", key="k", payload="[2, 3]")]
    )
    assert [job.id for job in second] == [first[1].id, first[0].id]
    assert [payload_of(job.payload_text) for job in second] == [[9], [1, 2, 3]]
    assert [job.revision for job in second] == [1, 1]


@pytest.mark.parametrize("mode", KeyMode)
async def test_each_key_follows_its_mode(harness: StoreHarness, mode: KeyMode) -> None:
    due = harness.now + timedelta(hours=1)
    waiting = await harness.add("old", key="k", run_at=due)
    await harness.pass_time(5)
    (job,) = await harness.store.jobs.add_jobs([NewJob(task="new", key="k", key_mode=mode)])
    if mode is KeyMode.UNIQUE:
        assert job == waiting, "nothing changes, not even its revision"
        return
    assert (job.id, job.revision, job.updated_at) == (waiting.id, 1, harness.now)
    assert job.task == ("old" if mode is KeyMode.UNSAFE_DEDUPE else "new")
    assert job.run_at == (harness.now if mode is KeyMode.REPLACE else due)


async def test_a_running_holder_loses_its_key_and_a_failed_one_is_revived(harness: StoreHarness) -> None:
    running = await harness.start("running", key="r")
    failed = await harness.start("failed", key="f")
    await harness.settle(failed, FAILED)
    anew, revived = await harness.store.jobs.add_jobs([NewJob(task="a", key="r"), NewJob(task="b", key="f")])
    assert anew.id not in (running.job_id, failed.job_id)
    assert (revived.id, revived.state, revived.task) == (failed.job_id, State.QUEUED, "b")
    await harness.settle(running, ERRORED)
    assert (await harness.job(running.job_id)).state is State.FAILED


async def test_added_jobs_wake_a_worker_and_can_be_claimed_at_once(harness: StoreHarness) -> None:
    while await harness.store.wait(0.05):
        pass
    sleeping = asyncio.create_task(harness.store.wait(20.0))
    await asyncio.sleep(0)
    jobs = await (await harness.another()).jobs.add_jobs([NewJob(task="t", serial="q"), NewJob(task="t")])
    assert await sleeping
    assert {claim.lease.job_id for claim in await harness.claim(9)} == {job.id for job in jobs}


async def test_two_calls_with_the_same_keys_in_opposite_order_both_succeed(harness: StoreHarness) -> None:
    stores = [await harness.another(), await harness.another()]
    keys = [f"k{number}" for number in range(20)]
    for _ in range(5):
        await asyncio.gather(
            *(
                store.jobs.add_jobs([NewJob(task="t", key=key, payload="[1]") for key in order])
                for store, order in zip(stores, (keys, keys[::-1]), strict=True)
            )
        )
    jobs = await harness.everything()
    assert sorted(job.key or "" for job in jobs) == sorted(keys)
    assert all(payload_of(job.payload_text) == [1] * 10 for job in jobs)
