"""Wherever tasks with limits run, the limits hold, or the tasks are refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stowhand import App, State
from stowhand.errors import ConfigurationError
from stowhand.flows import Flow, Queue
from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import Outcome
from stowhand.limits import Concurrency, Rate, RateLimited
from stowhand.runner import run_once
from stowhand.service.quarantine_child import answer_of
from stowhand.table import TableOptions, TableStore
from stowhand.testing import Jobs, run_task_list_once
from stowhand.worker.worker import Worker
from tests.conftest import Run

app = App("sqlite:///never-made.db")
running: Counter[str] = Counter()
maximum: Counter[str] = Counter()
LIMITS = {"call": [Concurrency(2)], "render": [Concurrency(2, per="worker")]}
PLACES = ("App.worker", "runner.run_once", "run_task_list_once")


@app.task(limits=LIMITS["call"])
async def call() -> None:
    await pause("call")


@app.task(limits=LIMITS["render"])
async def render() -> None:
    await pause("render")


@app.task(limits=[Rate(1, per="1m")])
async def fetch() -> str:
    return "fetched"


@app.task(limits=[Rate(100, per="1s", burst=100)])
async def refused() -> None:
    raise RateLimited(for_="30s")


@pytest.fixture(scope="module")
def stowhand_app() -> App:
    return app


async def pause(task: str) -> None:
    """Run until the event loop has had the time to start every other job that it may start."""
    running[task] += 1
    maximum[task] = max(maximum[task], running[task])
    for _ in range(20):
        await asyncio.sleep(0.001)
    running[task] -= 1


@pytest.mark.parametrize("task", [call, render])
@pytest.mark.parametrize("place", PLACES)
def test_no_more_jobs_run_at_once_than_a_limit_allows(run: Run, tmp_path: Path, place: str, task: Any) -> None:
    maximum.clear()
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def story() -> dict[State, int]:
        own_app = App(url)
        await own_app.open(install=True)
        async with own_app:
            store = await own_app.open()
            await store.jobs.enqueue_many([NewJob(task=task.name) for _ in range(8)])
            if place == "App.worker":
                own_app.task(limits=LIMITS[task.name])(task.definition.function)
                await own_app.worker(concurrency=8, once=True).run()
            elif place == "runner.run_once":
                await run_once(connection_string=url, task_list={task.name: task}, concurrency=8)
            else:
                await run_task_list_once(store, {task.name: task}, concurrency=8)
            return await store.inspect.counts()

    assert run(story())[State.COMPLETED] == 8
    assert maximum == {task.name: 2}


def test_a_test_obeys_limits_on_its_own_clock(jobs: Jobs) -> None:
    for _ in range(3):
        app.sync.enqueue(fetch)
    assert len(jobs.drain()) == 1
    assert len(jobs.advance("1m")) == 1
    assert len(jobs.advance("1m")) == 1


def test_a_refused_call_holds_the_other_jobs_in_a_test(jobs: Jobs) -> None:
    for _ in range(5):
        app.sync.enqueue(refused)
    assert len(jobs.drain()) <= 2, "one may be claimed before the outcome of the first is recorded"
    assert len(jobs.advance("29s")) == 0


def test_an_immediate_job_runs_whatever_its_limits() -> None:
    with app.immediate():
        assert [app.sync.enqueue(fetch).result() for _ in range(2)] == ["fetched"] * 2


def test_a_suspect_holds_the_limits_from_its_child_process() -> None:
    answer = answer_of(RateLimited(30), None, ())
    outcome: Outcome = answer.outcome()
    assert (type(outcome), outcome) == (RateLimited, RateLimited(30))


class _Handler:
    """A handler of an application's own, around that of an App."""

    declarations = app.registry.declarations()

    async def handle(self, ctx: Any, record: Any) -> None: ...


class _HandlerPerWorker:
    limits_per_worker = app.registry.limits_per_worker()

    async def handle(self, ctx: Any, record: Any) -> None: ...


def test_a_task_with_limits_is_refused_on_a_table_of_yours() -> None:
    store = TableStore("postgresql:///nowhere", TableOptions(name="jobs", table_name="jobs"))
    with pytest.raises(ConfigurationError, match=r"handler: this task declares limits, .* a Budget for a table"):
        Worker(store, call)  # type: ignore[arg-type]
    for handler in (_Handler(), _HandlerPerWorker()):
        with pytest.raises(ConfigurationError, match=r"limits: this store keeps no limits of tasks"):
            Worker(store, handler)


def test_a_task_with_limits_is_refused_in_a_flow() -> None:
    flow = Flow("shop", "sqlite:///never-made.db", [Queue("first")])
    with pytest.raises(ConfigurationError, match=r"workers of 'first': this task declares limits, .* the Limiter of a"):
        flow.create_workers("first", call)  # type: ignore[arg-type]
