"""The roll of workers, and counts by task: for people; nothing else depends on it."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.task_limits import NO_DECLARATIONS
from stowhand.protocols.counts import MAX_LISTED_NAMES, BoundedCount
from stowhand.protocols.operator import (
    LOST_WORKER_RETENTION_SECONDS,
    WORKER_TIMEOUT_SECONDS,
    WorkerDescription,
    WorkerList,
)
from stowhand.stores.kernel import counts
from tests.contract.needs import needs
from tests.contract.store_harness import StoreHarness

pytestmark = needs("inspect")

CARD = WorkerDescription(name="w1", host="h", pid=7, version="1.2", tasks=("a", "b"), concurrency=4)


def roll(harness: StoreHarness) -> WorkerList:
    assert isinstance(harness.heartbeats, WorkerList)
    return harness.heartbeats


async def test_a_worker_that_was_seen_is_in_the_roll(harness: StoreHarness) -> None:
    started = harness.now
    await roll(harness).worker_seen(CARD, NO_DECLARATIONS)
    await harness.pass_time(30)
    stopping = msgspec.structs.replace(CARD, tasks=None, stopping=True, abandoned_threads=3, blocked=True)
    await roll(harness).worker_seen(stopping, NO_DECLARATIONS)
    (row,) = await harness.store.inspect.workers()
    assert (row.description, row.started_at, row.seen_at, row.is_alive) == (stopping, started, harness.now, True)


async def test_a_deregistered_worker_is_not_listed(harness: StoreHarness) -> None:
    await roll(harness).worker_seen(CARD, NO_DECLARATIONS)
    await roll(harness).worker_gone("w1")
    await roll(harness).worker_gone("never seen")
    assert list(await harness.store.inspect.workers()) == []


async def test_a_worker_that_does_not_deregister_is_lost_and_removed_after_a_day(harness: StoreHarness) -> None:
    await roll(harness).worker_seen(CARD, NO_DECLARATIONS)
    await harness.pass_time(WORKER_TIMEOUT_SECONDS - 1)
    assert [row.is_alive for row in await harness.store.inspect.workers()] == [True]
    await harness.pass_time(2)
    assert [row.is_alive for row in await harness.store.inspect.workers()] == [False]
    await harness.heartbeats.maintain()
    assert len(await harness.store.inspect.workers()) == 1
    await harness.pass_time(LOST_WORKER_RETENTION_SECONDS)
    await harness.heartbeats.maintain()
    assert list(await harness.store.inspect.workers()) == []


async def test_a_task_list_of_nothing_is_not_one_of_anything(harness: StoreHarness) -> None:
    empty = WorkerDescription(name="w2", host="h\nx", pid=2**31, version="1", tasks=(), concurrency=1)
    await roll(harness).worker_seen(empty, NO_DECLARATIONS)
    (row,) = await harness.store.inspect.workers()
    assert row.description == empty


async def test_jobs_are_counted_by_task_and_by_queue_and_worker(harness: StoreHarness) -> None:
    for state in State:
        await harness.in_state(state, task="t")
    await harness.add("later", delay=60.0, serial="q")
    figures = await harness.store.inspect.figures()
    t, later = (next(one for one in figures.tasks if one.name == name) for name in ("t", "later"))
    one, none = BoundedCount(1), BoundedCount(0)
    assert (t.queued, t.errored, t.due, t.processing, t.failed) == (one, one, one, one, one)
    assert (later.queued, later.errored, later.due, later.processing, later.failed) == (one, none, none, none, none)
    assert [(serial.name, serial.waiting, serial.due) for serial in figures.serials] == [("q", one, none)]
    assert [(worker.name, worker.processing) for worker in figures.workers] == [("w1", one)]


async def test_the_figures_of_a_small_store_are_what_is_counted_by_state(harness: StoreHarness) -> None:
    for times, state in enumerate(State, start=1):
        for _ in range(times):
            await harness.in_state(state)
    counted = (await harness.store.inspect.figures()).states
    assert not any(amount.is_lower_bound for amount in counted.values())
    assert {state: amount.number for state, amount in counted.items()} == await harness.store.inspect.counts()
    assert sorted(amount.number for amount in counted.values()) == list(range(1, len(State) + 1))


@pytest.mark.parametrize("far", [4, 100])
@pytest.mark.parametrize("most", [3, 100])
async def test_each_state_is_counted_exactly_up_to_a_number(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch, most: int, far: int
) -> None:
    """Also where so many are errored or canceled that they are passed over."""
    monkeypatch.setattr(counts, "MAX_INDEX_ROWS", far)
    expected = {}
    for times, state in enumerate(State, start=2):
        for _ in range(times):
            await harness.in_state(state)
        expected[state] = BoundedCount.up_to(most, times)
    result = (await harness.store.inspect.figures(most)).states
    assert result == expected
    assert list(result) == list(State)


@pytest.mark.parametrize("far", [5, 100])
async def test_beyond_a_number_of_a_task_there_are_more_and_other_tasks_are_exact(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch, far: int
) -> None:
    """Whether what waits is few enough to be counted at once or not."""
    monkeypatch.setattr(counts, "MAX_INDEX_ROWS", far)
    for number in range(6):
        await harness.add("many", priority=number % 3)
    for _ in range(3):
        await harness.in_state(State.FAILED, task="fails")
    await harness.add("few", delay=60.0)
    for number in range(5):
        await harness.add("serial", serial=f"q{number % 2}")
    figures = await harness.store.inspect.figures(2)
    tasks = {one.name: (one.waiting, one.due, one.failed) for one in figures.tasks}
    more, none = BoundedCount(2, is_lower_bound=True), BoundedCount(0)
    assert tasks == {
        "many": (more, more, none),
        "fails": (none, none, more),
        "few": (BoundedCount(1), none, none),
        "serial": (more, more, none),
    }
    assert {one.name: one.waiting for one in figures.serials} == {"q0": more, "q1": BoundedCount(2), None: none}


async def test_what_waits_in_queues_is_counted_up_to_a_bound(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "MAX_INDEX_ROWS", 2)
    for _ in range(3):
        await harness.add(serial="q")
    figures = await harness.store.inspect.figures(10)
    some = {"t": BoundedCount(2, is_lower_bound=True), None: BoundedCount(0, is_lower_bound=True)}
    assert {one.name: one.waiting for one in figures.tasks} == some
    assert {one.name: one.waiting for one in figures.serials} == {
        "q": BoundedCount(2, is_lower_bound=True),
        None: some[None],
    }


async def test_of_more_running_jobs_than_are_counted_no_name_is_exact(harness: StoreHarness) -> None:
    """A task, serial key or worker may be outside of those that were counted, and of these one may have more."""
    for task in ("big", "big", "big", "small"):
        await harness.add(task)
        await harness.claim(worker="w1")
    await harness.add("idle")
    figures = await harness.store.inspect.figures(2)
    for counted in (figures.tasks, figures.serials, figures.workers):
        assert counted[-1].name is None
        assert all(one.processing.is_lower_bound for one in counted)
    assert {one.name: one.waiting for one in figures.tasks}["idle"] == BoundedCount(1)
    exact = {one.name: one.processing for one in (await harness.store.inspect.figures(4)).tasks}
    assert exact == {"big": BoundedCount(3), "small": BoundedCount(1), "idle": BoundedCount(0)}


async def test_of_more_suspects_than_are_counted_no_name_is_exact(harness: StoreHarness) -> None:
    for _ in range(3):
        await harness.make_suspect()
    await harness.add("other")
    waiting = {one.name: one.waiting for one in (await harness.store.inspect.figures(2)).tasks}
    assert waiting == {
        "killer": BoundedCount(2, is_lower_bound=True),
        "other": BoundedCount(1, is_lower_bound=True),
        None: BoundedCount(0, is_lower_bound=True),
    }


async def test_an_empty_store_has_no_counts(harness: StoreHarness) -> None:
    figures = await harness.store.inspect.figures()
    assert [*figures.tasks, *figures.serials, *figures.workers, *figures.paused] == []
    assert figures.states == dict.fromkeys(State, BoundedCount(0))


async def test_names_beyond_the_limit_are_summed_up(harness: StoreHarness) -> None:
    await harness.store.jobs.enqueue_many([NewJob(task=f"t{number}") for number in range(MAX_LISTED_NAMES + 5)])
    await harness.store.jobs.enqueue_many([NewJob(task="t1"), NewJob(task="t2")])
    tasks = (await harness.store.inspect.figures()).tasks
    assert len(tasks) == MAX_LISTED_NAMES + 1
    assert {one.name: one.queued for one in tasks} | {
        None: BoundedCount(5),
        "t1": BoundedCount(2),
        "t2": BoundedCount(2),
    } == {one.name: one.queued for one in tasks}


async def test_paused_queues_are_named_and_their_jobs_are_not_late(harness: StoreHarness) -> None:
    await harness.add(serial="mail")
    await harness.pass_time(20)
    await harness.store.operate.pause_serial("mail")
    await harness.add(serial="other")
    await harness.pass_time(5)
    assert list((await harness.store.inspect.figures()).paused) == ["mail"]
    assert await harness.store.inspect.oldest_due() == {"default": pytest.approx(5.0, abs=0.1)}
    await harness.store.operate.resume_serial("mail")
    assert await harness.store.inspect.oldest_due() == {"default": pytest.approx(25.0, abs=0.1)}


async def test_the_oldest_is_found_behind_any_priority_task_and_queue(harness: StoreHarness) -> None:
    await harness.add("a", priority=5)
    await harness.pass_time(10)
    await harness.add("a", priority=1)
    await harness.add("b", serial="q", priority=-3)
    await harness.pass_time(10)
    await harness.add("b", serial="p")
    assert await harness.store.inspect.oldest_due() == {"default": pytest.approx(20.0, abs=0.1)}


async def test_a_heart_that_keeps_no_roll_is_none(harness: StoreHarness) -> None:
    assert not isinstance(cast("object", harness.store), WorkerList)
