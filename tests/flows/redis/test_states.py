"""The state of a job in Redis is that of its hash, and is never concluded from missing list entries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, Stage
from stowhand.jobs.lifecycle import Cancel, Retry, Snooze
from stowhand.protocols.queue_store import ActionResult
from tests.conftest import Run
from tests.support.flow_bench import SHAPES, FlowBench, Queue, flow_bench, shape
from tests.support.valkey import LiveRedis

CHAIN = [Queue("first", next_queue="second", max_retries=1), Queue("second", next_queue="third"), Queue("third")]
FAMILY = [Queue("parent", next_queue="last", children=(Queue("kid"),)), Queue("last")]
every_layout = pytest.mark.parametrize("layout", SHAPES)


@pytest.fixture
def look(redis_server: LiveRedis, redis_url: str) -> Iterator[redis.Redis]:
    """How the test looks."""
    with redis_server.client() as client:
        yield client


def nothing(job: FlowJob) -> object:
    """A worker function."""
    return None


def asker(url: str, layout: str, queues: Sequence[Queue]) -> Flow:
    """The same flow as another process declares it."""
    return Flow("demo", url, queues, events=Events(), **SHAPES[layout])  # type: ignore[arg-type]


async def seen(bench: FlowBench, job: str) -> tuple[Stage, str | None]:
    """State and queue, as its creator sees them."""
    (view,) = await bench.engine.views([job])
    assert view is not None
    return view.state, view.queue


@every_layout
def test_a_job_in_an_undeclared_queue_has_not_completed(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        older = [Queue("first", next_queue="second"), Queue("second")]
        async with (
            flow_bench(redis_url, shape(CHAIN, layout), look) as bench,
            asker(redis_url, layout, older) as flow,
        ):
            job = await bench.create({"n": 1})
            for queue in ("first", "second"):
                await bench.work(queue, nothing)
            waiting = await flow.get_job(job)
            assert waiting is not None
            assert (waiting.state, waiting.queue) == (Stage.WAITING, "third")
            (claim,) = await bench.claim("third")
            running = await flow.get_job(job)
            assert running is not None
            assert (running.state, running.queue) == (Stage.PROCESSING, "third")
            result = asyncio.ensure_future(flow.result(job, timeout=20))
            done, _ = await asyncio.wait([result], timeout=0.1)
            assert not done
            await bench.end("third", claim, lambda _: {"x": 1})
            assert (await result)["x"] == 1
            ended = await flow.get_job(job)
            assert ended is not None
            assert (ended.state, ended.queue) == (Stage.COMPLETED, "third")

    run(check())


@every_layout
@pytest.mark.parametrize("kind", ["waiting", "processing", "delayed", "suspects"])
def test_a_job_whose_list_has_vanished_is_lost_and_retry_puts_it_back(
    run: Run, redis_url: str, look: redis.Redis, layout: str, kind: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(CHAIN, layout), look) as bench:
            job = await bench.create({"n": 1}, delay=60 if kind == "delayed" else None)
            if kind == "suspects":
                look.hset(bench.hash_key(job), "resets:first", "2")
            if kind in ("processing", "suspects"):
                await bench.claim("first")
            assert look.delete(bench.queue("first", kind)) == 1
            assert await seen(bench, job) == (Stage.LOST, "first")
            with pytest.raises(TimeoutError):
                async with asker(redis_url, layout, CHAIN) as flow:
                    await flow.result(job, timeout=0.05)
            answers = await bench.engine.retry([job, job])
            assert [(each.result, each.reason) for each in answers] == [
                (ActionResult.DONE, ""),
                (ActionResult.REFUSED, "it has not failed: it is waiting"),
            ]
            assert await bench.work("first", nothing) == 1
            assert await seen(bench, job) == (Stage.WAITING, "second")

    run(check())


@every_layout
def test_a_parent_and_a_child_that_are_lost_are_put_back_and_the_parent_goes_on_once(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout), look) as bench:
            parent = await bench.create({"children:parent:params": [{"childName": "kid"}] * 2})
            await bench.work("parent")
            children = [key.removeprefix(bench.key("job:")) for key in bench.value(parent, "children:parent:jobs")]
            look.delete(bench.queue("parent", "parked"), bench.queue("parent:kid", "waiting"))
            assert [await seen(bench, each) for each in (parent, children[0])] == [
                (Stage.LOST, "parent"), (Stage.LOST, "parent:kid")
            ]  # fmt: skip
            answers = await bench.engine.retry([*children, parent])
            assert [each.result for each in answers] == [ActionResult.DONE] * 3
            await bench.work("parent")
            assert await seen(bench, parent) == (Stage.PARKED, "parent")
            assert await bench.work("parent:kid", nothing) == 2
            await bench.work("parent")
            assert bench.members("last", "waiting") == [parent]
            assert bench.members("parent", "waiting") == []

    run(check())


@every_layout
def test_a_job_that_is_in_a_list_again_is_not_put_back_twice(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    """Two processes have read the same: of one that is lost, too, one puts it back."""

    async def check() -> None:
        async with flow_bench(redis_url, shape(CHAIN, layout), look) as bench:
            job = await bench.create({"n": 1})
            look.delete(bench.queue("first", "waiting"))
            queue, known = bench.engine._jobs._queues["first"], await bench.engine._inspector.find(job)
            assert known is not None
            spot, found = known
            answers = [await bench.engine._jobs._put_back(spot, queue, found, is_lost=True) for _ in range(2)]
            assert [each.result for each in answers] == [ActionResult.DONE, ActionResult.REFUSED]
            assert bench.members("first", "waiting") == [job]

    run(check())


@every_layout
def test_every_move_writes_the_state(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(CHAIN, layout), look) as bench:
            written: list[Any] = []
            job = await bench.create({"n": 1})

            async def work(queue: str, outcome: object) -> None:
                (claim,) = await bench.claim(queue)
                written.append(bench.value(job, "flow:state"))
                await bench.end(queue, claim, lambda _: outcome)
                written.append(bench.value(job, "flow:state"))

            written.append(bench.value(job, "flow:state"))
            await work("first", Retry("again"))
            await work("first", None)
            await work("second", Snooze(60))
            look.zadd(bench.queue("second", "delayed"), {job: 1})
            await work("second", None)
            await work("third", Cancel("not wanted"))
            await bench.engine.retry([job])
            written.append(bench.value(job, "flow:state"))
            await work("third", None)
            assert written == [
                "waiting:first", "processing:first", "waiting:first", "processing:first",
                "waiting:second", "processing:second", "delayed:second", "processing:second",
                "waiting:third", "processing:third", "canceled:third",
                "waiting:third", "processing:third", "completed:third",
            ]  # fmt: skip

    run(check())


def test_a_job_moved_by_the_original_is_found_in_the_lists(run: Run, redis_url: str, look: redis.Redis) -> None:
    """It writes no state. A job that no list has is completed only if its last queue is declared to be the last."""

    async def check() -> None:
        async with flow_bench(redis_url, shape(CHAIN), look) as bench:

            def completed(queue: str, then: str | None) -> None:
                look.hset(bench.hash_key(job), "completed-queue", json.dumps(queue))
                if then is not None:
                    look.rpush(f"queue:{then}:waiting", job)

            job = await bench.create({"n": 1})
            await bench.work("first", nothing)
            assert look.lpop("queue:second:waiting") == job
            completed("second", "third")
            assert await seen(bench, job) == (Stage.WAITING, "third")
            look.delete("queue:third:waiting")
            assert await seen(bench, job) == (Stage.LOST, "third")
            (answer,) = await bench.engine.retry([job])
            assert answer.result is ActionResult.DONE
            assert look.lpop("queue:third:waiting") == job
            completed("third", None)
            assert await seen(bench, job) == (Stage.COMPLETED, "third")

    run(check())


@every_layout
def test_failed_jobs_are_counted_until_they_are_retried_deleted_or_expired(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape([Queue("first"), Queue("other")], layout), look) as bench:
            jobs = [await bench.create({"n": n}) for n in range(4)]

            def refuse(job: FlowJob) -> object:
                raise ValueError("no")

            async def failed() -> int | None:
                (count, *_) = await bench.engine.counts()
                return count.failed

            await bench.work("first", refuse)
            assert await failed() == 4
            await bench.engine.retry(jobs[:1])
            await bench.engine.delete(jobs[1])
            look.delete(bench.hash_key(jobs[2]))
            assert await bench.engine.failed(None, after=None, limit=9) == [jobs[3]]
            await bench.engine.sweep()
            assert await failed() == 1

    run(check())
