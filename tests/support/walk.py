"""What one job enters on the loop's thread, from enqueue to settled, counted by a profiler.

Of a store of your own: ``python -m tests.support.walk postgresql:///name`` prints files and functions, and each file.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from types import FrameType

from stowhand import App, WorkerOptions
from stowhand.app.app import task_handler
from stowhand.clock import Clock, SystemClock
from stowhand.events import Events
from stowhand.jobs.job import State
from stowhand.protocols.queue_store import QueueStore
from stowhand.stores.url import open_store
from stowhand.worker.worker import Worker
from tests.support.sources import PACKAGE

Entered = set[tuple[str, int]]
"""File below the package, and the line at which the function begins."""


async def walk(store: QueueStore, clock: Clock, until_idle: Callable[[], Awaitable[object]]) -> Entered:
    """Of a worker that is made and idle. ``until_idle``: returns when it may have done what there is to do."""
    app = App(store=store)

    @app.task
    async def send(to: str) -> None: ...

    await app.open()
    worker = Worker(store, task_handler(app), WorkerOptions(), clock=clock, events=Events())
    running = asyncio.create_task(worker.run())
    await until_idle()
    entered: Entered = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(PACKAGE)) and "/testing/" not in file:
            entered.add((file.removeprefix(f"{PACKAGE}/"), frame.f_code.co_firstlineno))

    sys.setprofile(note)
    try:
        job = await send.enqueue("someone")
        await until_idle()
    finally:
        sys.setprofile(None)
    done = await store.jobs.get(job.id)
    assert done is not None
    assert done.state is State.COMPLETED
    worker.stop()
    while not running.done():
        await until_idle()
    await running
    await app.close()
    return entered


async def _report(url: str) -> None:
    store = open_store(url)
    await store.open()
    entered = await walk(store, SystemClock(), lambda: asyncio.sleep(0.5))
    await store.close()
    files = sorted({file for file, _ in entered})
    sys.stdout.write("\n  ".join([f"{len(files)} files, {len(entered)} functions", *files]) + "\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_report(sys.argv[1]))
