"""Waiting for news: none is lost between two calls, and there is none without a reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stowhand.jobs.job import NewJob
from stowhand.stores.sqlite.queue import SqliteStore
from tests.conftest import Run


def test_a_commit_between_two_waits_ends_the_next_wait(path: Path, run: Run) -> None:
    async def scenario() -> None:
        ours, other = SqliteStore(path), SqliteStore(path)
        await ours.open()
        assert not await ours.wait(0.05)
        await other.jobs.enqueue(NewJob(task="t"))
        assert await ours.wait(2)
        while await ours.wait(0.05):
            pass
        assert not await ours.wait(0.05)
        await ours.close()
        await other.close()

    run(scenario())


def test_a_commit_since_the_opening_ends_the_first_wait(path: Path, run: Run) -> None:
    async def scenario() -> None:
        ours, other = SqliteStore(path), SqliteStore(path)
        await ours.open()
        await other.jobs.enqueue(NewJob(task="t"))
        assert await ours.wait(2)
        await ours.close()
        await other.close()

    run(scenario())


def test_an_enqueue_of_this_process_wakes_at_once(path: Path, run: Run) -> None:
    async def scenario() -> None:
        store = SqliteStore(path)
        await store.open()
        waiting = asyncio.create_task(store.wait(10))
        await asyncio.sleep(0)
        await store.jobs.enqueue(NewJob(task="t"))
        # Not even a tick: the very next rounds of the loop.
        for _ in range(3):
            await asyncio.sleep(0)
        assert waiting.done()
        assert await waiting
        await store.close()

    run(scenario())
