"""Idempotent creation by a key; queues that no process serves for a while; what deleting and retrying promise."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from stowhand.errors import ConfigurationError, InvalidJob
from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, FlowJobFailed, Queue, Stage
from stowhand.protocols.queue_store import ActionResult
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.flows.harness import until

FAMILY = [Queue("parent", next_queue="last", children=[Queue("kid")]), Queue("last")]


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "redis, priority"])
def make(request: pytest.FixtureRequest, tmp_path: Any) -> Callable[..., Flow]:
    """Makes a flow on each store."""
    where, _, layout = request.param.partition(", ")
    places: dict[str, Callable[[], Any]] = {
        "memory": lambda: MemoryStore(),
        "sqlite": lambda: f"sqlite:///{tmp_path}/flow.db",
        "postgres": lambda: request.getfixturevalue("postgres_url"),
        "redis": lambda: request.getfixturevalue("redis_url"),
    }
    place = places[where]()
    return lambda queues: Flow("demo", place, queues, layout=layout or "classic", events=Events())


def stage_is(flow: Flow, job: str, stage: Stage) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        view = await flow.get_job(job)
        return view is not None and view.state is stage

    return holds


def test_while_a_job_with_the_key_has_not_ended_no_second_one_is_created(run: Run, make: Callable[..., Flow]) -> None:
    async def story() -> None:
        go_on = asyncio.Event()

        async def first(job: FlowJob) -> None:
            await go_on.wait()
            if job["n"] == 2:
                raise ValueError("no")

        flow = make([Queue("first", next_queue="last"), Queue("last")])
        flow.create_workers("first", first, wait_timeout=0.2)
        flow.create_workers("last", lambda job: None, wait_timeout=0.2)
        async with flow:
            job = await flow.create_job({"n": 1}, key="order 7")
            at_once = await asyncio.gather(*(flow.create_job({"n": 9}, key=f"k{n % 3}") for n in range(12)))
            assert len(set(at_once)) == 3
            assert await flow.create_job({"n": 8}, key="order 7") == job
            assert await flow.create_job({"n": 8}, key="order 8") != job
            await flow.start_all()
            await until(stage_is(flow, job, Stage.PROCESSING))
            assert await flow.create_job({"n": 8}, key="order 7") == job
            go_on.set()
            assert (await flow.result(job, timeout=20))["n"] == 1
            for _ in range(2):  # neither a completed nor a failed one holds its key
                following = await flow.create_job({"n": 2}, key="order 7")
                assert following != job
                with pytest.raises(FlowJobFailed):
                    await flow.result(following, timeout=20)
                job = following
            with pytest.raises(InvalidJob, match="key: got ''"):
                await flow.create_job({}, key="")

    run(story())


def test_a_retried_job_has_its_key_again(run: Run, make: Callable[..., Flow]) -> None:
    async def story() -> None:
        good = False

        async def only(job: FlowJob) -> None:
            if not good:
                raise ValueError("no")

        flow = make([Queue("only")])
        flow.create_workers("only", only, wait_timeout=0.2)
        async with flow:
            await flow.start_all()
            first = await flow.create_job({}, key="order 7")
            with pytest.raises(FlowJobFailed):
                await flow.result(first, timeout=20)
            good = True
            second = await flow.create_job({}, key="order 7")
            await flow.result(second, timeout=20)
            await flow.pause("only")
            assert [answer.result for answer in await flow.retry_jobs([first])] == [ActionResult.DONE]
            assert await flow.create_job({}, key="order 7") == first
            await flow.resume("only")
            await flow.result(first, timeout=20)
            assert await flow.create_job({}, key="order 7") not in (first, second)

    run(story())


def test_a_deleted_job_frees_its_key(run: Run, make: Callable[..., Flow]) -> None:
    async def story() -> None:
        async with make([Queue("only")]) as flow:
            job = await flow.create_job({}, key="k")
            assert await flow.delete_job(job)
            following = await flow.create_job({}, key="k")
            assert following != job
            assert await flow.create_job({}, key="k") == following

    run(story())


def test_a_paused_queue_is_served_by_no_process_until_it_is_resumed(run: Run, make: Callable[..., Flow]) -> None:
    async def story() -> None:
        async def step(job: FlowJob) -> None: ...

        queues = [Queue("first", next_queue="last"), Queue("last")]
        flow, other = make(queues), make(queues)
        for name in ("first", "last"):
            flow.create_workers(name, step, wait_timeout=0.2)
        async with flow, other:
            assert [await other.pause("last"), await other.pause("last")] == [True, False]
            with pytest.raises(ConfigurationError, match="no queue 'lats'"):
                await other.pause("lats")
            await flow.start_all()
            jobs = await flow.create_jobs([{}, {}])

            async def have_arrived() -> bool:
                return [each.waiting for each in await flow.monitor.counts()] == [0, 2]

            await until(have_arrived)
            assert [each.paused for each in await flow.monitor.counts()] == [False, True]
            with pytest.raises(TimeoutError):
                await flow.result(jobs[0], timeout=0.5)
            assert [each.waiting for each in await flow.monitor.counts()] == [0, 2]
            assert [await other.resume("last"), await other.resume("last")] == [True, False]
            for job in jobs:
                await flow.result(job, timeout=20)

    run(story())


def test_a_completed_child_is_deleted_with_its_parent_and_not_before(run: Run, make: Callable[..., Flow]) -> None:
    async def story() -> None:
        gathered: list[Any] = []

        async def kid(job: FlowJob) -> dict[str, int]:
            return {"square": job["n"] ** 2}

        async def last(job: FlowJob) -> None:
            gathered.extend(job["children:parent:results"])

        flow = make(FAMILY)
        parents = flow.create_parent_workers("parent", wait_timeout=0.2)
        kids = flow.create_child_workers("parent", "kid", kid, wait_timeout=0.2)
        flow.create_workers("last", last, wait_timeout=0.2)
        async with flow:
            job = await flow.create_job({"children:parent:params": [{"childName": "kid", "n": n} for n in (2, 3)]})
            parents.start()
            await until(stage_is(flow, job, Stage.PARKED))
            await parents.stop()
            kids.start()

            async def have_ended() -> bool:
                return [child.get("done") for child in await flow.get_children(job, "parent")] == [True, True]

            await until(have_ended)
            (child, _) = await flow.get_children(job, "parent")
            assert await flow.delete_job(child["id"]) is False
            await flow.start_all()
            await flow.result(job, timeout=20)
            assert [each["square"] for each in gathered] == [4, 9]

    run(story())


def test_jobs_of_one_call_with_one_delay_run_in_their_order(run: Run, make: Callable[..., Flow]) -> None:
    async def story() -> None:
        seen: list[int] = []

        async def step(job: FlowJob) -> None:
            seen.append(job["n"])

        flow = make([Queue("only")])
        flow.create_workers("only", step, wait_timeout=0.2)
        async with flow:
            jobs = await flow.create_jobs([{"n": n} for n in range(60)], delay=0.05)
            await flow.start_all()
            for job in jobs:
                await flow.result(job, timeout=20)
            assert seen == list(range(60))

    run(story())


def test_with_one_slot_at_most_one_other_job_runs_between_two_attempts(run: Run, redis_url: str) -> None:
    async def story() -> None:
        seen: list[int] = []
        tries: Counter[int] = Counter()

        async def step(job: FlowJob) -> None:
            seen.append(job["n"])
            tries[job["n"]] += 1
            if job["n"] == 150 and tries[150] < 3:
                raise ValueError("again")

        flow = Flow("demo", redis_url, [Queue("only", max_retries=2)], events=Events())
        flow.create_workers("only", step, wait_timeout=0.2)
        async with flow:
            jobs = await flow.create_jobs([{"n": n} for n in range(300)])
            await flow.start_all()
            await flow.result(jobs[-1], timeout=20)
            places = [place for place, number in enumerate(seen) if number == 150]
            assert len(places) == 3
            assert all(after - before <= 2 for before, after in pairwise(places))

    run(story())
