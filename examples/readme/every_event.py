"""Every event that an emitter may tell of, and which of them a good day has.

DATABASE_URL=postgresql:///my_db python examples/readme/every_event.py
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from stowhand.runner import WorkerEvents, run

EVENTS: dict[str, tuple[str, ...]] = {
    "pool:create": ("worker_pool",),
    "pool:listen:connecting": ("worker_pool",),
    "pool:listen:success": ("worker_pool", "client"),
    "pool:listen:error": ("worker_pool", "error", "client"),
    "pool:release": ("pool",),
    "pool:gracefulShutdown": ("pool", "message"),
    "pool:gracefulShutdown:error": ("pool", "error"),
    "worker:create": ("worker", "tasks"),
    "worker:release": ("worker",),
    "worker:stop": ("worker", "error"),
    "worker:getJob:start": ("worker",),
    "worker:getJob:error": ("worker", "error"),
    "worker:getJob:empty": ("worker",),
    "worker:fatalError": ("worker", "error", "job_error"),
    "job:start": ("worker", "job"),
    "job:success": ("worker", "job"),
    "job:error": ("worker", "job", "error"),
    "job:failed": ("worker", "job", "error"),
    "job:complete": ("worker", "job", "error"),
    "gracefulShutdown": ("signal",),
    "stop": (),
}


async def work(payload: dict[str, Any]) -> None:
    if payload["fails"]:
        raise ValueError("as it was told to")


async def main() -> None:
    heard: list[str] = []
    ended: set[int] = set()
    listening = asyncio.Event()
    events: Any = WorkerEvents()  # made before the runner, so that it hears the first events too

    def listener(name: str) -> Any:
        def listen(event: Any) -> None:
            for key in EVENTS[name]:
                getattr(event, key)
            heard.append(name)

        return listen

    def complete(event: Any) -> None:
        ended.add(event.job.id)
        if len(ended) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    for name in EVENTS:
        events.on(name, listener(name))
    events.on("job:complete", complete)
    events.on("pool:listen:success", lambda event: listening.set())
    runner = await run(events=events, concurrency=2, task_list={"work": work})
    await listening.wait()
    await runner.add_job("work", {"fails": False})
    await runner.add_job("work", {"fails": True}, max_attempts=1)
    await runner.promise
    print("first:", heard[0])
    print("last:", heard[-1])
    for name in EVENTS:
        print(name, "heard" if name in heard else "not heard")


asyncio.run(main())
