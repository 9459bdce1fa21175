"""Retries of failed jobs in Redis, and refusals with their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from stowhand.flows.job import FlowJob, Stage
from stowhand.jobs.lifecycle import Cancel
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import Claim
from tests.conftest import Run
from tests.support.flow_bench import SHAPES, FlowBench, Queue, flow_bench, shape
from tests.support.valkey import LiveRedis

FLOW = [
    Queue("first", next_queue="parent", max_retries=1),
    Queue("parent", next_queue="last", children=(Queue("kid"),)),
    Queue("last"),
]
KIDS = [{"childName": "kid", "n": n} for n in range(2)]
every_layout = pytest.mark.parametrize("layout", SHAPES)


@pytest.fixture
def look(redis_server: LiveRedis, redis_url: str) -> Iterator[redis.Redis]:
    """How the test looks."""
    with redis_server.client() as client:
        yield client


def refuse(job: FlowJob) -> object:
    """A worker function."""
    raise ValueError("no")


async def retried(bench: FlowBench, job: str) -> tuple[ActionResult, str]:
    """What became of it, and why."""
    (answer,) = await bench.engine.retry([job])
    assert answer.job_id == job
    return answer.result, answer.reason


@every_layout
def test_a_retried_job_starts_again_in_its_queue(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FLOW, layout, lookup=("k",)), look) as bench:
            job = await bench.create({"k": 1})
            before = bench.hash(job)
            for _ in range(2):
                await bench.work("first", refuse)
            assert bench.value(job, "failedErrorMsg") == "no"
            assert bench.value(job, "retries:first") == 1
            behind = await bench.create({"k": 2})
            look.hset(bench.hash_key(job), "resets:first", 1)
            for key in (bench.hash_key(job), bench.key("job:demo:k:1")):
                look.expire(key, 100)

            assert await retried(bench, job) == (ActionResult.DONE, "")
            assert bench.hash(job) == before
            assert bench.members("first", "waiting") == [behind, job]
            for key in (bench.hash_key(job), bench.key("job:demo:k:1")):
                assert bench.lives(key)
            assert await retried(bench, job) == (ActionResult.REFUSED, "it has not failed: it is waiting")
            for _ in range(2):
                await bench.work("first", refuse)
            assert bench.value(job, "failed") is True

    run(check())


def test_a_canceled_job_can_be_retried_at_its_priority(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape([Queue("first", priorities=2)], "priority"), look) as bench:
            job = await bench.create({}, priority=2)
            await bench.work("first", lambda _: Cancel("not wanted"))
            assert bench.value(job, "canceled") is True
            assert await retried(bench, job) == (ActionResult.DONE, "")
            assert bench.value(job, "canceled") is None
            assert bench.members("first", "waiting", 2) == [job]

    run(check())


def test_a_failure_that_the_original_wrote_with_quotes_counts(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FLOW), look) as bench:
            job = await bench.create({})
            look.delete("queue:first:waiting")
            look.hset(f"job:demo:{job}", mapping={"done": '"true"', "failed": '"true"', "failedQueue": '"last"'})
            (known,) = await bench.engine.views([job])
            assert known is not None
            assert (known.state, known.queue) == (Stage.FAILED, "last")
            assert await retried(bench, job) == (ActionResult.DONE, "")
            assert bench.members("last", "waiting") == [job]

    run(check())


@every_layout
def test_a_retry_of_a_live_or_unknown_job_is_refused(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FLOW, layout), look) as bench:
            waiting = await bench.create({})
            strange = await bench.create({})
            look.hset(bench.hash_key(strange), mapping={"failed": "true", "failedQueue": '"parent:kid"'})
            before = {key: look.dump(key) for key in bench.all_keys()}
            answers = await bench.engine.retry([waiting, "no-such", "demo:none", strange])
            assert [answer.result for answer in answers] == [
                ActionResult.REFUSED,
                ActionResult.MISSING,
                ActionResult.MISSING,
                ActionResult.REFUSED,
            ]
            assert "not a queue of this flow that it can be in" in answers[3].reason
            assert {key: look.dump(key) for key in bench.all_keys()} == before

    run(check())


@every_layout
def test_one_of_two_concurrent_retries_puts_the_job_back(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FLOW, layout), look) as bench:
            job = await bench.create({})
            for _ in range(2):
                await bench.work("first", refuse)
            jobs, queue = bench.engine._jobs, bench.engine._jobs._queues["first"]
            read = await bench.engine._inspector.find(job)  # both have read the same
            assert read is not None
            spot, known = read
            answers = [await jobs._put_back(spot, queue, known, is_lost=False) for _ in range(2)]
            assert [answer.result for answer in answers] == [ActionResult.DONE, ActionResult.REFUSED]
            assert bench.members("first", "waiting") == [job]

    run(check())


# -- children


async def fan_out(bench: FlowBench) -> tuple[str, str, str, Claim[Any]]:
    """A parent that waits for its first child, the claim of that; the second one has failed."""
    parent = await bench.create({"children:parent:params": KIDS})
    await bench.work("first", lambda _: None)
    await bench.work("parent")
    first, second = [key.removeprefix(bench.key("job:")) for key in bench.value(parent, "children:parent:jobs")]
    running, claim = await bench.claim("parent:kid")
    await bench.end("parent:kid", claim, refuse)
    return parent, first, second, running


@every_layout
def test_a_failed_child_is_waited_for_again(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FLOW, layout), look) as bench:
            parent, _, second, running = await fan_out(bench)
            assert await retried(bench, second) == (ActionResult.DONE, "")
            await bench.end("parent:kid", running, lambda _: None)
            assert bench.members("parent", "parked") == [parent]
            assert await bench.work("parent:kid", lambda _: {"x": 1}) == 1
            assert bench.members("parent", "parked") == []
            await bench.work("parent")
            assert [child.get("failed") for child in bench.value(parent, "children:parent:results")] == [None, None]

    run(check())


@every_layout
def test_a_woken_parent_waits_for_a_retried_child(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FLOW, layout), look) as bench:
            parent, _, second, running = await fan_out(bench)
            await bench.end("parent:kid", running, lambda _: None)
            assert bench.members("parent", "waiting") == [parent]
            assert await retried(bench, second) == (ActionResult.DONE, "")
            await bench.work("parent")
            assert bench.members("parent", "parked") == [parent]
            await bench.work("parent:kid", lambda _: None)
            await bench.work("parent")
            assert bench.members("last", "waiting") == [parent]

    run(check())


@every_layout
def test_a_child_whose_parent_has_gone_on_is_not_put_back(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FLOW, layout), look) as bench:
            parent, _, second, running = await fan_out(bench)
            await bench.end("parent:kid", running, lambda _: None)
            (claim,) = await bench.claim("parent")
            assert await retried(bench, second) == (
                ActionResult.REFUSED, "its parent is running; try again"
            )  # fmt: skip
            await bench.end("parent", claim)
            assert "has continued" in (await retried(bench, second))[1]
            look.hdel(bench.hash_key(second), "parent")
            assert "its parent is unknown" in (await retried(bench, second))[1]
            look.hset(bench.hash_key(second), "parent", '"gone"')
            assert await retried(bench, second) == (ActionResult.REFUSED, "its parent was deleted")
            assert bench.members("parent:kid", "waiting") == []
            assert bench.members("last", "waiting") == [parent]

    run(check())


@every_layout
def test_children_live_as_long_as_a_retried_parent(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FLOW, layout), look) as bench:
            parent, *children, _ = await fan_out(bench)
            look.hset(bench.hash_key(parent), mapping={"failed": "true", "failedQueue": '"parent"'})
            look.zrem(bench.queue("parent", "parked"), parent)
            for child in children:
                look.expire(bench.hash_key(child), 100)
            assert await retried(bench, parent) == (ActionResult.DONE, "")
            assert all(bench.lives(bench.hash_key(child)) for child in children)

    run(check())
