"""In the classic layout a queue is one flow's: another's workers would take its jobs for deleted ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.flows import Flow, Queue, Status
from stowhand.protocols.store import ClaimRequest
from tests.conftest import Run
from tests.support.valkey import LiveRedis, RedisServer, find_redis


@pytest.fixture
def look(redis_server: LiveRedis) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


def sending(url: str, name: str, **details: Any) -> Flow:
    flow = Flow(name, url, [Queue("send", next_queue="file"), Queue("file")], events=Events(), **details)
    for queue in ("send", "file"):
        flow.create_workers(queue, lambda job: None, wait_timeout=0.2)
    return flow


async def passed(flow: Flow, job_id: str, last: str = "file") -> None:
    async with asyncio.timeout(30):
        while True:
            (job,) = await flow.get_jobs([job_id])
            assert job is not None
            if job.get("completed-queue") == last:
                return
            await asyncio.sleep(0.02)


def test_a_queue_of_another_flow_is_neither_filled_nor_served_nor_swept(run: Run, redis_url: str) -> None:
    async def story() -> None:
        async with sending(redis_url, "orders") as orders, sending(redis_url, "bills") as bills:
            job = await orders.create_job()
            for use in (bills.create_job, lambda: bills.create_jobs([{}]), bills.start_all, bills.monitor.sweep):
                with pytest.raises(
                    ConfigurationError, match=r"queue 'send' belongs to flow 'orders'.*DEL queue:send:flow"
                ):
                    await use()
            lone = bills.workers[0]
            lone.start()  # by itself
            await lone.ended()
            assert (lone.status, type(lone.error)) == (Status.STOPPED, ConfigurationError)
            await orders.start_all()
            await passed(orders, job)

    run(story())


def test_a_creator_is_refused_when_another_flow_owns_the_queue(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def story() -> None:
        async with sending(redis_url, "orders") as orders, sending(redis_url, "bills") as bills:
            job = await orders.create_job()
            look.delete("queue:send:flow", "queue:file:flow", "queue:send:waiting")
            await bills.create_job()
            for use in (orders.create_job, lambda: orders.create_jobs([{}]), lambda: orders.retry_jobs([job])):
                with pytest.raises(ConfigurationError, match="queue 'send' belongs to flow 'bills'"):
                    await use()
            assert look.keys("job:orders:*") == [f"job:orders:{job}"]

    run(story())


def test_a_failed_job_is_not_put_back_into_a_queue_that_another_flow_owns(
    run: Run, redis_url: str, look: redis.Redis
) -> None:
    """There it would be taken for a deleted one, and would not even have failed any more."""

    async def story() -> None:
        async with sending(redis_url, "orders") as orders:
            job = await orders.create_job()
            look.delete("queue:send:waiting", "queue:send:flow", "queue:file:flow")
            look.hset(f"job:orders:{job}", mapping={"done": "true", "failed": "true", "failedQueue": '"send"'})
        async with sending(redis_url, "bills") as bills, sending(redis_url, "orders") as late:
            await bills.start_all()
            with pytest.raises(ConfigurationError, match="queue 'send' belongs to flow 'bills'"):
                await late.retry_jobs([job])
            assert look.hget(f"job:orders:{job}", "failed") == "true"

    run(story())


def test_one_shared_queue_is_enough_and_then_none_is_taken(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def story() -> None:
        async with sending(redis_url, "orders") as orders:
            await orders.create_job()
            other = Flow("bills", redis_url, [Queue("price", next_queue="file"), Queue("file")], events=Events())
            with pytest.raises(ConfigurationError, match="queue 'file'"):
                await other.create_job()
            await other.close()
        assert set(look.keys("*:flow")) == {"queue:send:flow", "queue:file:flow"}

    run(story())


def test_reading_marks_no_queue_and_a_deleted_mark_frees_a_queue(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def story() -> None:
        async with sending(redis_url, "typo") as typo:
            await typo.monitor.counts()
            await typo.get_jobs(["x"])
            assert look.keys("*:flow") == []
            await typo.create_job()
        for mark in look.keys("*:flow"):
            look.delete(mark)
        async with sending(redis_url, "orders") as orders:
            await orders.start_all()
            await passed(orders, await orders.create_job())

    run(story())


@pytest.mark.parametrize(
    ("one", "other"),
    [({"layout": "priority"}, {"layout": "priority"}), ({}, {"hash_tag": "b"})],
    ids=["priority", "another tag"],
)
def test_flows_may_share_a_queue_name_where_their_jobs_are_distinct(
    run: Run, redis_url: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    async def story() -> None:
        async with sending(redis_url, "orders", **one) as orders, sending(redis_url, "bills", **other) as bills:
            for flow in (orders, bills):
                await flow.start_all()
            for flow in (orders, bills) * 3:
                await passed(flow, await flow.create_job())

    run(story())


def test_lost_owners_of_queues_are_marked_again(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def story() -> None:
        async with sending(redis_url, "orders") as orders:
            await orders.start_all()
            look.flushdb()
            async with asyncio.timeout(30):
                while look.get("queue:send:flow") != "orders":  # noqa: ASYNC110 - asked of the server
                    await asyncio.sleep(0.02)

    run(story())


def test_with_full_memory_unmarked_queues_are_served(run: Run) -> None:
    async def story(server: RedisServer) -> None:
        with server.client() as client:
            async with sending(server.url, "orders") as orders:
                job = await orders.create_job()
                client.delete("queue:send:flow", "queue:file:flow")
                client.config_set("maxmemory", "1")
            async with sending(server.url, "orders") as orders:
                await orders.start_all()
                await passed(orders, job, "send")
                client.config_set("maxmemory", "0")

    with RedisServer(find_redis()) as server:
        run(story(server))


def test_in_the_two_layouts_a_queue_of_one_name_is_swept_and_holds_its_suspects_by_itself(
    run: Run, redis_url: str, look: redis.Redis
) -> None:
    async def story() -> None:
        async with sending(redis_url, "orders") as orders, sending(redis_url, "bills", layout="priority") as bills:
            plain, ranked = [flow.engine.store(flow.shape.find_queue("send"), 30.0, 1.0) for flow in (orders, bills)]
            job, other = await orders.create_job(), await bills.create_job()
            look.lmove("queue:send:1:waiting", "queue:send:1:processing")
            for store in (plain, ranked):
                heartbeats = store.heartbeats()
                await heartbeats.reset_stalled(0.0)
                await heartbeats.close()
            assert look.zrange("queue:send:1:unlocked", 0, -1) == [other], "each of them is looked at in this second"
            look.hset(f"job:orders:{job}", "resets:send", "2")
            assert await plain.claim(asked("a")) == []
            assert await ranked.claim(asked("b", suspects=True)) == [], "to it the other's job would be a deleted one"
            (claim,) = await plain.claim(asked("c", suspects=True))
            assert claim.lease.job_id == job
            for store in (plain, ranked):
                await store.close()

    run(story())


def asked(token: str, **more: Any) -> ClaimRequest:
    return ClaimRequest(worker="w", token=token, limit=10, lease=30.0, **more)
