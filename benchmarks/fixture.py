"""Cost of the fixture `jobs` for a test on a store in memory: python benchmarks/fixture.py

Processor time of this process, the median of many tests: of set-up, call and tear-down, each as the plugin does it; and
the threads and event loops that one test makes, the test's own included. The goal is less than 10 ms.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click

sys.path[:0] = [str(Path(__file__).parents[1] / "src")]

from stowhand import App  # noqa: E402
from stowhand.testing.clock import ManualClock  # noqa: E402
from stowhand.testing.jobs import Jobs, jobs_of  # noqa: E402

WARM_UP_JOBS = 20
app = App("sqlite:///never-made.db")
made = {"threads": 0, "loops": 0}


@app.task
async def send(to: str) -> None:
    """Task that runs on the loop."""


@app.task
def mail(to: str) -> None:
    """Task that runs in a thread."""


def nothing(jobs: Jobs) -> None:
    """Test that uses the fixture without a job."""


def coroutine(jobs: Jobs) -> None:
    """Test without a loop, with an `async def` task."""
    app.sync.enqueue(send, "x")
    assert len(jobs.drain()) == 1


def function(jobs: Jobs) -> None:
    """Test without a loop, with a `def` task, which runs in a thread."""
    app.sync.enqueue(mail, "x")
    assert len(jobs.drain()) == 1


def in_a_loop(jobs: Jobs) -> None:
    """Test with its own loop, as pytest-asyncio and anyio run it."""

    async def scenario() -> None:
        await send.enqueue("x")
        assert len(await jobs.adrain()) == 1

    asyncio.run(scenario())


def hour(jobs: Jobs) -> None:
    """Test that moves time to a job due in an hour."""
    app.sync.enqueue(send.options(delay="1h"), "x")
    assert len(jobs.advance("1h")) == 1


def measure(test: Callable[[Jobs], None]) -> tuple[float, float, float]:
    """Return the milliseconds of set-up, call and tear-down."""
    moments = [time.process_time()]
    with jobs_of(app, "memory", ManualClock(), None, Path()) as jobs:
        moments.append(time.process_time())
        test(jobs)
        moments.append(time.process_time())
    moments.append(time.process_time())
    first, second, third, last = moments
    return (second - first) * 1e3, (third - second) * 1e3, (last - third) * 1e3


def count() -> None:
    """Start counting."""
    start, loop = threading.Thread.start, asyncio.DefaultEventLoopPolicy.new_event_loop

    def counted_start(self: threading.Thread) -> None:
        made["threads"] += 1
        start(self)

    def counted_loop(self: asyncio.DefaultEventLoopPolicy) -> asyncio.AbstractEventLoop:
        made["loops"] += 1
        return loop(self)

    threading.Thread.start = counted_start  # type: ignore[method-assign]
    asyncio.DefaultEventLoopPolicy.new_event_loop = counted_loop  # type: ignore[method-assign]


@click.command()
@click.option("--tests", default=200, show_default=True)
def main(tests: int) -> None:
    """Print a line for each kind of test."""
    count()
    for test in (nothing, coroutine, function, in_a_loop, hour):
        for _ in range(WARM_UP_JOBS):
            measure(test)
        made.update(threads=0, loops=0)
        parts = [measure(test) for _ in range(tests)]
        setup, call, teardown = (statistics.median(part) for part in zip(*parts, strict=True))
        whole = statistics.median(map(sum, parts))
        things = ", ".join(f"{name} {number / tests:.0f}" for name, number in made.items())
        print(f"{test.__name__:<10} {whole:5.2f} ms: {setup:.2f} + {call:.2f} + {teardown:.2f}; {things}")


if __name__ == "__main__":
    main()
