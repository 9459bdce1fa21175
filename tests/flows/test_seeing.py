"""Whoever creates jobs: hears what becomes of them, from synchronous code too, and one after another loop."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stowhand.errors import ConfigurationError, Misuse
from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, FlowJobFailed, Queue, Stage
from tests.conftest import Run


async def step(job: FlowJob) -> Any:
    if job["n"] == 0:
        raise ValueError("no")
    return {f"by-{job.queue}": job["n"]}


def made(place: str, **more: Any) -> Flow:
    flow = Flow("demo", place, [Queue("first", next_queue="last"), Queue("last")], events=Events(), **more)
    for queue in ("first", "last"):
        flow.create_workers(queue, step, wait_timeout=0.2)
    return flow


@pytest.mark.parametrize("layout", ["classic", "priority"])
def test_a_job_has_a_state_a_queue_and_a_failure(run: Run, place: str, layout: str) -> None:
    async def story() -> None:
        before = datetime.now(UTC) - timedelta(milliseconds=2)
        async with made(place, layout=layout) as flow:
            job_id, failing = await flow.create_job({"n": 1}), await flow.create_job({"n": 0})
            later = await flow.create_job({"n": 2}, delay=600)
            waiting, delayed = await flow.get_job(job_id), await flow.get_job(later)
            assert waiting is not None
            assert (waiting.state, waiting.queue, waiting.attributes["n"]) == (Stage.WAITING, "first", 1)
            assert waiting.created_at is not None
            assert before <= waiting.created_at <= datetime.now(UTC)
            assert delayed is not None
            assert delayed.state is Stage.DELAYED
            assert delayed.ready_at is not None
            with pytest.raises(TimeoutError):
                await flow.result(job_id, timeout=0.05)
            await flow.start_all()
            ended = await flow.result(job_id, timeout=20)
            assert (ended["by-first"], ended["by-last"]) == (1, 1)
            assert not [name for name in ended if name in ("lookups:lists", "children:queues")]
            job = await flow.get_job(job_id)
            assert job is not None
            assert (job.state, job.queue, job.failure) == (Stage.COMPLETED, "last", None)
            with pytest.raises(FlowJobFailed, match="failed in first: no") as caught:
                await flow.result(failing, timeout=20)
            assert caught.value.job is not None
            assert (caught.value.job.state, caught.value.job.queue) == (Stage.FAILED, "first")
            with pytest.raises(FlowJobFailed, match="there is no job"):
                await flow.result("nobody's")

    run(story())


def test_the_synchronous_face_creates_and_waits_and_refuses_in_a_loop(place: str) -> None:
    async def work() -> None:
        async with made(place) as flow:
            await flow.start_all()
            with pytest.raises(Misuse, match=r"write await flow.create_job\(…\)"):
                flow.sync.create_job({"n": 1})
            await asyncio.to_thread(alone)

    flow = made(place)

    def alone() -> None:
        ids = [flow.sync.create_job({"n": 1}), *flow.sync.create_jobs([{"n": 2}])]
        assert [flow.sync.result(one, timeout=20)["by-last"] for one in ids] == [1, 2]
        assert len(flow.sync.get_jobs(ids)) == 2
        flow.sync.close()

    flow.sync.create_job({"n": 3})
    asyncio.run(work())


def test_a_flow_is_used_on_one_loop_after_another(redis_url: str) -> None:
    flow = made(redis_url)
    ids = [asyncio.run(flow.create_job({"n": n})) for n in range(3)]
    assert len(set(ids)) == 3
    asyncio.run(flow.close())


def test_thousands_of_creations_at_once_take_few_connections_and_few_calls(run: Run, place: str) -> None:
    async def story() -> None:
        async with made(place) as flow:
            calls: list[int] = []
            inner = flow.engine.create_many

            async def counted(jobs: Any) -> Any:
                calls.append(len(jobs))
                return await inner(jobs)

            flow.engine.create.__self__._call = counted  # type: ignore[attr-defined]
            ids = await asyncio.gather(*(flow.create_job({"n": n}) for n in range(1000)))
            assert len(set(ids)) == 1000
            assert len(calls) < 20

    run(story())


def test_a_refused_concurrent_creation_affects_no_other(run: Run, redis_url: str) -> None:
    async def story() -> None:
        queues = [Queue("only", max_length=3)]
        async with Flow("demo", redis_url, queues, events=Events()) as flow:
            made = await asyncio.gather(*(flow.create_job({}) for _ in range(5)), return_exceptions=True)
            assert [type(one).__name__ for one in made].count("QueueFull") == 2
            with pytest.raises(ConfigurationError, match="has no children"):
                await flow.get_children("1", "only")

    run(story())
