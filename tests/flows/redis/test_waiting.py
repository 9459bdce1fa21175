"""An idle worker blocks on its lists, hears of whatever arrives, and takes nothing by it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from stowhand.errors import StoreUnreachable
from stowhand.flows.redis.store import FlowStore
from stowhand.protocols.store import ClaimRequest
from tests.flows.redis.step_harness import LEASE, Harness, new_token
from tests.support.valkey import RedisServer, find_redis

SOON = 15.0
"""Seconds; a wait that is not woken lasts longer."""


async def asleep(store: FlowStore, blocked: Callable[[], int], count: int = 1) -> asyncio.Task[bool]:
    """A wait whose connections are blocked on the server."""
    waiting = asyncio.create_task(store.wait(30.0))
    await until(lambda: blocked() >= count)
    return waiting


async def until(is_so: Callable[[], bool]) -> None:
    """Poll the server, which cannot notify a test."""
    async with asyncio.timeout(SOON):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def woken(waiting: asyncio.Task[bool]) -> bool:
    async with asyncio.timeout(SOON):
        return await waiting


def blocked(harness: Harness) -> Callable[[], int]:
    """How many clients block just now, beside those that did before."""
    before = harness.client.info("clients")["blocked_clients"]
    return lambda: int(harness.client.info("clients")["blocked_clients"]) - int(before)


def test_any_push_ends_a_wait_without_claiming_the_job(harness: Harness) -> None:
    async def scene() -> None:
        waiting = await asleep(
            harness.new_store("first", wait_timeout=30.0), blocked(harness), 1 if harness.variant == "classic" else 3
        )
        ids.append(harness.add())
        assert await woken(waiting) is True

    ids: list[str] = []
    harness.run(scene())
    assert (harness.ids(kind="moved"), harness.ids()) == (ids, [])
    assert harness.ids(kind="processing") == []
    assert harness.claim()[0].lease.job_id == ids[0], "of whoever claims first"


def test_one_job_wakes_one_of_many_sleepers(harness: Harness) -> None:
    async def scene() -> None:
        each = 1 if harness.variant == "classic" else 3
        stores, now_blocked = [harness.new_store("first", wait_timeout=30.0) for _ in range(5)], blocked(harness)
        waits = [await asleep(store, now_blocked, each * (at + 1)) for at, store in enumerate(stores)]
        for number in range(1, 4):
            harness.add()
            await until(lambda number=number: sum(wait.done() for wait in waits) == number)  # type: ignore[misc]
            await until(lambda number=number: now_blocked() == each * (5 - number))  # type: ignore[misc]
        for store in stores:
            await store.close()

    harness.run(scene())


def test_a_job_that_its_woken_worker_does_not_claim_wakes_another_without_a_reset(harness: Harness) -> None:
    async def scene() -> None:
        first, second = [harness.new_store("first", wait_timeout=30.0) for _ in range(2)]
        frozen = await asleep(first, blocked(harness), 1 if harness.variant == "classic" else 3)
        job_id = harness.add()
        assert await woken(frozen)
        waiting = asyncio.create_task(second.wait(30.0))
        await second.sweep()
        assert await woken(waiting)
        (claim,) = await second.claim(ClaimRequest(worker="w", token=new_token(), limit=1, lease=LEASE))
        assert (claim.lease.job_id, claim.resets) == (job_id, 0)

    harness.run(scene())


@pytest.mark.parametrize("harness", ["priority"], indirect=True)
def test_every_priority_is_heard(harness: Harness) -> None:
    async def scene() -> None:
        now_blocked = blocked(harness)
        waiting = await asleep(harness.new_store("first", wait_timeout=30.0), now_blocked, 3)
        harness.add(priority=3)
        assert await woken(waiting) is True
        await until(lambda: now_blocked() == 0)  # the others' connections are let go

    harness.run(scene())


def original(harness: Harness, stop: threading.Event, taken: list[str]) -> None:
    """Its worker's loop: it moves what it gets."""
    while not stop.is_set():
        moved = harness.client.blmove(
            harness.keys.waiting("first"), harness.keys.processing("first"), 0.2, "LEFT", "RIGHT"
        )
        if moved is not None:
            taken.append(moved)


def test_several_sleepers_and_a_worker_of_the_original_lose_nothing(plain_harness: Harness) -> None:
    harness = plain_harness
    jobs: list[str] = []
    taken: list[str] = []
    stop = threading.Event()

    async def sleeper(store: FlowStore, heard: list[bool]) -> None:
        while not stop.is_set():
            store._waiter.claimed(dry=True)
            heard.append(await store.wait(0.3))
            await store.sweep()  # nobody claims here: what has woken one of them is for others again

    async def scene() -> None:
        stores = [harness.new_store("first", wait_timeout=30.0) for _ in range(3)]
        heard: list[bool] = []
        sleepers = [asyncio.create_task(sleeper(store, heard)) for store in stores]
        for number in range(200):
            jobs.append(harness.add(n=number))
            if number % 20 == 0:
                await asyncio.sleep(0.01)
        while not any(heard):
            jobs.append(harness.add())
            await asyncio.sleep(0.01)
        await until(lambda: len(taken) == len(jobs))
        stop.set()
        await asyncio.gather(*sleepers)

    workers = [threading.Thread(target=original, args=(harness, stop, taken)) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        harness.run(scene())
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert sorted(taken) == sorted(jobs), "each exactly once"
    assert sorted(harness.ids(kind="processing")) == sorted(jobs)
    assert harness.ids() == []


def test_a_cancelled_wait_loses_no_job_and_the_next_one_is_woken(plain_harness: Harness) -> None:
    harness = plain_harness

    async def scene() -> None:
        store = harness.new_store("first", wait_timeout=30.0)
        for number in range(20):
            waiting = asyncio.create_task(store.wait(30.0))
            await asyncio.sleep(0 if number % 2 else 0.002)
            ids.append(harness.add())
            waiting.cancel()
            await asyncio.wait([waiting])
            await store.claim(ClaimRequest(worker="w", token=new_token(), limit=1, lease=LEASE, tasks=()))
        assert await woken(asyncio.create_task(store.wait(30.0))) is True
        claims = await store.claim(ClaimRequest(worker="w", token=new_token(), limit=100, lease=LEASE))
        assert [claim.lease.job_id for claim in claims] == ids

    ids: list[str] = []
    harness.run(scene())


def test_a_busy_worker_makes_no_unnecessary_calls(plain_harness: Harness) -> None:
    harness = plain_harness

    async def scene() -> None:
        store = harness.new_store("first", wait_timeout=30.0)
        for _ in range(3):
            harness.add()
        request = ClaimRequest(worker="w", token=new_token(), limit=2, lease=LEASE)
        assert len(await store.claim(request)) == 2
        assert await store.wait(0.05) is False  # there is one; but the worker is full, and would only spin
        assert len(await store.claim(request)) == 1
        harness.add()
        assert await store.wait(30.0) is True
        assert await store.wait(0.05) is False  # told once, until the claim that follows

    harness.run(scene())


def test_a_store_is_not_listening_until_its_server_answers_again() -> None:
    with RedisServer(find_redis()) as server, server.client() as client:
        harness = Harness(server.url, client)
        store = harness.new_store("first", wait_timeout=0.05)
        server.stop("kill")
        with pytest.raises(StoreUnreachable):
            harness.run(store.wait(1.0))
        heard = [store.is_listening]
        server.start()
        assert harness.run(store.wait(1.0)) is False
        assert [*heard, store.is_listening] == [False, True]
        harness.close()


def test_a_wait_ends_after_its_time_and_at_the_latest_after_the_wait_timeout(plain_harness: Harness) -> None:
    async def scene() -> None:
        store = plain_harness.new_store("first", wait_timeout=0.05)
        async with asyncio.timeout(SOON):
            assert await store.wait(30.0) is False
        assert store.is_listening

    plain_harness.run(scene())


def test_a_store_that_closes_ends_its_wait_at_once(harness: Harness) -> None:
    async def scene() -> None:
        store = harness.new_store("first", wait_timeout=30.0)
        waiting = await asleep(store, blocked(harness))
        await store.close()
        assert await woken(waiting) is False

    harness.run(scene())
