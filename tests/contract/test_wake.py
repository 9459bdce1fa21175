"""Waking: whatever makes a job claimable ends the wait of a worker in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.protocols.queue_store import QueueStore
from tests.contract.bench import ERRORED, SNOOZED, Bench

LONG = 40.0
SHORT = 0.05


async def asleep(bench: Bench, store: QueueStore) -> asyncio.Task[bool]:
    """A worker's wait, begun after every hint of the past has been heard."""
    async with asyncio.timeout(LONG):
        while await store.wait(SHORT):
            pass
    waiting = asyncio.create_task(store.wait(LONG))
    await asyncio.sleep(0)
    return waiting


async def woken(waiting: asyncio.Task[bool]) -> bool:
    """Did it end long before its time?"""
    async with asyncio.timeout(LONG / 2):
        return await waiting


async def by_enqueue(bench: Bench) -> Callable[[], Awaitable[object]]:
    return bench.add


async def by_enqueue_many(bench: Bench) -> Callable[[], Awaitable[object]]:
    return lambda: bench.store.enqueue_many([NewJob(task="t"), NewJob(task="t")])


async def by_retry(bench: Bench) -> Callable[[], Awaitable[object]]:
    job = await bench.in_state(State.FAILED)
    return lambda: bench.store.retry(job.id)


async def by_key(bench: Bench) -> Callable[[], Awaitable[object]]:
    await bench.add(key="k", delay=600.0)
    return lambda: bench.add(key="k")


async def by_release(bench: Bench) -> Callable[[], Awaitable[object]]:
    lease = await bench.start()
    return lambda: asyncio.to_thread(bench.heart.release, [lease])


async def by_abandon(bench: Bench) -> Callable[[], Awaitable[object]]:
    lease = await bench.start()
    return lambda: asyncio.to_thread(bench.heart.abandon, lease.token)


async def by_reset(bench: Bench) -> Callable[[], Awaitable[object]]:
    await bench.start()
    return lambda: asyncio.to_thread(bench.heart.reset_worker, "w1")


async def by_stall(bench: Bench) -> Callable[[], Awaitable[object]]:
    await bench.start()
    await bench.pass_time(31)
    return lambda: asyncio.to_thread(bench.heart.reset_stalled, 0.0)


async def by_a_freed_queue(bench: Bench) -> Callable[[], Awaitable[object]]:
    lease = await bench.start(queue="q")
    await bench.add(queue="q")
    return lambda: bench.settle(lease)


async def by_a_queue_freed_by_an_error(bench: Bench) -> Callable[[], Awaitable[object]]:
    lease = await bench.start(queue="q")
    await bench.add(queue="q")
    return lambda: bench.settle(lease, ERRORED)


async def by_a_queue_freed_by_a_snooze(bench: Bench) -> Callable[[], Awaitable[object]]:
    lease = await bench.start(queue="q")
    await bench.add(queue="q")
    return lambda: bench.settle(lease, SNOOZED)


CAUSES = [
    by_enqueue,
    by_enqueue_many,
    by_retry,
    by_key,
    by_release,
    by_abandon,
    by_reset,
    by_stall,
    by_a_freed_queue,
    by_a_queue_freed_by_an_error,
    by_a_queue_freed_by_a_snooze,
]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
async def test_a_sleeper_in_another_process_is_woken(
    bench: Bench, cause: Callable[[Bench], Awaitable[Callable[[], Awaitable[object]]]]
) -> None:
    store = await bench.another()
    act = await cause(bench)
    waiting = await asleep(bench, store)
    await act()
    assert await woken(waiting) is True


async def test_a_wait_without_news_ends_after_its_time(bench: Bench) -> None:
    waiting = await asleep(bench, bench.store)
    waiting.cancel()
    assert await bench.store.wait(SHORT) is False


async def test_a_job_enqueued_between_the_claim_and_the_wait_is_not_slept_over(bench: Bench) -> None:
    store = await bench.another()
    waiting = await asleep(bench, store)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert list(await bench.claim()) == []
    await bench.add()
    async with asyncio.timeout(LONG / 2):
        assert await store.wait(LONG) is True


async def test_a_canceled_wait_leaves_the_store_usable(bench: Bench) -> None:
    waiting = await asleep(bench, bench.store)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    waiting = await asleep(bench, bench.store)
    other = await bench.another()
    await other.enqueue(NewJob(task="t"))
    assert await woken(waiting) is True
    assert len(await bench.claim()) == 1


async def test_every_sleeper_hears_of_many_jobs(bench: Bench) -> None:
    stores = [await bench.another() for _ in range(3)]
    sleepers = [await asleep(bench, store) for store in stores]
    await bench.store.enqueue_many(NewJob(task="t") for _ in range(50))
    assert any([await woken(sleeper) for sleeper in sleepers])
