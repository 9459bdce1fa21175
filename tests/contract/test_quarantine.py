"""Quarantine: a job whose worker died twice runs alone, so that the innocent do not pay for a killer."""

from __future__ import annotations

import pytest

from stowhand.jobs.job import State
from tests.contract.bench import ERRORED, Bench


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's suspects are asked for again at once, however long the last look took."""
    monkeypatch.setattr("stowhand.stores.postgres.table.claiming.SHARE", 0.0)


async def test_an_ordinary_claim_leaves_suspects_alone(bench: Bench) -> None:
    suspect = await bench.make_suspect(priority=-5)
    innocent = await bench.add()
    claims = await bench.claim(10)
    assert [claim.lease.job_id for claim in claims] == [innocent.id]
    assert await bench.job(suspect.id) == suspect


async def test_one_death_makes_no_suspect(bench: Bench) -> None:
    job = await bench.make_suspect(times=1)
    assert (await bench.take()).job_id == job.id


async def test_a_claim_of_suspects_takes_nothing_else(bench: Bench) -> None:
    await bench.add(priority=-5)
    suspect = await bench.make_suspect()
    claims = await bench.claim(10, suspects=True)
    assert [claim.lease.job_id for claim in claims] == [suspect.id]
    assert (claims[0].attempts, claims[0].lease.epoch) == (1, 5)


async def test_a_suspect_obeys_tasks_flags_and_run_time(bench: Bench) -> None:
    await bench.make_suspect("killer", flags=("heavy",))
    assert list(await bench.claim(suspects=True, tasks=("other",))) == []
    assert list(await bench.claim(suspects=True, forbidden_flags=("heavy",))) == []
    assert len(await bench.claim(suspects=True, tasks=("killer",))) == 1


async def test_a_suspect_that_settles_is_one_no_longer(bench: Bench) -> None:
    suspect = await bench.make_suspect()
    await bench.settle(await bench.take(suspects=True), ERRORED)
    await bench.pass_time(60)
    assert (await bench.take()).job_id == suspect.id


async def test_a_suspect_that_is_retried_by_hand_is_one_no_longer(bench: Bench) -> None:
    suspect = await bench.make_suspect()
    await bench.store.retry(suspect.id)
    assert (await bench.take()).job_id == suspect.id


async def test_a_suspect_that_is_released_stays_one(bench: Bench) -> None:
    await bench.make_suspect()
    bench.heart.release([await bench.take(suspects=True)])
    assert list(await bench.claim()) == []
    assert len(await bench.claim(suspects=True)) == 1


async def test_a_suspect_can_be_canceled(bench: Bench) -> None:
    suspect = await bench.make_suspect()
    await bench.store.cancel(suspect.id)
    assert (await bench.job(suspect.id)).state is State.CANCELED


@pytest.mark.usefixtures("unhurried")
async def test_who_is_to_make_way_is_given_what_has_been_due_for_so_long(bench: Bench) -> None:
    due = await bench.make_suspect(run_at=bench.now)
    assert list(await bench.claim(suspects=True, overdue=5.0)) == []
    await bench.pass_time(4)
    assert list(await bench.claim(suspects=True, overdue=5.0)) == []
    await bench.pass_time(1)
    (claim,) = await bench.claim(suspects=True, overdue=5.0)
    assert claim.lease.job_id == due.id


@pytest.mark.usefixtures("unhurried")
async def test_one_worker_in_four_is_to_make_way_at_once(bench: Bench) -> None:
    suspects = [await bench.make_suspect() for _ in range(4)]
    for _ in range(7):
        await bench.add()
    (first,) = await bench.claim(suspects=True, overdue=0.0, worker="first")
    assert list(await bench.claim(suspects=True, overdue=0.0, worker="second")) == []
    for n in range(6):
        assert await bench.claim(worker=f"busy {n}")
    (second,) = await bench.claim(suspects=True, overdue=0.0, worker="second")
    assert {first.lease.job_id, second.lease.job_id} <= {job.id for job in suspects}
    assert list(await bench.claim(suspects=True, overdue=0.0, worker="third")) == [], "of nine two"
    bench.heart.release([first.lease])
    assert len(await bench.claim(suspects=True, overdue=0.0, worker="third")) == 1
