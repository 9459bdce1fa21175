"""``stowhand.testing.run_task_list_once`` runs due jobs, and returns their outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from stowhand.app.app import App
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import AttemptOutcome, Complete, Fail, Retry, Snooze
from stowhand.testing import MemoryStore, run_task_list_once
from tests.runner.test_run import looking_at


async def test_every_due_job_is_run_once_with_its_events_in_order() -> None:
    store = MemoryStore()

    async def double(payload: Any) -> int:
        return 2 * int(payload["n"])

    def fail(payload: Any, helpers: Any) -> None:
        helpers.add_job("double", {"n": 4})
        raise ValueError("no")

    await store.jobs.enqueue(NewJob(task="double", payload='{"n": 3}'))
    await store.jobs.enqueue(NewJob(task="fail"))
    await store.jobs.enqueue(NewJob(task="fail", max_attempts=1))
    await store.jobs.enqueue(NewJob(task="double", delay=60))
    await store.jobs.enqueue(NewJob(task="elsewhere"))
    ran = await run_task_list_once(store, {"double": double, "fail": fail})
    assert [(one.job.task, one.ended) for one in ran[:3]] == [
        ("double", AttemptOutcome.OK), ("fail", AttemptOutcome.RETRY), ("fail", AttemptOutcome.FAILED),
    ]  # fmt: skip
    assert [one.outcome for one in ran if one.job.task == "double"] == [Complete(6), Complete(8), Complete(8)]
    assert isinstance(ran[1].outcome, Retry)
    assert type(ran[1].error) is ValueError
    counts = await store.inspect.counts()
    assert (counts[State.QUEUED], counts[State.ERRORED], counts[State.FAILED]) == (2, 1, 1)
    assert await run_task_list_once(store, {"double": double}) == []


async def test_a_job_that_returns_at_once_is_not_run_twice() -> None:
    store = MemoryStore()

    async def again(payload: Any) -> Snooze:
        return Snooze(0)

    job = await store.jobs.enqueue(NewJob(task="again"))
    (ran,) = await run_task_list_once(store, {"again": again})
    assert (ran.ended, ran.outcome) == (AttemptOutcome.SNOOZED, Snooze(0))
    left = await store.jobs.get(job.id)
    assert left is not None
    assert (left.state, left.attempts) == (State.QUEUED, 0)


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("said", [Snooze(0), Retry("again", delay=0)])
async def test_a_job_that_returns_at_once_does_not_delay_others(sqlite_url: str, concurrency: int, said: Any) -> None:
    ran: list[str] = []

    async def again(payload: Any) -> Any:
        ran.append("again")
        return said

    async def other(payload: Any) -> None:
        ran.append("other")

    tasks = {"again": again, "other": other}
    assert await run_task_list_once(sqlite_url, tasks) == []
    async with looking_at(sqlite_url) as store:
        urgent = await store.jobs.enqueue(NewJob(task="again", priority=-1))
        await store.jobs.enqueue_many([NewJob(task="other")] * 5)
        await run_task_list_once(store, tasks, concurrency=concurrency)
        assert sorted(ran) == ["again", *["other"] * 5]
        left = await store.jobs.get(urgent.id)
        assert left is not None
        assert left.attempts == (0 if isinstance(said, Snooze) else 1)
        await run_task_list_once(store, tasks)
        assert ran[-1] == "again", "it is as due as it was"


async def test_a_url_is_opened_installed_and_closed(url: str) -> None:
    assert await run_task_list_once(url, {"x": lambda payload: None}) == []
    async with looking_at(url) as store:
        await store.jobs.enqueue(NewJob(task="x"))
    (ran,) = await run_task_list_once(url, {"x": lambda payload: Fail("so be it")})
    assert (ran.ended, ran.outcome, ran.error) == (AttemptOutcome.FAILED, Fail("so be it"), None)


async def test_tasks_of_an_app_are_run_with_their_types() -> None:
    app = App(store=(store := MemoryStore()))

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app:
        await double.enqueue(4)
    (ran,) = await run_task_list_once(store, {"double": double})
    assert ran.outcome == Complete(8)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_it_waits_for_all_started_jobs(concurrency: int) -> None:
    store = MemoryStore()
    for _ in range(7):
        await store.jobs.enqueue(NewJob(task="x"))
    ran = await run_task_list_once(store, {"x": lambda payload: 1}, concurrency=concurrency)
    assert sorted(one.job.id for one in ran) == [1, 2, 3, 4, 5, 6, 7]
