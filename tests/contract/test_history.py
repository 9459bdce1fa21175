"""The history: kept as long as was asked, and no longer."""

from __future__ import annotations

import pytest

from stowhand.jobs.job import State
from stowhand.protocols.store import DAY
from tests.contract.bench import Bench

ENDED = (State.COMPLETED, State.CANCELED)


@pytest.mark.parametrize("state", ENDED)
async def test_history_is_kept_for_its_time(bench: Bench, state: State) -> None:
    job = await bench.in_state(state)
    await bench.pass_time(DAY - 60)
    bench.heart.maintain()
    assert (await bench.job(job.id)).state is state


@pytest.mark.parametrize("state", ENDED)
async def test_history_is_pruned_after_its_time(bench: Bench, state: State) -> None:
    job = await bench.in_state(state)
    # Whole days may be dropped at once, so that a row may live a day longer than asked.
    await bench.pass_time(3 * DAY)
    bench.heart.maintain()
    assert await bench.store.get(job.id) is None
    assert (await bench.store.counts())[state] == 0


@pytest.mark.parametrize("state", [State.QUEUED, State.ERRORED, State.PROCESSING, State.FAILED])
async def test_what_lives_or_has_failed_is_never_pruned(bench: Bench, state: State) -> None:
    job = await bench.in_state(state)
    await bench.pass_time(400 * DAY)
    bench.heart.maintain()
    assert await bench.job(job.id) == job


async def test_maintenance_is_harmless_whenever_it_comes(bench: Bench) -> None:
    for _ in range(3):
        bench.heart.maintain()
        await bench.in_state(State.COMPLETED)
        await bench.pass_time(DAY / 3)
    bench.heart.maintain()
    bench.heart.maintain()
    assert (await bench.store.counts())[State.COMPLETED] >= 2


async def test_years_without_maintenance_do_not_make_a_settlement_fail(bench: Bench) -> None:
    await bench.pass_time(800 * DAY)
    job = await bench.in_state(State.COMPLETED)
    assert (await bench.job(job.id)).finished_at == bench.now
    bench.heart.maintain()
    assert (await bench.job(job.id)).state is State.COMPLETED


async def test_without_a_history_maintenance_has_nothing_to_do(forgetful_bench: Bench) -> None:
    await forgetful_bench.start()
    forgetful_bench.heart.maintain()
    assert (await forgetful_bench.store.counts())[State.PROCESSING] == 1
