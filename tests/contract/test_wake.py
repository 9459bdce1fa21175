"""Waking: whatever makes a job claimable ends the wait of a worker in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stowhand.jobs.job import NewJob, State
from stowhand.protocols.queue_store import QueueStore
from tests.contract.needs import cases
from tests.contract.store_harness import ERRORED, SNOOZED, StoreHarness

LONG = 40.0
SHORT = 0.05


async def asleep(harness: StoreHarness, store: QueueStore) -> asyncio.Task[bool]:
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


async def by_enqueue(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    return harness.add


async def by_enqueue_many(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    return lambda: harness.store.jobs.enqueue_many([NewJob(task="t"), NewJob(task="t")])


async def by_retry(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    job = await harness.in_state(State.FAILED)
    return lambda: harness.store.admin.retry(job.id)


async def by_key(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    await harness.add(key="k", delay=600.0)
    return lambda: harness.add(key="k")


async def by_release(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    lease = await harness.start()
    return lambda: harness.heartbeats.release([lease])


async def by_abandon(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    lease = await harness.start()
    return lambda: harness.heartbeats.abandon(lease.token)


async def by_reset(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    await harness.start()
    return lambda: harness.heartbeats.reset_worker("w1")


async def by_stall(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    await harness.start()
    await harness.pass_time(31)
    return lambda: harness.heartbeats.reset_stalled(0.0)


async def by_a_cancellation(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    lease = await harness.start()
    return lambda: harness.store.admin.cancel(lease.job_id)


async def by_a_freed_queue(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    lease = await harness.start(serial="q")
    await harness.add(serial="q")
    return lambda: harness.settle(lease)


async def by_a_queue_freed_by_an_error(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    lease = await harness.start(serial="q")
    await harness.add(serial="q")
    return lambda: harness.settle(lease, ERRORED)


async def by_a_queue_freed_by_a_snooze(harness: StoreHarness) -> Callable[[], Awaitable[object]]:
    lease = await harness.start(serial="q")
    await harness.add(serial="q")
    return lambda: harness.settle(lease, SNOOZED)


CAUSES = [
    by_enqueue,
    by_enqueue_many,
    by_retry,
    by_key,
    by_release,
    by_abandon,
    by_reset,
    by_stall,
    by_a_cancellation,
    by_a_freed_queue,
    by_a_queue_freed_by_an_error,
    by_a_queue_freed_by_a_snooze,
]
NEEDED = {
    by_retry: "retry",
    by_key: "keys",
    by_a_cancellation: "find_canceled",
    by_a_freed_queue: "serials",
    by_a_queue_freed_by_an_error: "serials",
    by_a_queue_freed_by_a_snooze: "serials",
}


@cases("cause", CAUSES, needs=NEEDED)
async def test_a_sleeper_in_another_process_is_woken(
    harness: StoreHarness, cause: Callable[[StoreHarness], Awaitable[Callable[[], Awaitable[object]]]]
) -> None:
    store = await harness.another()
    act = await cause(harness)
    waiting = await asleep(harness, store)
    await act()
    assert await woken(waiting) is True


async def test_a_wait_without_news_ends_after_its_time(harness: StoreHarness) -> None:
    waiting = await asleep(harness, harness.store)
    waiting.cancel()
    assert await harness.store.wait(SHORT) is False


async def test_a_job_enqueued_between_the_claim_and_the_wait_is_not_slept_over(harness: StoreHarness) -> None:
    store = await harness.another()
    waiting = await asleep(harness, store)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert list(await harness.claim()) == []
    await harness.add()
    async with asyncio.timeout(LONG / 2):
        assert await store.wait(LONG) is True


async def test_a_canceled_wait_leaves_the_store_usable(harness: StoreHarness) -> None:
    waiting = await asleep(harness, harness.store)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    waiting = await asleep(harness, harness.store)
    other = await harness.another()
    await other.jobs.enqueue(NewJob(task="t"))
    assert await woken(waiting) is True
    assert len(await harness.claim()) == 1


async def test_every_sleeper_hears_of_many_jobs(harness: StoreHarness) -> None:
    stores = [await harness.another() for _ in range(3)]
    sleepers = [await asleep(harness, store) for store in stores]
    await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(50))
    assert any([await woken(sleeper) for sleeper in sleepers])
