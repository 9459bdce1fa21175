"""Tools for tests of whole flows: a flow of three queues, and waits until its jobs have passed them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stowhand.errors import StoreUnreachable
from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, Queue
from stowhand.flows.step_handler import WorkerFunction

NAMES = ("first", "second", "third")
WAIT = 0.2
"""Seconds for which an idle worker blocks in these tests."""
Passed = Counter[tuple[str, str]]
"""Number of executions of each job in each queue."""


def counting(passed: Passed) -> WorkerFunction:
    async def step(job: FlowJob) -> dict[str, Any]:
        passed[job.id, job.queue] += 1
        await asyncio.sleep(0)
        return {f"by-{job.queue}": job["n"]}

    return step


def holding_first(passed: Passed) -> tuple[asyncio.Semaphore, asyncio.Event, WorkerFunction]:
    """Return a worker function that counts, and holds each job in ``first`` until the returned event is set.

    The returned semaphore is released once for each held job.
    """
    held, go_on = asyncio.Semaphore(0), asyncio.Event()
    count = counting(passed)

    async def step(job: FlowJob) -> Any:
        if job.queue == "first":
            held.release()
            await go_on.wait()
        return await count(job)  # type: ignore[misc]

    return held, go_on, step


def chain(url: str, function: WorkerFunction, *, counts: Sequence[int] = (2, 2, 2), lock_time: float = 10) -> Flow:
    """Return a flow of three queues without retries: a job that was lost and reset has failed."""
    following = (*NAMES[1:], None)
    queues = [Queue(name, next_queue=then) for name, then in zip(NAMES, following, strict=True)]
    flow = Flow("demo", url, queues=queues, events=Events())
    for name, count in zip(NAMES, counts, strict=True):
        flow.create_workers(name, function, count=count, lock_time=lock_time, wait_timeout=WAIT)
    return flow


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    while not await reached():  # noqa: ASYNC110 - the server must be queried
        await asyncio.sleep(0.02)


async def through(flow: Flow, ids: Sequence[str], passed: Passed | None = None, last: str = "third") -> None:
    """Wait until each job has completed the last queue. ``passed``: assert one execution in every queue."""

    async def reached() -> bool:
        jobs = await flow.get_jobs(ids)
        assert not [job for job in jobs if job is None or "failed" in job], jobs
        return all(job is not None and job.get("completed-queue") == last for job in jobs)

    await until(reached)
    if passed is not None:
        assert passed == dict.fromkeys(((job, name) for job in ids for name in NAMES), 1)
    counts = await flow.monitor.counts()
    assert not [each for each in counts if each.waiting or each.processing or each.delayed or each.parked]


async def patient(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call until the store can be reached."""
    while True:
        try:
            return await call()
        except StoreUnreachable:
            await asyncio.sleep(0.02)
