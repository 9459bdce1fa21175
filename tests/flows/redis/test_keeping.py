"""No job ends without a trace: where every worker is ours nothing of it expires before it has ended, and beside the
original what has not ended is renewed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from stowhand.errors import QueueFull
from stowhand.flows.job import FlowJob
from stowhand.jobs.job import State
from stowhand.protocols.flow_shape import FlowShape, Queue
from tests.conftest import Run
from tests.flows.redis.step_harness import Harness, ended, park
from tests.support.flow_bench import FlowBench, flow_bench
from tests.support.valkey import LiveRedis

OWN = [{"layout": "priority"}, {"layout": "priority", "hash_tag": "t"}]
QUEUES = [Queue("first", next_queue="last"), Queue("last")]
FAN = [Queue("parent", next_queue="last", children=[Queue("kid")]), Queue("last")]


@pytest.fixture
def look(redis_server: LiveRedis, redis_url: str) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


def flow(queues: Sequence[Queue] = QUEUES, **more: Any) -> FlowShape:
    return FlowShape(name="demo", queues=tuple(queues), lookup_attributes=("who",), **more)


def nothing(job: FlowJob) -> None:
    """It is done."""


def refuse(job: FlowJob) -> None:
    raise ValueError("no")


@pytest.mark.parametrize("layout", OWN, ids=["priority", "tagged"])
def test_nothing_of_a_job_expires_before_it_has_ended(
    run: Run, redis_url: str, look: redis.Redis, layout: dict[str, Any]
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, flow(**layout), look) as bench:
            first, second = [await bench.create({"who": ["ann", 7]}) for _ in range(2)]
            lists = [bench.key(f"job:demo:who:{who}") for who in ("ann", 7)]
            for queue in ("first", "last"):
                assert [look.ttl(key) for key in (bench.hash_key(first), *lists)] == [-1, -1, -1]
                await bench.work(queue, nothing, 1)
            assert look.ttl(bench.hash_key(first)) > 86_000
            assert [look.ttl(key) for key in lists] == [-1, -1], "the second is to be found there"
            for queue in ("first", "last"):
                await bench.work(queue, refuse if queue == "last" else nothing)
            assert bench.value(second, "failed") is True
            assert all(look.ttl(key) > 86_000 for key in (bench.hash_key(second), *lists))
            assert look.keys("*open:*") == []
            await bench.engine.retry([second])
            assert [look.ttl(key) for key in (bench.hash_key(second), *lists)] == [-1, -1, -1]
            await bench.engine.delete(second)
            assert all(look.ttl(key) > 86_000 for key in lists)

    run(check())


@pytest.mark.parametrize("children", [3, 1200])
def test_children_are_kept_as_long_as_their_parent(run: Run, redis_url: str, look: redis.Redis, children: int) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, flow(FAN, layout="priority"), look) as bench:
            params = [{"childName": "kid"}] * children
            parent = await bench.create({"children:parent:params": params})
            await bench.work("parent")
            kids = json.loads(bench.hash(parent)["children:parent:jobs"])
            await work_off(bench, "parent:kid", children)
            await bench.work("parent")
            assert {look.ttl(key) for key in (kids[0], kids[-1])} == {-1}
            await bench.work("last", nothing)
            for _ in range(2):
                await bench.engine.sweep()
            assert all(look.ttl(key) > 86_000 for key in (bench.hash_key(parent), *kids))

    run(check())


async def work_off(bench: FlowBench, queue: str, jobs: int) -> None:
    claims = await bench.claim(queue, jobs)
    assert len(claims) == jobs
    for claim in claims:
        await bench.end(queue, claim, nothing)


def test_beside_the_original_live_jobs_are_renewed_with_their_lookups(
    run: Run, redis_url: str, look: redis.Redis
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, flow(), look) as bench:
            job, delayed = await bench.create({"who": ["ann", 12345678901234567]}), await bench.create({}, delay=60)
            keys = [bench.hash_key(job), bench.hash_key(delayed), "job:demo:who:ann", "job:demo:who:12345678901234567"]
            for key in keys:
                look.expire(key, 1000)
            await bench.engine.sweep()
            assert not [(key, look.ttl(key)) for key in keys if look.ttl(key) <= 86_000]
            for key in keys:
                look.expire(key, 1000)
            await bench.engine.sweep()
            assert all(look.ttl(key) <= 1000 for key in keys), "a round an eighth of its life"

    run(check())


def test_beside_the_original_children_that_have_ended_live_as_long_as_a_parent_that_waits(
    plain_harness: Harness,
) -> None:
    harness = plain_harness
    lease = harness.start("parent")
    (_, kid), *_ = park(harness, lease)
    harness.settle(harness.take("parent:kid"), ended(), "parent:kid")
    keys = [harness.hash("parent:kid", kid), harness.hash("parent", lease.job_id)]
    for key in keys:
        harness.client.expire(key, 1000)
    harness.sweep("parent", sweeps=1)
    assert all(harness.client.ttl(key) > 86_000 for key in keys)


def test_a_long_list_is_renewed_page_by_page(plain_harness: Harness) -> None:
    ids = plain_harness.add_many(4500)
    with plain_harness.client.pipeline() as pipe:
        for job_id in ids:
            pipe.expire(plain_harness.hash("first", job_id), 1000)
        pipe.execute()
    plain_harness.sweep(sweeps=1)
    first, last = (plain_harness.client.ttl(plain_harness.hash("first", ids[at])) for at in (0, -1))
    assert (first <= 1000, last > 86_000) == (True, True)
    plain_harness.sweep(sweeps=4)
    assert all(plain_harness.client.ttl(plain_harness.hash("first", job_id)) > 86_000 for job_id in ids[::50])


@pytest.mark.parametrize("layout", [{}, OWN[0]], ids=["classic", "priority"])
def test_an_unserved_queue_refuses_jobs_beyond_its_max_length(
    run: Run, redis_url: str, look: redis.Redis, layout: dict[str, Any]
) -> None:
    async def check() -> None:
        shape = flow([Queue("first", max_length=3)], **layout)
        async with flow_bench(redis_url, shape, look) as bench:
            for _ in range(3):
                await bench.create({})
            for _ in range(3):
                await bench.create({}, delay=60)
            before = set(look.keys("*"))
            for delay in (None, 60):
                with pytest.raises(QueueFull, match="queue 'first' holds as many jobs as its max_length, 3"):
                    await bench.create({"who": "ann"}, delay=delay)
            assert set(look.keys("*")) == before
            await bench.work("first", nothing)
            await bench.create({})

    run(check())


def test_the_suspect_that_has_waited_longest_comes_first(harness: Harness) -> None:
    ids = [harness.add() for _ in range(3)]
    for job_id in ids:
        harness.client.hset(harness.hash("first", job_id), "resets:first", 1)
        assert [reset.state for reset in harness.die(harness.take())] == [State.QUEUED]
    assert [harness.take(suspects=True).job_id for _ in ids] == ids
