"""Throughput: what workers write of a minute counts once, whatever is repeated; it is added up, and read by time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.histogram import bucket_of
from stowhand.protocols.store import SECONDS_PER_DAY
from stowhand.protocols.throughput import (
    MAX_TASKS_PER_MINUTE,
    OTHER_TASKS,
    Period,
    TaskMinute,
    ThroughputKeeper,
    sum_counts,
    total,
)
from tests.contract.needs import needs
from tests.contract.store_harness import StoreHarness

pytestmark = needs("inspect")
HOUR = timedelta(hours=1)


def keeper(heartbeats: object) -> ThroughputKeeper:
    assert isinstance(heartbeats, ThroughputKeeper)
    return heartbeats


def minute_of(harness: StoreHarness, ago: int = 0) -> int:
    """So many minutes before this one."""
    return int(harness.now.timestamp()) // 60 - ago


def counted(harness: StoreHarness, task: str = "t", ago: int = 0, **numbers: int) -> TaskMinute:
    tally = sum_counts([numbers])
    tally.runs = {bucket_of(0.1): tally.ended}
    return TaskMinute(minute_of(harness, ago), task, tally)


async def write(harness: StoreHarness, writer: str, *minutes: TaskMinute) -> set[tuple[int, str]]:
    return set(await keeper(harness.heartbeats).write_throughput(writer, minutes))


async def read(harness: StoreHarness, hours: int = 24, **asked: Any) -> Sequence[Period]:
    until = harness.now + timedelta(minutes=2)
    return await harness.store.inspect.throughput(until - hours * HOUR, until, **asked)


async def fold(harness: StoreHarness) -> None:
    await harness.heartbeats.maintain()


async def test_a_repeat_after_a_lost_reply_counts_nothing_twice(harness: StoreHarness) -> None:
    first = counted(harness, ok=3, failed=1)
    for _ in range(3):
        assert await write(harness, "w/1", first) == set()
    assert await write(harness, "w/1", counted(harness, ok=5, failed=1)) == set()
    (period,) = await read(harness)
    assert (period.task, period.seconds, period.start.timestamp()) == ("t", 60, minute_of(harness) * 60)
    assert (period.tally.ok, period.tally.failures, period.tally.ended) == (5, 1, 6)
    assert period.tally.runs == {bucket_of(0.1): 6}


async def test_two_workers_of_one_task_in_one_minute_add_up(harness: StoreHarness) -> None:
    await write(harness, "w/1", counted(harness, ok=3))
    await write(harness, "w/2", counted(harness, ok=4, retry=1), counted(harness, "other", canceled=2))
    result = {period.task: period.tally for period in await read(harness)}
    assert (result["t"].ok, result["t"].retry) == (7, 1)
    assert result["other"].canceled == 2
    assert total(await read(harness)).ended == 10
    (only,) = await read(harness, task="other")
    assert only.task == "other"


async def test_folding_changes_no_number_and_what_comes_later_is_refused(harness: StoreHarness) -> None:
    closed = [counted(harness, task, ok=2, resets=1) for task in ("a", "b")]
    for writer in ("w/1", "w/2"):
        await write(harness, writer, *closed)
    before = await read(harness)
    await harness.pass_time(10 * 60 - 1)
    await fold(harness)
    assert await write(harness, "w/1", *closed) == set(), "it may still be written"
    await harness.pass_time(61)
    await fold(harness)
    await fold(harness)
    assert await read(harness) == before
    assert await write(harness, "w/1", *closed) == {(one.minute, one.task) for one in closed}
    assert await write(harness, "w/3", counted(harness, ok=1), closed[0]) == {(closed[0].minute, "a")}
    assert total(await read(harness)).ok == 8 + 1


async def test_a_minute_that_has_not_come_is_refused(harness: StoreHarness) -> None:
    assert await write(harness, "w/1", counted(harness, ago=-60, ok=1), counted(harness, ago=-1, ok=1)) == {
        (minute_of(harness, -60), "t")
    }


async def test_minutes_become_hours_after_two_days_and_go_after_ninety(harness: StoreHarness) -> None:
    for _ in range(3):
        await write(harness, "w/1", counted(harness, "a", ok=2), counted(harness, "b", failed=1))
        await harness.pass_time(12 * 60)
        await fold(harness)
    assert len(await read(harness)) == 6
    await harness.pass_time(2 * SECONDS_PER_DAY + 3600)
    await fold(harness)
    hours = await read(harness, 72)
    assert {period.seconds for period in hours} == {3600}
    assert {period.start.timestamp() % 3600 for period in hours} == {0}
    assert (total(hours).ok, total(hours).failed) == (6, 3)
    assert total(hours).runs == {bucket_of(0.1): 9}
    assert await read(harness, 72, step=120) == hours
    assert total(await read(harness, 96, step=4 * SECONDS_PER_DAY)) == total(hours)
    await harness.pass_time(90 * SECONDS_PER_DAY)
    await fold(harness)
    assert await read(harness, 100 * 24) == []


async def test_five_hundred_tasks_of_a_minute_have_rows_and_the_others_share_one(harness: StoreHarness) -> None:
    many = [counted(harness, f"t{number:04}", ok=number + 1) for number in range(MAX_TASKS_PER_MINUTE)]
    await write(harness, "w/1", *many)
    more = (("late", 3), (OTHER_TASKS, 10), ("z", 9999))
    await write(harness, "w/2", *(counted(harness, task, ok=ok) for task, ok in more))
    await harness.pass_time(12 * 60)
    await fold(harness)
    result = {period.task: period.tally.ok for period in await read(harness)}
    assert len(result) == MAX_TASKS_PER_MINUTE + 1
    assert (result["z"], result["late"], result["t0002"]) == (9999, 3, 3)
    assert result[None] == 10 + 1 + 2, "those with the fewest"


async def test_folding_while_workers_write_loses_and_repeats_nothing(harness: StoreHarness) -> None:
    """Two maintain at once, while four workers write their rows anew."""
    old = [counted(harness, f"t{number}", ok=1) for number in range(30)]
    for writer in range(4):
        await write(harness, f"w/{writer}", *old)
    await harness.pass_time(12 * 60)
    fresh = [counted(harness, f"t{number}", ok=1) for number in range(30)]
    threads = [harness.heartbeat_thread(await harness.another()) for _ in range(6)]

    async def writes(number: int) -> None:
        for _ in range(5):
            refused = await threads[number].call(
                lambda heartbeats: keeper(heartbeats).write_throughput(f"w/{number}", [*fresh, *old])
            )
            assert {minute for minute, _ in refused} == {old[0].minute}

    async def folds(number: int) -> None:
        for _ in range(5):
            await threads[number].call(lambda heartbeats: heartbeats.maintain())

    await asyncio.gather(*(writes(number) for number in range(4)), folds(4), folds(5))
    await fold(harness)
    assert {period.tally.ok for period in await read(harness)} == {4}
    assert len(await read(harness)) == 60


async def test_a_range_and_a_step_that_are_none_are_refused(harness: StoreHarness) -> None:
    now = harness.now
    throughput = harness.store.inspect.throughput
    for step in (0, 1, 90, -60, float("nan"), float("inf")):
        with pytest.raises(InvalidJob, match="step"):
            await throughput(now, now, step=step)
    with pytest.raises(InvalidJob, match="since"):
        await throughput(now.replace(tzinfo=None), now)


async def test_what_lies_in_the_range_in_part_is_read_and_nothing_else(harness: StoreHarness) -> None:
    for ago in (5, 3, 2, 0):
        await write(harness, "w/1", counted(harness, ago=ago, ok=1))
    minute = timedelta(minutes=1)
    begins = harness.now.replace(second=0, microsecond=0)
    result = await harness.store.inspect.throughput(begins - 2.5 * minute, begins)
    assert [(begins - period.start) / minute for period in result] == [3, 2]


async def test_all_tasks_in_one_are_the_sum_of_each_whatever_was_added_up(harness: StoreHarness) -> None:
    async def compare(hours: int, step: float) -> int:
        each, all_in_one = await read(harness, hours, step=step), await read(harness, hours, step=step, by_task=False)
        spans = [(period.start, period.seconds) for period in all_in_one]
        assert spans == sorted({(period.start, period.seconds) for period in each})
        for at, seconds in spans:
            of_each = [one for one in each if (one.start, one.seconds) == (at, seconds)]
            (together,) = (one for one in all_in_one if (one.start, one.seconds) == (at, seconds))
            assert (together.task, together.tally) == (None, total(of_each))
        return len(spans)

    for passes in range(3):
        for ago in (0, 3):
            for writer in ("w/1", "w/2"):
                minutes = [counted(harness, task, ago, ok=2 + ago, retry=1) for task in ("a", "b", OTHER_TASKS)]
                assert await write(harness, f"{writer}/{passes}", *minutes) == set()
        assert await compare(1, 60) == 2
        await harness.pass_time(700)
        await fold(harness)
        assert await compare(1, 60) == 2, "added up"
        await harness.pass_time(2 * 3600)
        assert await compare(24, 3600) >= passes + 1
    await harness.pass_time(2 * SECONDS_PER_DAY + 7200)
    assert await write(harness, "w/1", counted(harness, ok=1)) == set()
    for _ in range(2):
        await fold(harness)
        assert await compare(24 * 4, 60) >= 3, "hours, and the newest minute"
    (only,) = await read(harness, 24 * 4, step=4 * SECONDS_PER_DAY, by_task=False, task="b")
    assert (only.task, only.tally.ended) == (None, total(await read(harness, 24 * 4, task="b")).ended)
    await harness.pass_time(91 * SECONDS_PER_DAY)
    await fold(harness)
    assert list(await read(harness, 24 * 200, by_task=False)) == []
