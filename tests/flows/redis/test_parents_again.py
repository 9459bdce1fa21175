"""A job that comes to a parent's queue more than once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from stowhand.flows import FlowJob, FlowShape, Queue
from stowhand.protocols.queue_store import ActionResult
from tests.conftest import Run
from tests.support.flow_bench import flow_bench
from tests.support.valkey import LiveRedis

PARAMS = "children:parent:params"


@pytest.fixture
def look(redis_server: LiveRedis) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture(params=["classic", "priority"])
def shape(request: pytest.FixtureRequest) -> FlowShape:
    parent = Queue("parent", next_queue="check", children=[Queue("kid")])
    return FlowShape(name="demo", queues=(parent, Queue("check")), layout=request.param)


def kids(*numbers: int) -> dict[str, Any]:
    return {PARAMS: [{"childName": "kid", "n": n} for n in numbers]}


def square(job: FlowJob) -> dict[str, Any]:
    return {"square": job["n"] ** 2}


def test_each_time_it_fans_out_anew(run: Run, redis_url: str, look: redis.Redis, shape: FlowShape) -> None:
    async def story() -> None:
        async with flow_bench(redis_url, shape, look) as bench:
            job = await bench.create(kids(1))
            for _ in range(3):
                await bench.work("parent")
                await bench.work("parent:kid", square)
                await bench.work("parent")
                await bench.work("check", again)
            assert values == [[1], [4, 9], []]
            assert bench.members("parent", "waiting") == [job]

    values: list[Sequence[int]] = []
    following = iter(((2, 3), (), (4,)))

    def again(job: FlowJob) -> dict[str, Any]:
        values.append([child["square"] for child in job["children:parent:results"]])
        return {"next_queue": "parent"} | kids(*next(following))

    run(story())


def test_a_parent_does_not_create_its_children_twice_before_it_moves_on(
    run: Run, redis_url: str, look: redis.Redis, shape: FlowShape
) -> None:
    """The original writes the results first, and may die before it moves the job."""

    async def story() -> None:
        async with flow_bench(redis_url, shape, look) as bench:
            job = await bench.create(kids(5))
            await bench.work("parent")
            await bench.work("parent:kid", square)
            instance = bench.value(job, "children:parent:jobs")
            look.hset(bench.hash_key(job), "children:parent:results", "[]")
            look.hset(bench.hash_key(job), "completed-queue", '"parent"')
            await bench.work("parent")
            assert bench.value(job, "children:parent:jobs") == instance
            assert bench.members("check", "waiting") == [job]
            assert [child["square"] for child in bench.value(job, "children:parent:results")] == [25]

    run(story())


def test_results_of_an_earlier_run_are_deleted_while_a_parent_waits_again(
    run: Run, redis_url: str, look: redis.Redis, shape: FlowShape
) -> None:
    async def story() -> None:
        async with flow_bench(redis_url, shape, look) as bench:
            job = await bench.create(kids(1))
            await bench.work("parent")
            await bench.work("parent:kid", square)
            await bench.work("parent")
            await bench.work("check", lambda _: {"next_queue": "parent"} | kids(2))
            await bench.work("parent")
            assert bench.value(job, "children:parent:results") is None
            assert bench.members("parent", "parked") == [job]

    run(story())


def test_a_child_of_an_earlier_run_is_not_put_back(
    run: Run, redis_url: str, look: redis.Redis, shape: FlowShape
) -> None:
    """The parent has continued without it, and waits for others now."""

    def fail(job: FlowJob) -> None:
        raise ValueError("no")

    async def story() -> None:
        async with flow_bench(redis_url, shape, look) as bench:
            job = await bench.create(kids(1))
            await bench.work("parent")
            (old,) = [key.removeprefix("job:") for key in bench.value(job, "children:parent:jobs")]
            await bench.work("parent:kid", fail)
            await bench.work("parent")
            await bench.work("check", lambda _: {"next_queue": "parent"} | kids(2))
            before = await bench.engine.retry([old])
            await bench.work("parent")
            for answer in (*before, *await bench.engine.retry([old])):
                assert (answer.result, "has continued" in answer.reason) == (ActionResult.REFUSED, True)
            assert bench.value(job, "children:parent:open") == 1
            assert bench.value(old, "failed") is True

    run(story())
