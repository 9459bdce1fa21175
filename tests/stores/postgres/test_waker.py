"""With ``notify="later"`` workers are woken after the commits of jobs, by few transactions, and as surely."""

from __future__ import annotations

import asyncio
from typing import Any

from stowhand.clock import SystemClock
from stowhand.errors import StoreUnreachable
from stowhand.jobs.job import NewJob
from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.stores.postgres.queue.waker import LateWaker
from tests.stores.postgres.test_idle_announcer import asleep, heard, listening
from tests.stores.postgres.verbs import claim

JOB = NewJob(task="t")
LATER = StoreOptions(notify="later")


def test_jobs_committed_during_a_wake_up_share_the_next_one(run: Any) -> None:
    gates: list[asyncio.Event] = []

    async def notify() -> None:
        gates.append(asyncio.Event())
        await gates[-1].wait()

    async def begun(count: int) -> None:
        async with asyncio.timeout(60):
            while len(gates) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def story() -> None:
        waker = LateWaker(notify, SystemClock())
        waker.wake()
        await begun(1)
        for _ in range(3):
            waker.wake()
        gates[0].set()
        await begun(2)
        gates[1].set()
        await waker.close()
        assert len(gates) == 2

    run(story())


def test_a_wake_up_that_fails_is_not_the_last(run: Any) -> None:
    calls = 0

    async def notify() -> None:
        nonlocal calls
        calls += 1
        raise StoreUnreachable("the server restarts")

    async def story() -> None:
        waker = LateWaker(notify, SystemClock())
        for number in (1, 2):
            waker.wake()
            await waker.close()
            assert calls == number

    run(story())


def test_a_sleeper_is_woken_after_the_commit(store: PostgresStore, postgres_url: str, run: Any) -> None:
    async def story() -> None:
        producing = PostgresStore(postgres_url, LATER)
        async with asleep(store) as waiting:
            await producing.jobs.enqueue(JOB)
            assert await asyncio.wait_for(waiting, 20) is True
            assert len(await claim(store)) == 1
        async with asleep(store) as waiting:
            await asyncio.gather(*(producing.jobs.enqueue(JOB) for _ in range(20)))
            assert await asyncio.wait_for(waiting, 20) is True
        async with asleep(store) as waiting:
            await producing.jobs.enqueue_many([JOB, JOB])
            assert await asyncio.wait_for(waiting, 20) is True
        await producing.close()
        await store.close()

    run(story())


def test_who_enqueues_and_ends_has_woken_somebody(store: PostgresStore, postgres_url: str, run: Any) -> None:
    async def story() -> None:
        with listening(postgres_url) as bystander:
            async with asleep(store):
                producing = PostgresStore(postgres_url, LATER)
                await producing.jobs.enqueue(JOB)
                await producing.close()
                assert heard(bystander) == 1
            await store.close()

    run(story())


def test_the_transaction_of_the_job_itself_notifies_nobody(store: PostgresStore, postgres_url: str, run: Any) -> None:
    """A slow notification delays nobody's commit: here it never comes, and the job is there."""

    async def story() -> None:
        with listening(postgres_url) as bystander:
            async with asleep(store) as waiting:
                producing = PostgresStore(postgres_url, LATER)
                never = asyncio.Event()
                producing.jobs._late_waker = LateWaker(never.wait, SystemClock())
                await producing.jobs.enqueue(JOB)
                await producing.jobs.enqueue_many([JOB])
                assert heard(bystander) == 0
                assert len(await claim(store, 2)) == 2, "as a poll finds it"
                waiting.cancel()
                never.set()
                await producing.close()
            await store.close()

    run(story())
