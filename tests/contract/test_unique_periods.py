"""``unique_period``: for so long a repeat gives the first job, also when it has completed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import Job, KeyMode, NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, Settlement
from stowhand.protocols.queue_store import ActionResult
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, FAILED, StoreHarness

pytestmark = [needs("jobs"), needs("keys")]


async def add(harness: StoreHarness, period: float | None = 60.0, **fields: Any) -> Job:
    return await harness.add(key="k", key_mode=KeyMode.UNIQUE, unique_period=period, **fields)


async def run(harness: StoreHarness) -> Job:
    """Until it has completed."""
    job = await add(harness)
    await harness.settle(await harness.take())
    return job


async def test_a_repeat_within_it_gives_what_has_completed_and_one_after_it_a_new_job(harness: StoreHarness) -> None:
    job = await add(harness, payload='{"n":1}')
    await harness.pass_time(50)
    await harness.settle(await harness.take())
    await harness.pass_time(9)
    again = await add(harness, payload='{"n":2}')
    assert (again.id, again.state, again.payload) == (job.id, State.COMPLETED, {"n": 1})
    assert list(await harness.claim()) == []
    await harness.pass_time(1)
    new = await add(harness)
    assert (new.id != job.id, new.state) == (True, State.QUEUED)


async def test_what_waits_or_runs_is_given_however_long_it_takes(harness: StoreHarness) -> None:
    job = await add(harness)
    await harness.pass_time(100)
    assert await add(harness) == job
    lease = await harness.take()
    assert (await add(harness)).id == job.id
    await harness.settle(lease, ERRORED)
    assert (await add(harness)).id == job.id
    await harness.pass_time(60)
    await harness.settle(await harness.take())
    assert (await add(harness)).id != job.id


async def test_it_is_counted_from_the_first_and_no_repeat_makes_it_longer(harness: StoreHarness) -> None:
    job = await run(harness)
    for _ in range(5):
        await harness.pass_time(11)
        assert (await add(harness)).id == job.id
    await harness.pass_time(5)
    assert (await add(harness)).id != job.id


@needs("admin")
async def test_the_history_may_forget_the_job_before(forgetful_harness: StoreHarness) -> None:
    harness = forgetful_harness
    job = await run(harness)
    again = await add(harness, payload='{"n":2}')
    assert (again.id, again.task, again.state, again.created_at) == (job.id, job.task, State.COMPLETED, job.created_at)
    (listed,) = await harness.store.jobs.add_jobs(
        [NewJob(task="t", key="k", key_mode=KeyMode.UNIQUE, unique_period=60.0)]
    )
    assert listed.id == job.id
    await harness.pass_time(60)
    other = await add(harness)
    await harness.store.admin.complete_jobs([other.id])
    assert (await add(harness)).id == other.id


async def test_maintenance_forgets_what_is_over_and_nothing_else(harness: StoreHarness) -> None:
    job = await run(harness)
    await harness.pass_time(59)
    await harness.heartbeats.maintain()
    assert (await add(harness)).id == job.id
    await harness.pass_time(1)
    await harness.heartbeats.maintain()
    assert (await add(harness)).id != job.id


async def test_one_that_has_failed_starts_anew_and_keeps_its_period(harness: StoreHarness) -> None:
    job = await add(harness)
    await harness.pass_time(50)
    await harness.settle(await harness.take(), FAILED)
    assert (await add(harness)).id == job.id
    await harness.settle(await harness.take())
    await harness.pass_time(9)
    assert (await add(harness)).id == job.id
    await harness.pass_time(1)
    assert (await add(harness)).id != job.id


async def test_one_that_is_revived_after_its_period_begins_another(harness: StoreHarness) -> None:
    job = await add(harness)
    await harness.settle(await harness.take(), FAILED)
    await harness.pass_time(61)
    assert (await add(harness)).id == job.id
    await harness.settle(await harness.take())
    await harness.pass_time(59)
    assert (await add(harness)).id == job.id


ENDS = pytest.mark.parametrize(
    "end", ["canceled", "running", "removed", "removed by key", "running, by key", "failed", "expired"]
)


@needs("admin")
@ENDS
async def test_what_did_not_complete_frees_its_key(harness: StoreHarness, end: str) -> None:
    await ends_without_completing(harness, end)


@needs("admin")
@ENDS
async def test_without_a_history_it_does_so_too(forgetful_harness: StoreHarness, end: str) -> None:
    await ends_without_completing(forgetful_harness, end)


async def ends_without_completing(harness: StoreHarness, end: str) -> None:
    admin = harness.store.admin
    job = await add(harness, expires=10.0 if end == "expired" else None)
    match end:
        case "canceled":
            await admin.cancel(job.id)
        case "running":
            lease = await harness.take()
            assert (await admin.cancel(job.id)).result is ActionResult.ASKED
            await harness.settle(lease, ERRORED)
        case "removed":
            await admin.remove(job.id)
        case "removed by key":
            await admin.remove_key("k")
        case "running, by key":
            lease = await harness.take()
            await admin.remove_key("k")
            await harness.settle(lease)
        case "failed":
            await harness.settle(await harness.take(), FAILED)
            await admin.remove(job.id)
        case _:
            await harness.pass_time(10)
            assert list(await harness.claim()) == []
    new = await add(harness)
    assert (new.id != job.id, new.state) == (True, State.QUEUED)


async def test_two_at_the_same_moment_make_one_job(harness: StoreHarness) -> None:
    others = [harness.store, await harness.another()]
    job = NewJob(task="t", key="k", key_mode=KeyMode.UNIQUE, unique_period=60.0)
    instance = await asyncio.gather(*(store.jobs.enqueue(job) for store in others * 5))
    assert len({one.id for one in instance}) == 1
    await harness.settle(await harness.take())
    assert list(await harness.store.jobs.enqueue_many([job, job])) == [instance[0].id, instance[0].id]
    first = await harness.start("first")
    await harness.settle(first, Settlement(State.COMPLETED, COMPLETED.ended, then=(job,)))
    assert list(await harness.claim()) == []


async def test_another_key_and_no_period_know_nothing_of_it(harness: StoreHarness) -> None:
    job = await run(harness)
    assert (await harness.add(key="other", key_mode=KeyMode.UNIQUE, unique_period=60.0)).id != job.id
    new = await add(harness, period=None)
    assert new.id != job.id
    assert (await add(harness)).id == new.id


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": None},
        {"key_mode": KeyMode.REPLACE},
        {"unique_period": 0},
        {"unique_period": -1.0},
        {"unique_period": "soon"},
    ],
)
async def test_what_means_nothing_is_refused(harness: StoreHarness, wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"key": "k", "key_mode": KeyMode.UNIQUE, "unique_period": 60.0} | wrong
    with pytest.raises(InvalidJob, match="unique_period"):
        await harness.store.jobs.enqueue(NewJob(task="t", **fields))
