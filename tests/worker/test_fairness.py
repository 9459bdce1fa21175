"""A fair worker: no task waits behind the flood of another, and inside a task the order stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Capabilities, Claim, ClaimRequest
from stowhand.remote.client.store import HttpStore
from stowhand.testing import FakeClock, MemoryStore
from stowhand.worker.worker import Worker
from tests.worker.worker_harness import FaultyStore, at_work, handler_of, nothing

TASKS = ("a", "b", "c")


async def order(counts: dict[str, int], **options: Any) -> tuple[list[str], FaultyStore]:
    """In which order the jobs of these tasks start, each taking a second; they came task by task."""
    started: list[str] = []
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> None:
        started.append(attempt.record.task + str(attempt.record.id))
        await clock.sleep(1)

    jobs = [NewJob(task=task) for task, count in counts.items() for _ in range(count)]
    async with at_work(act, clock=clock, jobs=jobs, tasks=TASKS, look_ahead=0, **options) as harness:
        await clock.advance(len(jobs) + 1.0)
        return started, harness.store


async def test_without_fairness_a_worker_keeps_the_order_of_all_jobs() -> None:
    started, _ = await order({"a": 5, "b": 2}, concurrency=1)
    assert started == ["a1", "a2", "a3", "a4", "a5", "b6", "b7"]


async def test_tasks_take_turns_and_each_keeps_its_order() -> None:
    started, _ = await order({"a": 6, "b": 4, "c": 1}, concurrency=1, fair=True)
    assert started == ["a1", "b7", "c11", "a2", "b8", "a3", "b9", "a4", "b10", "a5", "a6"]


async def test_many_jobs_of_one_task_delay_others_for_at_most_one_round() -> None:
    started, _ = await order({"a": 60, "b": 2}, concurrency=4, fair=True)
    assert started[:4] == ["a1", "a2", "a3", "a4"]
    assert {"b61", "b62"} <= set(started[:8])
    assert [one for one in started if one[0] == "a"] == [f"a{number}" for number in range(1, 61)]


class RationingStore(FaultyStore):
    """Gives fewer than asked for though there are more, as a server does whose answers are bounded."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.capabilities = Capabilities(rations=True)

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        return await super().claim(msgspec.structs.replace(request, limit=min(request.limit, 2)))


async def test_fewer_jobs_than_requested_from_a_rationing_store_do_not_end_the_round() -> None:
    assert HttpStore("http://127.0.0.1:1").capabilities.rations
    clock, started = FakeClock(), []

    async def act(attempt: Attempt[Job]) -> None:
        started.append(attempt.record.task)
        await clock.sleep(0.01)

    jobs = [NewJob(task="a") for _ in range(600)]
    async with at_work(
        act, store=RationingStore(clock), clock=clock, jobs=jobs, tasks=TASKS, concurrency=1, look_ahead=20, fair=True
    ) as harness:
        await clock.advance(2.0)  # it knows how fast they end, and claims ahead
        before = len(started)
        await harness.add("b")
        await clock.advance(1.0)
        assert "b" in started[before : before + 20]


async def test_if_no_task_is_skipped_there_is_one_claim_of_all_tasks() -> None:
    _, store = await order({"a": 1}, concurrency=4, fair=True)
    calls = [request.tasks for request in store.called("claim") if not request.suspects]
    assert set(calls) == {TASKS}
    plain = (await order({"a": 1}, concurrency=4))[1]
    assert len(calls) == sum(not request.suspects for request in plain.called("claim"))


def test_a_worker_of_any_task_cannot_be_fair() -> None:
    with pytest.raises(ConfigurationError, match=r"fair: .*; use tasks"):
        Worker(MemoryStore(), handler_of(nothing), WorkerOptions(fair=True))


def test_fairness_is_a_truth() -> None:
    with pytest.raises(ConfigurationError, match="fair: got a str; use True or False"):
        WorkerOptions(fair="yes")  # type: ignore[arg-type]
