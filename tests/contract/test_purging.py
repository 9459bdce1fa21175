"""Purging by age: what ended longer ago goes, everything else stays; and what maintenance does of it by itself."""

from __future__ import annotations

import asyncio

import pytest

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import Job, State
from stowhand.protocols.operating import Ages, Purged
from stowhand.protocols.store import DAY, StoreOptions
from tests.contract.bench import Bench
from tests.contract.places import Place

OVER = (State.COMPLETED, State.FAILED, State.CANCELED)
LIVE = (State.QUEUED, State.ERRORED, State.PROCESSING)


async def one_of_each(bench: Bench) -> dict[State, Job]:
    return {state: await bench.in_state(state) for state in State}


@pytest.mark.parametrize("state", OVER)
async def test_what_ended_in_this_state_longer_ago_goes_and_nothing_else(bench: Bench, state: State) -> None:
    old = await one_of_each(bench)
    await bench.pass_time(100)
    young = await one_of_each(bench)
    ages = Ages(**{state.value: 50.0})
    assert await bench.store.purge(ages) == Purged(**{state.value: 1})
    assert await bench.store.get(old[state].id) is None
    stayed = {job.id for job in [*old.values(), *young.values()]} - {old[state].id}
    assert {job.id for job in await bench.everything()} == stayed
    assert await bench.store.purge(ages) == Purged(), "again: nothing more"


async def test_pending_ones_stay_whatever_their_age(bench: Bench) -> None:
    jobs = await one_of_each(bench)
    await bench.pass_time(1000)
    assert await bench.store.purge(Ages(completed=0, failed=0, canceled=0)) == Purged(completed=1, failed=1, canceled=1)
    assert {job.id for job in await bench.everything()} == {jobs[state].id for state in LIVE}


async def test_a_dry_run_only_counts(bench: Bench) -> None:
    await one_of_each(bench)
    await bench.pass_time(100)
    await one_of_each(bench)
    before = await bench.everything()
    ages = Ages(completed=50, failed=50)
    assert await bench.store.purge(ages, dry_run=True) == Purged(completed=1, failed=1)
    assert await bench.everything() == before


async def test_a_purge_goes_through_many_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from stowhand.stores.postgres.queue import operations
    from stowhand.stores.sqlite.queue import operating

    for module in (operations, operating):
        monkeypatch.setattr(module, "PURGE_AT_ONCE", 3)
    for state in OVER:
        for _ in range(7):
            await bench.in_state(state)
        await bench.pass_time(10)
    young = await bench.in_state(State.COMPLETED)
    ages = Ages(completed=5, failed=5, canceled=5)
    assert await bench.store.purge(ages) == Purged(completed=7, failed=7, canceled=7)
    assert [job.id for job in await bench.everything()] == [young.id]


async def test_two_purges_at_once_delete_each_job_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from stowhand.stores.postgres.queue import operations
    from stowhand.stores.sqlite.queue import operating

    for module in (operations, operating):
        monkeypatch.setattr(module, "PURGE_AT_ONCE", 2)
    for _ in range(5):
        await bench.in_state(State.COMPLETED)
        await bench.in_state(State.FAILED)
    await bench.pass_time(10)
    stores = [bench.store, await bench.another()]
    purged = await asyncio.gather(*(store.purge(Ages(completed=1, failed=1)) for store in stores))
    assert sum(one.completed for one in purged) == 5
    assert sum(one.failed for one in purged) == 5
    assert list(await bench.everything()) == []


async def test_a_purged_job_frees_its_key(bench: Bench) -> None:
    old = await bench.in_state(State.FAILED, key="k")
    await bench.pass_time(10)
    await bench.store.purge(Ages(failed=5))
    assert (await bench.add(key="k")).id != old.id


async def test_without_ages_nothing_is_purged(bench: Bench) -> None:
    await one_of_each(bench)
    await bench.pass_time(1000 * DAY)
    assert await bench.store.purge(Ages()) == Purged()
    assert len(await bench.everything()) == len(State)


@pytest.mark.parametrize("age", [-1.0, 1e12, float("nan")])
def test_an_age_that_means_nothing_is_refused(age: float) -> None:
    with pytest.raises(ConfigurationError, match="completed: "):
        Ages(completed=age)


async def kept_for(place: Place, bench: Bench, seconds: float | None) -> None:
    """Maintenance by a store with this retention of failed jobs."""
    if place.name == "memory":
        bench.store._options = StoreOptions(failed_retention=seconds, pinned=bench.clock.now)  # type: ignore[attr-defined]
    store = place.store(StoreOptions(failed_retention=seconds, pinned=bench.clock.now))
    await store.open()
    heart = store.heart()
    await asyncio.to_thread(heart.maintain)
    heart.close()
    await store.close()


async def test_failed_jobs_are_kept_until_handled_unless_a_retention_is_set(place: Place, bench: Bench) -> None:
    old = await bench.in_state(State.FAILED)
    await bench.pass_time(DAY)
    young = await bench.in_state(State.FAILED)
    await bench.pass_time(DAY / 2)
    await kept_for(place, bench, None)
    assert (await bench.job(old.id)).state is State.FAILED
    await kept_for(place, bench, DAY)
    assert await bench.store.get(old.id) is None
    assert (await bench.job(young.id)).state is State.FAILED
