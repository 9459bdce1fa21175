"""The roll of workers, counts by task, and what ended lately: for people; nothing else depends on it."""

from __future__ import annotations

from typing import cast

from stowhand.cli.stats import read_stats
from stowhand.job import State
from stowhand.operating import ALIVE_FOR, FORGOTTEN_AFTER, Roll, WorkerCard
from tests.contract.bench import Bench, in_thread

CARD = WorkerCard(name="w1", host="h", pid=7, version="1.2", tasks=("a", "b"), concurrency=4)


def roll(bench: Bench) -> Roll:
    assert isinstance(bench.heart, Roll)
    return bench.heart


async def test_a_worker_that_was_seen_is_in_the_roll(bench: Bench) -> None:
    started = bench.now
    await in_thread(roll(bench).worker_seen, CARD)
    await bench.pass_time(30)
    stopping = WorkerCard(name="w1", host="h", pid=7, version="1.2", tasks=None, concurrency=4, stopping=True)
    await in_thread(roll(bench).worker_seen, stopping)
    (row,) = await bench.store.workers()
    assert (row.card, row.started_at, row.seen_at, row.alive) == (stopping, started, bench.now, True)


async def test_a_worker_that_says_goodbye_is_in_it_no_longer(bench: Bench) -> None:
    await in_thread(roll(bench).worker_seen, CARD)
    await in_thread(roll(bench).worker_gone, "w1")
    await in_thread(roll(bench).worker_gone, "never seen")
    assert list(await bench.store.workers()) == []


async def test_one_that_says_none_is_lost_and_a_day_later_forgotten(bench: Bench) -> None:
    await in_thread(roll(bench).worker_seen, CARD)
    await bench.pass_time(ALIVE_FOR - 1)
    assert [row.alive for row in await bench.store.workers()] == [True]
    await bench.pass_time(2)
    assert [row.alive for row in await bench.store.workers()] == [False]
    bench.heart.maintain()
    assert len(await bench.store.workers()) == 1
    await bench.pass_time(FORGOTTEN_AFTER)
    bench.heart.maintain()
    assert list(await bench.store.workers()) == []


async def test_a_task_list_of_nothing_is_not_one_of_anything(bench: Bench) -> None:
    empty = WorkerCard(name="w2", host="h\nx", pid=2**31, version="1", tasks=(), concurrency=1)
    await in_thread(roll(bench).worker_seen, empty)
    (row,) = await bench.store.workers()
    assert row.card == empty


async def test_jobs_are_counted_by_task(bench: Bench) -> None:
    for state in State:
        await bench.in_state(state, task="t")
    await bench.add("later", delay=60.0)
    rows = {row.task: row for row in await bench.store.task_counts()}
    assert list(rows) == ["later", "t"]
    t, later = rows["t"], rows["later"]
    assert (t.waiting, t.due, t.errored, t.running, t.failed, t.completed, t.canceled) == (2, 1, 1, 1, 1, 1, 1)
    assert (later.waiting, later.due, later.errored) == (1, 0, 0)


async def test_the_statistics_add_tasks_up_to_what_is_counted_by_state(bench: Bench) -> None:
    assert (await read_stats(bench.store)).states == await bench.store.counts()
    for times, state in enumerate(State, start=1):
        for _ in range(times):
            await bench.in_state(state)
    counted = (await read_stats(bench.store)).states
    assert counted == await bench.store.counts()
    assert sorted(counted.values()) == list(range(1, len(State) + 1))


async def test_what_ended_lately_is_counted(bench: Bench) -> None:
    await bench.in_state(State.COMPLETED)
    await bench.pass_time(100)
    for state in State:
        await bench.in_state(state)
    await bench.pass_time(10)
    over = (State.COMPLETED, State.FAILED, State.CANCELED)
    assert await bench.store.finished(60.0) == dict.fromkeys(over, 1)
    assert (await bench.store.finished(600.0))[State.COMPLETED] == 2
    assert await bench.store.finished(5.0) == dict.fromkeys(over, 0)


async def test_a_heart_that_keeps_no_roll_is_none(bench: Bench) -> None:
    assert not isinstance(cast("object", bench.store), Roll)
