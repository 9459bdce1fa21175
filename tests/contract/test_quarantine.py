"""Suspects: jobs whose workers died twice are claimed apart from the others."""

from __future__ import annotations

from stowhand.jobs.job import State
from tests.contract.needs import excepted, needs
from tests.contract.store_harness import ERRORED, StoreHarness


async def test_an_ordinary_claim_leaves_suspects_alone(harness: StoreHarness) -> None:
    suspect = await harness.make_suspect(priority=-5)
    innocent = await harness.add()
    claims = await harness.claim(10)
    assert [claim.lease.job_id for claim in claims] == [innocent.id]
    assert await harness.job(suspect.id) == suspect


async def test_one_death_makes_no_suspect(harness: StoreHarness) -> None:
    job = await harness.make_suspect(times=1)
    assert (await harness.take()).job_id == job.id


@needs("epochs")
async def test_a_claim_of_suspects_takes_nothing_else(harness: StoreHarness) -> None:
    await harness.add(priority=-5)
    suspect = await harness.make_suspect()
    claims = await harness.claim(10, suspects=True)
    assert [claim.lease.job_id for claim in claims] == [suspect.id]
    assert (claims[0].attempts, claims[0].lease.epoch) == (1, 5)


@needs("flags")
async def test_a_suspect_obeys_tasks_flags_and_run_time(harness: StoreHarness) -> None:
    await harness.make_suspect("killer", flags=("heavy",))
    assert list(await harness.claim(suspects=True, tasks=("other",))) == []
    assert list(await harness.claim(suspects=True, forbidden_flags=("heavy",))) == []
    assert len(await harness.claim(suspects=True, tasks=("killer",))) == 1


@needs("forgiving")
async def test_a_suspect_that_settles_is_one_no_longer(harness: StoreHarness) -> None:
    suspect = await harness.make_suspect()
    await harness.settle(await harness.take(suspects=True), ERRORED)
    await harness.pass_time(60)
    assert (await harness.take()).job_id == suspect.id


@needs("retry")
async def test_a_suspect_that_is_retried_by_hand_is_one_no_longer(harness: StoreHarness) -> None:
    suspect = await harness.make_suspect()
    await harness.store.admin.retry(suspect.id)
    assert (await harness.take()).job_id == suspect.id


async def test_a_suspect_that_is_released_stays_one(harness: StoreHarness) -> None:
    await harness.make_suspect()
    await harness.heartbeats.release([await harness.take(suspects=True)])
    assert list(await harness.claim()) == []
    assert len(await harness.claim(suspects=True)) == 1


@needs("cancel")
@excepted(table="a cancel is obeyed when the record's turn comes, or by the next sweep")
async def test_a_suspect_can_be_canceled(harness: StoreHarness) -> None:
    suspect = await harness.make_suspect()
    await harness.store.admin.cancel(suspect.id)
    assert (await harness.job(suspect.id)).state is State.CANCELED
