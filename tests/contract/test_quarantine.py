"""Quarantine: a job whose worker died twice runs alone, so that the innocent do not pay for a killer."""

from __future__ import annotations

import pytest

from stowhand.jobs.job import State
from tests.contract.needs import excepted, needs
from tests.contract.store_harness import ERRORED, StoreHarness


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's suspects are asked for again at once, however long the last look took."""
    monkeypatch.setattr("stowhand.stores.postgres.table.claiming.SHARE", 0.0)


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


@pytest.mark.usefixtures("unhurried")
async def test_who_is_to_make_way_is_given_what_has_been_due_for_so_long(harness: StoreHarness) -> None:
    due = await harness.make_suspect(run_at=harness.now)
    assert list(await harness.claim(suspects=True, overdue=5.0)) == []
    await harness.pass_time(4)
    assert list(await harness.claim(suspects=True, overdue=5.0)) == []
    await harness.pass_time(1)
    (claim,) = await harness.claim(suspects=True, overdue=5.0)
    assert claim.lease.job_id == due.id


@pytest.mark.usefixtures("unhurried")
@excepted(redis="counted by queue: tests/flows/redis/test_sweep.py")
async def test_one_worker_in_four_is_to_make_way_at_once(harness: StoreHarness) -> None:
    suspects = [await harness.make_suspect() for _ in range(4)]
    for _ in range(7):
        await harness.add()
    (first,) = await harness.claim(suspects=True, overdue=0.0, worker="first")
    assert list(await harness.claim(suspects=True, overdue=0.0, worker="second")) == []
    for n in range(6):
        assert await harness.claim(worker=f"busy {n}")
    (second,) = await harness.claim(suspects=True, overdue=0.0, worker="second")
    assert {first.lease.job_id, second.lease.job_id} <= {job.id for job in suspects}
    assert list(await harness.claim(suspects=True, overdue=0.0, worker="third")) == [], "of nine two"
    await harness.heartbeats.release([first.lease])
    assert len(await harness.claim(suspects=True, overdue=0.0, worker="third")) == 1
