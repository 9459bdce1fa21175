"""Many jobs at once, given back whole: in the order given, all of them or none."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import KeyMode, NewJob, State
from tests.contract.bench import ERRORED, FAILED, Bench
from tests.contract.places import payload_of


async def test_they_come_back_as_they_were_committed_in_the_order_given(bench: Bench) -> None:
    await bench.add("elder", key="b")
    wanted = [
        NewJob(task="one", payload='{"n": 1}', queue="q", priority=-3, flags=("f",), max_attempts=2, max_resets=0),
        NewJob(task="two", key="z", delay=60.0),
        NewJob(task="three", run_at=bench.now + timedelta(hours=1)),
        NewJob(task="four", key="b", payload="[1]"),
        NewJob(task="five", key="a"),
        NewJob(task="one"),
    ]
    jobs = await bench.store.add_jobs(wanted)
    assert [(job.task, job.key, job.queue, job.priority, job.flags) for job in jobs] == [
        (new.task, new.key, new.queue, new.priority, new.flags) for new in wanted
    ]
    assert [job.run_at - bench.now for job in jobs] == [timedelta(seconds=n) for n in (0, 60, 3600, 0, 0, 0)]
    assert [await bench.job(job.id) for job in jobs] == list(jobs)
    assert len({job.id for job in jobs}) == 6


async def test_none_are_none(bench: Bench) -> None:
    assert list(await bench.store.add_jobs([])) == []


async def test_several_hundred_come_back_in_order(bench: Bench) -> None:
    jobs = await bench.store.add_jobs(
        [NewJob(task="t", payload=str(n), key=f"k{n}" if n % 3 == 0 else None) for n in range(700)]
    )
    assert [payload_of(job.payload_text) for job in jobs] == list(range(700))
    assert (await bench.store.counts())[State.QUEUED] == 700


async def test_one_key_twice_is_refused_and_nothing_written(bench: Bench) -> None:
    waiting = await bench.add(key="k", payload="[1]")
    with pytest.raises(InvalidJob, match="twice"):
        await bench.store.add_jobs([NewJob(task="a"), NewJob(task="b", key="k"), NewJob(task="c", key="k")])
    assert list(await bench.everything()) == [waiting]


async def test_one_that_the_limits_forbid_refuses_them_all(bench: Bench) -> None:
    waiting = await bench.add(key="k", payload="[1]")
    for bad in (NewJob(task="x" * 200), NewJob(task="x", max_attempts=0), NewJob(task="x", priority=2**31)):
        with pytest.raises(InvalidJob):
            await bench.store.add_jobs([NewJob(task="a"), NewJob(task="b", key="k", payload="[2]"), bad])
    assert list(await bench.everything()) == [waiting]


async def test_arrays_of_keyed_jobs_are_appended(bench: Bench) -> None:
    first = await bench.store.add_jobs([NewJob(task="t", key="k", payload="[1]"), NewJob(task="t", key="l")])
    second = await bench.store.add_jobs(
        [NewJob(task="t", key="l", payload="[9]"), NewJob(task="t", key="k", payload="[2, 3]")]
    )
    assert [job.id for job in second] == [first[1].id, first[0].id]
    assert [payload_of(job.payload_text) for job in second] == [[9], [1, 2, 3]]
    assert [job.revision for job in second] == [1, 1]


@pytest.mark.parametrize("mode", KeyMode)
async def test_each_key_follows_its_mode(bench: Bench, mode: KeyMode) -> None:
    due = bench.now + timedelta(hours=1)
    waiting = await bench.add("old", key="k", run_at=due)
    await bench.pass_time(5)
    (job,) = await bench.store.add_jobs([NewJob(task="new", key="k", key_mode=mode)])
    assert (job.id, job.revision, job.updated_at) == (waiting.id, 1, bench.now)
    assert job.task == ("old" if mode is KeyMode.UNSAFE_DEDUPE else "new")
    assert job.run_at == (bench.now if mode is KeyMode.REPLACE else due)


async def test_a_running_holder_loses_its_key_and_a_failed_one_is_revived(bench: Bench) -> None:
    running = await bench.start("running", key="r")
    failed = await bench.start("failed", key="f")
    await bench.settle(failed, FAILED)
    anew, revived = await bench.store.add_jobs([NewJob(task="a", key="r"), NewJob(task="b", key="f")])
    assert anew.id not in (running.job_id, failed.job_id)
    assert (revived.id, revived.state, revived.task) == (failed.job_id, State.QUEUED, "b")
    await bench.settle(running, ERRORED)
    assert (await bench.job(running.job_id)).state is State.FAILED


async def test_they_may_be_claimed_at_once_and_a_sleeper_hears_of_them(bench: Bench) -> None:
    while await bench.store.wait(0.05):
        pass
    sleeping = asyncio.create_task(bench.store.wait(20.0))
    await asyncio.sleep(0)
    jobs = await (await bench.another()).add_jobs([NewJob(task="t", queue="q"), NewJob(task="t")])
    assert await sleeping
    assert {claim.lease.job_id for claim in await bench.claim(9)} == {job.id for job in jobs}


async def test_two_calls_with_the_same_keys_in_opposite_order_both_succeed(bench: Bench) -> None:
    stores = [await bench.another(), await bench.another()]
    keys = [f"k{number}" for number in range(20)]
    for _ in range(5):
        await asyncio.gather(
            *(
                store.add_jobs([NewJob(task="t", key=key, payload="[1]") for key in order])
                for store, order in zip(stores, (keys, keys[::-1]), strict=True)
            )
        )
    jobs = await bench.everything()
    assert sorted(job.key or "" for job in jobs) == sorted(keys)
    assert all(payload_of(job.payload_text) == [1] * 10 for job in jobs)
