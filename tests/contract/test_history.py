"""The history: kept as long as was asked, and no longer."""

from __future__ import annotations

import pytest

from stowhand.jobs.job import State
from stowhand.protocols.store import SECONDS_PER_DAY
from tests.contract.needs import needs
from tests.contract.store_harness import StoreHarness

pytestmark = needs("inspect")

ENDED = (State.COMPLETED, State.CANCELED)


@pytest.mark.parametrize("state", ENDED)
async def test_history_is_kept_for_its_time(harness: StoreHarness, state: State) -> None:
    job = await harness.in_state(state)
    await harness.pass_time(SECONDS_PER_DAY - 60)
    await harness.heartbeats.maintain()
    assert (await harness.job(job.id)).state is state


@pytest.mark.parametrize("state", ENDED)
async def test_history_is_pruned_after_its_time(harness: StoreHarness, state: State) -> None:
    job = await harness.in_state(state)
    # Whole days may be dropped at once, so that a row may live a day longer than asked.
    await harness.pass_time(3 * SECONDS_PER_DAY)
    await harness.heartbeats.maintain()
    assert await harness.store.jobs.get(job.id) is None
    assert (await harness.store.inspect.counts())[state] == 0


@pytest.mark.parametrize("state", [State.QUEUED, State.ERRORED, State.PROCESSING, State.FAILED])
async def test_live_and_failed_jobs_are_never_pruned(harness: StoreHarness, state: State) -> None:
    job = await harness.in_state(state)
    await harness.pass_time(400 * SECONDS_PER_DAY)
    await harness.heartbeats.maintain()
    assert await harness.job(job.id) == job


async def test_maintenance_is_harmless_whenever_it_comes(harness: StoreHarness) -> None:
    for _ in range(3):
        await harness.heartbeats.maintain()
        await harness.in_state(State.COMPLETED)
        await harness.pass_time(SECONDS_PER_DAY / 3)
    await harness.heartbeats.maintain()
    await harness.heartbeats.maintain()
    assert (await harness.store.inspect.counts())[State.COMPLETED] >= 2


async def test_years_without_maintenance_do_not_make_a_settlement_fail(harness: StoreHarness) -> None:
    await harness.pass_time(800 * SECONDS_PER_DAY)
    job = await harness.in_state(State.COMPLETED)
    assert (await harness.job(job.id)).finished_at == harness.now
    await harness.heartbeats.maintain()
    assert (await harness.job(job.id)).state is State.COMPLETED


async def test_without_a_history_maintenance_has_nothing_to_do(forgetful_harness: StoreHarness) -> None:
    await forgetful_harness.start()
    await forgetful_harness.heartbeats.maintain()
    assert (await forgetful_harness.store.inspect.counts())[State.PROCESSING] == 1
