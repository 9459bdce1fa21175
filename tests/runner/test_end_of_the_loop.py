"""A program whose ``asyncio.run`` ends beside a running worker: its jobs are back in the queue before it returns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from stowhand import App
from stowhand.jobs.job import Job, State
from stowhand.runner import run

started: list[asyncio.Event] = []
beside: set[asyncio.Task[None]] = set()


async def long(payload: dict[str, str]) -> None:
    started[0].set()
    await asyncio.Event().wait()


async def runner_beside(url: str) -> None:
    runner = await run(connection_string=url, task_list={"long": long}, no_handle_signals=True)
    await runner.add_job("long")


async def block_beside(url: str) -> None:
    app = App(url)
    app.task(long)
    await app.open(install=True)

    async def serve() -> None:
        async with app, app.run_in_background(grace=60.0):
            await app.add_job("long")
            await asyncio.Event().wait()

    beside.add(asyncio.create_task(serve()))


async def worker_beside(url: str) -> None:
    app = App(url)
    app.task(long)
    await app.open(install=True)
    await app.add_job("long")

    async def work() -> None:
        async with app:
            await app.worker().run()

    beside.add(asyncio.create_task(work()))


@pytest.mark.parametrize("start", [runner_beside, block_beside, worker_beside])
def test_the_end_of_asyncio_run_returns_running_jobs(
    url: str, start: Callable[[str], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async def program() -> None:
        started[:] = [asyncio.Event()]
        await start(url)
        await asyncio.wait_for(started[0].wait(), 60)

    async def look() -> Job:
        async with App(url) as app:
            job = await (await app.open()).jobs.get(1)
            assert job is not None
            return job

    with caplog.at_level(logging.INFO, "stowhand"):
        asyncio.run(program())
    lines = [record.getMessage() for record in caplog.records]
    beside.clear()
    job = asyncio.run(look())
    assert (job.state, job.attempts, job.resets) == (State.QUEUED, 0, 0)
    assert [line for line in lines if "blocked" in line] == []
    stopping, returned = (
        next(n for n, line in enumerate(lines) if word in line) for word in ("Stopping now", "Returned task 1")
    )
    assert stopping < returned
