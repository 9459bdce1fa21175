"""Purging by age: what ended longer ago goes, everything else stays; and what maintenance does of it by itself."""

from __future__ import annotations

import asyncio

import pytest

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import Job, State
from stowhand.protocols.operator import Ages, PurgeResult
from stowhand.protocols.store import SECONDS_PER_DAY, StoreOptions
from tests.contract.backends import Backend
from tests.contract.needs import needs
from tests.contract.store_harness import StoreHarness

pytestmark = needs("operate")

OVER = (State.COMPLETED, State.FAILED, State.CANCELED)
LIVE = (State.QUEUED, State.ERRORED, State.PROCESSING)


async def one_of_each(harness: StoreHarness) -> dict[State, Job]:
    return {state: await harness.in_state(state) for state in State}


@pytest.mark.parametrize("state", OVER)
async def test_what_ended_in_this_state_longer_ago_goes_and_nothing_else(harness: StoreHarness, state: State) -> None:
    old = await one_of_each(harness)
    await harness.pass_time(100)
    young = await one_of_each(harness)
    ages = Ages(**{state.value: 50.0})
    assert await harness.store.operate.purge(ages) == PurgeResult(**{state.value: 1})
    assert await harness.store.jobs.get(old[state].id) is None
    stayed = {job.id for job in [*old.values(), *young.values()]} - {old[state].id}
    assert {job.id for job in await harness.everything()} == stayed
    assert await harness.store.operate.purge(ages) == PurgeResult(), "again: nothing more"


async def test_pending_ones_stay_whatever_their_age(harness: StoreHarness) -> None:
    jobs = await one_of_each(harness)
    await harness.pass_time(1000)
    assert await harness.store.operate.purge(Ages(completed=0, failed=0, canceled=0)) == PurgeResult(
        completed=1, failed=1, canceled=1
    )
    assert {job.id for job in await harness.everything()} == {jobs[state].id for state in LIVE}


async def test_a_dry_run_only_counts(harness: StoreHarness) -> None:
    await one_of_each(harness)
    await harness.pass_time(100)
    await one_of_each(harness)
    before = await harness.everything()
    ages = Ages(completed=50, failed=50)
    assert await harness.store.operate.purge(ages, dry_run=True) == PurgeResult(completed=1, failed=1)
    assert await harness.everything() == before


async def test_a_dry_run_counts_up_to_a_limit(harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    from stowhand.stores.postgres.queue import operations
    from stowhand.stores.sqlite.queue import operations as of_sqlite

    for module in (operations, of_sqlite):
        monkeypatch.setattr(module, "MAX_PURGE_COUNT", 2)
    for state in OVER:
        for _ in range(4):
            await harness.in_state(state)
    await harness.pass_time(10)
    ages = Ages(completed=5, failed=5, canceled=5)
    assert await harness.store.operate.purge(ages, dry_run=True) == PurgeResult(completed=3, failed=3, canceled=3)


async def test_a_purge_goes_through_many_pages(harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    from stowhand.stores.postgres.queue import operations
    from stowhand.stores.sqlite.queue import operations as of_sqlite

    for module in (operations, of_sqlite):
        monkeypatch.setattr(module, "MAX_ROWS_PER_PURGE", 3)
    for state in OVER:
        for _ in range(7):
            await harness.in_state(state)
        await harness.pass_time(10)
    young = await harness.in_state(State.COMPLETED)
    ages = Ages(completed=5, failed=5, canceled=5)
    assert await harness.store.operate.purge(ages) == PurgeResult(completed=7, failed=7, canceled=7)
    assert [job.id for job in await harness.everything()] == [young.id]


async def test_two_purges_at_once_delete_each_job_once(harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    from stowhand.stores.postgres.queue import operations
    from stowhand.stores.sqlite.queue import operations as of_sqlite

    for module in (operations, of_sqlite):
        monkeypatch.setattr(module, "MAX_ROWS_PER_PURGE", 2)
    for _ in range(5):
        await harness.in_state(State.COMPLETED)
        await harness.in_state(State.FAILED)
    await harness.pass_time(10)
    stores = [harness.store, await harness.another()]
    purged = await asyncio.gather(*(store.operate.purge(Ages(completed=1, failed=1)) for store in stores))
    assert sum(one.completed for one in purged) == 5
    assert sum(one.failed for one in purged) == 5
    assert list(await harness.everything()) == []


async def test_a_purged_job_frees_its_key(harness: StoreHarness) -> None:
    old = await harness.in_state(State.FAILED, key="k")
    await harness.pass_time(10)
    await harness.store.operate.purge(Ages(failed=5))
    assert (await harness.add(key="k")).id != old.id


async def test_without_ages_nothing_is_purged(harness: StoreHarness) -> None:
    await one_of_each(harness)
    await harness.pass_time(1000 * SECONDS_PER_DAY)
    assert await harness.store.operate.purge(Ages()) == PurgeResult()
    assert len(await harness.everything()) == len(State)


@pytest.mark.parametrize("age", [-1.0, 1e12, float("nan")])
def test_an_age_that_means_nothing_is_refused(age: float) -> None:
    with pytest.raises(ConfigurationError, match="completed: "):
        Ages(completed=age)


async def kept_for(backend: Backend, harness: StoreHarness, seconds: float | None) -> None:
    """Maintenance by a store with this retention of failed jobs."""
    if backend.name == "memory":
        harness.store._options = StoreOptions(failed_retention=seconds, pinned=harness.clock.now)  # type: ignore[attr-defined]
    store = backend.store(StoreOptions(failed_retention=seconds, pinned=harness.clock.now))
    await store.open()
    heartbeats = store.heartbeats()
    await heartbeats.maintain()
    await heartbeats.close()
    await store.close()


async def test_failed_jobs_are_kept_until_handled_unless_a_retention_is_set(
    backend: Backend, harness: StoreHarness
) -> None:
    old = await harness.in_state(State.FAILED)
    await harness.pass_time(SECONDS_PER_DAY)
    young = await harness.in_state(State.FAILED)
    await harness.pass_time(SECONDS_PER_DAY / 2)
    await kept_for(backend, harness, None)
    assert (await harness.job(old.id)).state is State.FAILED
    await kept_for(backend, harness, SECONDS_PER_DAY)
    assert await harness.store.jobs.get(old.id) is None
    assert (await harness.job(young.id)).state is State.FAILED
