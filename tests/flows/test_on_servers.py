"""Whole flows on real servers of Redis: clusters, outages, failovers, full memory, connections that break."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from stowhand.clock import stopwatch
from stowhand.errors import StoreError, StoreUnreachable
from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, Limiter, Queue, Status
from stowhand.flows.redis.server import SCRIPTS
from tests.conftest import Run
from tests.flows.harness import NAMES, WAIT, Passed, chain, counting, holding_first, patient, through
from tests.support.logs import lines_of
from tests.support.redis_proxy import Cut, RedisProxy
from tests.support.valkey import RedisServer, find_redis
from tests.support.valkey_groups import RedisCluster, RedisPair, RedisSentinel


@pytest.fixture(scope="session")
def always_server() -> Iterator[RedisServer]:
    """One that loses nothing it has confirmed."""
    with RedisServer(find_redis(), appendonly="always") as server:
        yield server


@pytest.fixture
def passed() -> Passed:
    """How often each job was executed in each queue."""
    return Counter()


# -- many


def test_a_thousand_jobs_pass_three_queues_once_by_eight_slots(run: Run, redis_url: str, passed: Passed) -> None:
    async def story() -> None:
        async with chain(redis_url, counting(passed), counts=(3, 3, 2)) as flow:
            ids = await flow.create_jobs({"n": n} for n in range(1000))
            await flow.start_all()
            await through(flow, ids, passed)
            assert [job and job["by-third"] for job in await flow.get_jobs(ids)] == list(range(1000))

    run(story())


def test_a_flow_with_children_and_a_limiter_in_a_cluster_that_forgets_its_scripts(run: Run) -> None:
    with RedisCluster(find_redis()) as cluster:

        def forget() -> None:
            for node in cluster.servers:
                with node.client() as client:
                    client.script_flush()

        def fan_out(job: FlowJob) -> dict[str, Any]:
            forget()
            return {"children:parent:params": [{"childName": "kid", "n": n} for n in range(3)]}

        def kid(job: FlowJob) -> dict[str, Any]:
            forget()
            return {"square": job["n"] ** 2}

        queues = [
            Queue("first", next_queue="parent"),
            Queue("parent", next_queue="third", children=[Queue("kid", limiter=Limiter(reservoir=5, interval=0.3))]),
            Queue("third"),
        ]
        flow = Flow("demo", cluster.url, queues, ["user"], hash_tag="demo", events=Events())
        flow.create_workers("first", fan_out, count=2, wait_timeout=WAIT)
        flow.create_parent_workers("parent", wait_timeout=WAIT)
        flow.create_child_workers("parent", "kid", kid, count=4, wait_timeout=WAIT)
        flow.create_workers("third", lambda job: {"sum": sum(k["square"] for k in job["children:parent:results"])})

        async def story() -> None:
            async with flow:
                await flow.start_all()
                ids = await flow.create_jobs({"user": "u"} for _ in range(4))
                await through(flow, ids)
                assert [job["sum"] for job in await flow.get_jobs_by_key("user", "u")] == [5] * 4

        run(story())


# -- servers that go away


@pytest.mark.durable
def test_workers_continue_after_five_outages_without_losing_a_job(
    run: Run, always_server: RedisServer, passed: Passed
) -> None:
    always_server.flush()

    async def story() -> None:
        ids: list[str] = []
        async with chain(always_server.url, counting(passed), lock_time=100) as flow:
            await flow.start_all()
            for turn in range(5):
                ids += await flow.create_jobs({"n": n} for n in range(20))
                await asyncio.to_thread(always_server.stop, "kill")  # in the middle of them
                await asyncio.sleep(2 * WAIT)
                await asyncio.to_thread(always_server.start)
                began = stopwatch()
                ids.append(await patient(partial(flow.create_job, {"n": turn})))
                await patient(partial(through, flow, ids))
                assert stopwatch() - began < 50  # less than a lock lives: what was held is known, and settled
            assert {worker.status for worker in flow.workers} == {Status.RUNNING}
        assert set(passed) == {(job, name) for job in ids for name in NAMES}

    run(story(), timeout=90)


@pytest.mark.durable
def test_workers_that_start_while_a_replica_is_being_promoted_wait_for_that(
    run: Run, always_server: RedisServer, passed: Passed
) -> None:
    """The owners of the queues are not marked yet, and cannot be marked."""
    always_server.flush()

    async def story() -> None:
        async with chain(always_server.url, counting(passed)) as flow:
            with always_server.client() as client:
                client.replicaof("127.0.0.1", "1")
                try:
                    await flow.start_all()
                    with pytest.raises(StoreUnreachable, match="replica"):
                        await flow.create_job({"n": 1})
                finally:
                    client.replicaof("NO", "ONE")
            await through(flow, await flow.create_jobs([{"n": 1}]), passed)

    run(story())


def test_work_continues_after_a_server_has_lost_everything(run: Run, passed: Passed) -> None:
    held, go_on, step = holding_first(passed)

    async def story(server: RedisServer) -> None:
        async with chain(server.url, step) as flow:
            lost = await flow.create_jobs({"n": 0} for _ in range(5))
            await flow.start_all()
            await held.acquire()
            await asyncio.to_thread(server.restart, "kill")
            go_on.set()  # what runs ends, and has no job any more
            kept = await patient(lambda: flow.create_jobs({"n": n} for n in range(1, 30)))
            await patient(partial(through, flow, kept))
            assert await flow.get_jobs(lost) == [None] * 5
            assert {worker.status for worker in flow.workers} == {Status.RUNNING}
            assert [passed[job, "third"] for job in kept] == [1] * len(kept)

    with RedisServer(find_redis()) as server:
        run(story(server))


def test_workers_follow_the_primary_with_what_they_hold_though_old_connections_stand(run: Run, passed: Passed) -> None:
    held, go_on, step = holding_first(passed)

    async def story(pair: RedisPair) -> None:
        async with RedisProxy(pair.primary.url) as proxy, chain(proxy.url, step) as flow:
            await flow.start_all()
            ids = await flow.create_jobs({"n": n} for n in range(6))
            for _ in range(2):
                await held.acquire()
            await asyncio.to_thread(pair.wait_for_replica)
            pair.promote()
            with pair.primary.client() as old:
                old.replicaof("127.0.0.1", str(pair.replica.port))  # and with all that it has
            proxy.lead_to(pair.replica.url)
            go_on.set()
            ids.append(await patient(partial(flow.create_job, {"n": 6})))
            await patient(partial(through, flow, ids, passed))

    with RedisPair(find_redis()) as pair:
        run(story(pair))


def test_a_running_flow_survives_its_primary_with_sentinels(run: Run, passed: Passed) -> None:
    held, go_on, step = holding_first(passed)

    async def story(pair: RedisPair, sentinel: RedisSentinel) -> None:
        async with chain(sentinel.url, step) as flow:
            await flow.start_all()
            ids = await flow.create_jobs({"n": n} for n in range(6))
            for _ in range(2):
                await held.acquire()
            await asyncio.to_thread(pair.wait_for_replica)
            await asyncio.to_thread(pair.primary.stop, "kill")
            sentinel.hurry()
            go_on.set()
            ids.append(await patient(partial(flow.create_job, {"n": 6})))
            await patient(partial(through, flow, ids, passed))
            assert {worker.status for worker in flow.workers} == {Status.RUNNING}

    with RedisPair(find_redis()) as pair, RedisSentinel(find_redis(), pair) as sentinel:
        run(story(pair, sentinel), timeout=60)


# -- memory


def test_with_full_memory_a_job_is_refused_and_workers_continue(run: Run, passed: Passed) -> None:
    held, go_on, step = holding_first(passed)

    async def story(server: RedisServer) -> None:
        async with chain(server.url, step) as flow:
            await flow.start_all()
            ids = await flow.create_jobs({"n": n} for n in range(10))
            await held.acquire()
            with server.client() as client:
                client.config_set("maxmemory", "1")
                with pytest.raises(StoreError, match="maxmemory") as refused:
                    await flow.create_job({"n": 10})
                assert not isinstance(refused.value, StoreUnreachable)  # again is of no use until somebody acts
                go_on.set()
                await asyncio.sleep(2 * WAIT)  # while they try to write the ends of what they did
                client.config_set("maxmemory", "0")
            await through(flow, ids, passed)

    with RedisServer(find_redis()) as server:
        run(story(server))


def test_a_flow_warns_at_its_start_of_a_server_that_evicts_keys(run: Run) -> None:
    full = RedisServer(find_redis(), appendonly="always", maxmemory="100mb", maxmemory_policy="allkeys-lru")
    with full as server, lines_of("warning", "json") as lines:

        async def story() -> None:
            flow = Flow("demo", server.url, queues=[Queue("only")])
            flow.create_workers("only", lambda job: None)
            await flow.start_all()
            await flow.stop_all()

        run(story())
        # A loop that is held up by the machine is warned of too.
        (told,) = [line for line in lines.getvalue().splitlines() if "The event loop is blocked" not in line]
        assert "set maxmemory-policy noeviction" in told


# -- connections


@pytest.mark.parametrize("script", ["claim", "settle"])
@pytest.mark.parametrize("what", ["request", "middle", "reply"])
def test_an_interrupted_call_neither_loses_nor_repeats_a_job(
    run: Run, redis_url: str, passed: Passed, script: str, what: Cut
) -> None:
    async def story() -> None:
        async with RedisProxy(redis_url) as proxy, chain(proxy.url, counting(passed)) as flow:
            await flow.start_all()
            ids = [await flow.create_job({"n": 0})]
            await through(flow, ids)  # the server knows every script now
            proxy.cut(what, SCRIPTS[script].sha.encode(), times=3)
            ids += await flow.create_jobs({"n": n} for n in range(20))
            await through(flow, ids, passed)
            assert proxy.broken == 3

    run(story())
