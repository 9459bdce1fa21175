"""A fair worker: no task waits behind the flood of another, and inside a task the order stays."""

from __future__ import annotations

from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.handler import Attempt
from stowhand.job import Job, NewJob
from stowhand.options import WorkerOptions
from stowhand.testing import FakeClock
from tests.worker.stage import FaultyStore, at_work

TASKS = ("a", "b", "c")


async def order(counts: dict[str, int], **options: Any) -> tuple[list[str], FaultyStore]:
    """In which order the jobs of these tasks start, each taking a second; they came task by task."""
    started: list[str] = []
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> None:
        started.append(attempt.record.task + str(attempt.record.id))
        await clock.sleep(1)

    jobs = [NewJob(task=task) for task, count in counts.items() for _ in range(count)]
    async with at_work(act, clock=clock, jobs=jobs, tasks=TASKS, look_ahead=0, **options) as stage:
        await clock.advance(len(jobs) + 1.0)
        return started, stage.store


async def test_without_being_asked_a_worker_keeps_the_one_order() -> None:
    started, _ = await order({"a": 5, "b": 2}, concurrency=1)
    assert started == ["a1", "a2", "a3", "a4", "a5", "b6", "b7"]


async def test_tasks_take_turns_and_each_keeps_its_order() -> None:
    started, _ = await order({"a": 6, "b": 4, "c": 1}, concurrency=1, fair=True)
    assert started == ["a1", "b7", "c11", "a2", "b8", "a3", "b9", "a4", "b10", "a5", "a6"]


async def test_a_flood_holds_up_nobody_for_longer_than_one_round() -> None:
    started, _ = await order({"a": 60, "b": 2}, concurrency=4, fair=True)
    assert started[:4] == ["a1", "a2", "a3", "a4"]
    assert {"b61", "b62"} <= set(started[:8])
    assert [one for one in started if one[0] == "a"] == [f"a{number}" for number in range(1, 61)]


async def test_where_nothing_is_passed_over_a_claim_asks_for_all_tasks_and_once() -> None:
    _, store = await order({"a": 1}, concurrency=4, fair=True)
    asked = [request.tasks for request in store.called("claim") if not request.suspects]
    assert set(asked) == {TASKS}
    plain = (await order({"a": 1}, concurrency=4))[1]
    assert len(asked) == sum(not request.suspects for request in plain.called("claim"))


def test_fairness_is_a_truth() -> None:
    with pytest.raises(ConfigurationError, match="fair: a str given; give True or False"):
        WorkerOptions(fair="yes")  # type: ignore[arg-type]
