"""Jobs among keys of other programs, and parents during an outage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from stowhand.errors import StoreError
from stowhand.flows.job import FlowJob
from stowhand.protocols.queue_store import ActionResult
from tests.conftest import Run
from tests.support.flow_bench import Queue, flow_bench, shape
from tests.support.redis_proxy import RedisProxy
from tests.support.valkey import LiveRedis

PLAIN = [Queue("first", next_queue="second"), Queue("second")]
FAMILY = [Queue("parent", next_queue="last", children=(Queue("kid"),)), Queue("last")]
ODD = "\udcff\udcfe"
"""An id of bytes that are not UTF-8."""


@pytest.fixture
def look(redis_server: LiveRedis, redis_url: str) -> Iterator[redis.Redis]:
    """How the test looks."""
    with redis_server.client() as client:
        yield client


def kids(**given: Any) -> dict[str, Any]:
    """Attributes of a job with one child."""
    return {"children:parent:params": [{"childName": "kid", **given}]}


def refuse(job: FlowJob) -> object:
    """A worker function."""
    raise ValueError("no")


@pytest.mark.parametrize("bad", ["job:demo:k:2", "queue:first:waiting", "queue:first:delayed"])
def test_a_key_of_a_wrong_type_leaves_nothing_of_any_new_job(
    run: Run, redis_url: str, look: redis.Redis, bad: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN, lookup=("k",)), look) as bench:
            look.set(bad, "somebody else's")
            jobs = [bench.new({"k": k}, delay=60.0 if k == 3 else None) for k in (1, 2, 3)]
            with pytest.raises(StoreError, match="WRONGTYPE"):
                await bench.engine.create_many(jobs)
            assert bench.all_keys() == {bad}

    run(check())


def test_a_job_with_a_delay_longer_than_its_life_lives_until_its_start(
    run: Run, redis_url: str, look: redis.Redis
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN, lookup=("k",)), look) as bench:
            late = await bench.create({"k": 1}, delay=3 * 86_400.0)
            await bench.create({"k": 1})
            for key in (bench.hash_key(late), "job:demo:k:1"):
                assert 4 * 86_390 < look.ttl(key) <= 4 * 86_400

    run(check())


def test_a_job_with_a_lookup_of_a_wrong_type_can_be_deleted(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN, lookup=("k", "l")), look) as bench:
            job = await bench.create({"k": 1, "l": 2})
            look.delete("job:demo:k:1")
            look.set("job:demo:k:1", "somebody else's")
            assert await bench.engine.delete(job) is True
            assert bench.all_keys() == {"job:demo:k:1"}

    run(check())


def test_an_id_that_is_not_valid_text_can_be_retried_and_deleted(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN), look) as bench:
            failed: dict[Any, Any] = {"n": "1", "done": "true", "failed": "true", "failedQueue": '"first"'}
            look.hset(b"job:demo:\xff\xfe", mapping=failed)
            (answer,) = await bench.engine.retry([ODD])
            assert answer.result is ActionResult.DONE
            assert look.execute_command("LREM", "queue:first:waiting", 1, b"\xff\xfe") == 1
            assert await bench.engine.delete(ODD) is True
            assert look.exists(b"job:demo:\xff\xfe") == 0

    run(check())


def test_a_retry_that_cannot_be_queued_leaves_the_job_failed(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN), look) as bench:
            job = await bench.create()
            await bench.work("first", refuse)
            look.set("queue:first:waiting", "somebody else's")
            with pytest.raises(StoreError, match="WRONGTYPE"):
                await bench.engine.retry([job])
            assert bench.value(job, "failed") is True

    run(check())


def test_a_parent_survives_an_outage_while_it_gathers(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with RedisProxy(redis_url) as proxy, flow_bench(proxy.url, shape(FAMILY), look) as bench:
            job = await bench.create(kids(n=1))
            await bench.work("parent")
            await bench.work("parent:kid")
            proxy.cut("request", b"HGETALL", times=4)
            await bench.work("parent")
            assert bench.members("parent", "delayed") == [job]
            look.zadd("queue:parent:delayed", {job: 1})
            await bench.work("parent")
            assert bench.members("last", "waiting") == [job]
            assert look.hexists(bench.hash_key(job), "failed") is False

    run(check())


def test_a_child_with_the_parameter_done_is_waited_for(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY), look) as bench:
            job = await bench.create(kids(n=1, done=True))
            await bench.work("parent")
            assert bench.members("parent", "parked") == [job]
            await bench.work("parent:kid")
            await bench.work("parent")
            assert [child["n"] for child in bench.value(job, "children:parent:results")] == [1]

    run(check())


@pytest.mark.parametrize("text", ["no json", b"\xff"], ids=["text", "bytes"])
def test_a_correlation_id_that_is_no_json_is_not_passed_on(
    run: Run, redis_url: str, look: redis.Redis, text: str | bytes
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY), look) as bench:
            job = await bench.create(kids(n=1))
            look.hset(bench.hash_key(job), "correlationId", text)
            await bench.work("parent")
            assert await bench.work("parent:kid") == 1
            assert bench.members("parent", "waiting") == [job]

    run(check())
