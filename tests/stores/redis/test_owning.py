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
from tests.conftest import Run
from tests.support.valkey import LiveRedis


@pytest.fixture
def look(redis_server: LiveRedis) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


def sending(url: str, name: str, **details: Any) -> Flow:
    flow = Flow(name, url, [Queue("send", next_queue="file"), Queue("file")], events=Events(), **details)
    for queue in ("send", "file"):
        flow.create_workers(queue, lambda job: None, wait_timeout=0.2)
    return flow


async def passed(flow: Flow, job_id: str) -> None:
    async with asyncio.timeout(30):
        while True:
            (job,) = await flow.get_jobs([job_id])
            assert job is not None
            if job.get("completed-queue") == "file":
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


def test_who_only_looks_takes_nothing_and_who_is_gone_is_told_off(run: Run, redis_url: str, look: redis.Redis) -> None:
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
def test_flows_may_name_a_queue_alike_where_their_jobs_are_told_apart(
    run: Run, redis_url: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    async def story() -> None:
        async with sending(redis_url, "orders", **one) as orders, sending(redis_url, "bills", **other) as bills:
            for flow in (orders, bills):
                await flow.start_all()
            for flow in (orders, bills) * 3:
                await passed(flow, await flow.create_job())

    run(story())


def test_a_server_that_has_forgotten_whose_they_are_is_told_again(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def story() -> None:
        async with sending(redis_url, "orders") as orders:
            await orders.start_all()
            look.flushdb()
            async with asyncio.timeout(30):
                while look.get("queue:send:flow") != "orders":  # noqa: ASYNC110 - asked of the server
                    await asyncio.sleep(0.02)

    run(story())
