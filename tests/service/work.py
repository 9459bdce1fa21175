"""Tasks for the tests of processes: innocent ones, one that kills its worker, one that will not stop."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from stowhand.retry import constant
from stowhand.service.app import App
from stowhand.tasks.context import Context

app = App()


@app.task(name="innocent")
async def innocent(number: int, pause: float = 0.0) -> int:
    """Do no harm."""
    await asyncio.sleep(pause)
    return number


@app.task(name="killer", backoff=constant(0.0))
async def killer() -> None:
    """What a crash in a C extension does to a process."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="who_am_i")
async def who_am_i(context: Context) -> dict[str, int]:
    """Where it ran."""
    return {"pid": os.getpid(), "attempt": context.attempt}


@app.task(name="stubborn")
async def stubborn(seconds: float) -> None:
    """Ignore every wish to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            continue


@app.task(name="slow_thread")
def slow_thread(seconds: float) -> None:
    """A thread that cannot be stopped."""
    time.sleep(seconds)


@app.task(name="blocker")
async def blocker(seconds: float) -> None:
    """Block the event loop."""
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
