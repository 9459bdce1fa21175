"""Delayed jobs start in the order of their moments, and at them, in an idle flow as in one that was paused."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sized
from typing import Any

from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, Limiter, Queue
from tests.conftest import Run
from tests.flows.harness import until

LATE = 0.04
"""Seconds, of half of them; of 19 in 20 no more than 0.05 are promised where the machine has nothing else to do."""
TRIES = 5
"""A machine that is busy with others is late now and then; what waits for a poll is late each time."""


async def reached(started: Sized, number: int) -> bool:
    return len(started) >= number


def test_delayed_jobs_start_in_their_order_and_at_their_moments(run: Run, place: str) -> None:
    started: dict[int, float] = {}

    async def step(job: FlowJob) -> Any:
        started[job["n"]] = time.time()

    async def late(flow: Flow) -> list[float]:
        """By how much each job started after its moment, the least first; they started in order."""
        started.clear()
        due = {n: time.time() + 0.8 + 0.05 * n for n in (3, 1, 0, 4, 2, *range(5, 15))}
        latest: dict[int, float] = {}  # the server counts the delay from when it hears of it
        for n, moment in due.items():
            begun = time.time()
            await flow.create_job({"n": n}, delay=max(moment - begun, 0.0))
            latest[n] = moment + time.time() - begun
        is_early = time.time() < min(due.values())
        await until(lambda: reached(started, len(due)))
        if not is_early:  # the first were due before the last was made
            return [math.inf]
        order = list(started)
        pairs = [(one, other) for one in due for other in due if latest[one] < due[other]]
        assert all(order.index(one) < order.index(other) for one, other in pairs), (started, latest)
        return sorted(started[n] - latest[n] for n in due)

    async def story() -> None:
        flow = Flow("demo", place, queues=[Queue("only")], events=Events())
        flow.create_workers("only", step, wait_timeout=30)
        async with flow:
            await flow.start_all()
            tries: list[list[float]] = []
            while not tries or tries[-1][len(tries[-1]) // 2] >= LATE:
                assert len(tries) < TRIES, tries
                tries.append(await late(flow))

    run(story())


def test_a_limiter_has_its_full_reservoir_after_a_pause(run: Run, place: str) -> None:
    started: list[float] = []

    async def step(job: FlowJob) -> Any:
        started.append(time.time())

    async def lost(flow: Flow) -> float:
        """Seconds beyond those for which the limiter keeps jobs from starting."""
        started.clear()
        await flow.create_jobs({} for _ in range(50))
        await flow.start_all()
        await until(lambda: reached(started, 10))
        await flow.halt()
        done = len(started)
        await asyncio.sleep(0.7)
        await flow.start_all()
        again = time.time()
        await until(lambda: reached(started, 50))
        windows = -(-(50 - done) // 10) + 1
        return time.time() - again - windows * 0.3

    async def story() -> None:
        queues = [Queue("only", limiter=Limiter(reservoir=10, interval=0.3))]
        flow = Flow("demo", place, queues=queues, events=Events())
        flow.create_workers("only", step, count=5)
        async with flow:
            tries: list[float] = []
            while not tries or tries[-1] >= 0.5:
                assert len(tries) < TRIES, tries
                tries.append(await lost(flow))
                await flow.halt()

    run(story(), 60)
