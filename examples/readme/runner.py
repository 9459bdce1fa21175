"""A runner enqueues, tells what happens, and stops.

DATABASE_URL=postgresql:///my_db python examples/readme/runner.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from stowhand.runner import run


async def test_task(payload: dict[str, Any]) -> None:
    assert payload["this_is_the_payload"]


async def main() -> None:
    # Nothing names a database here: DATABASE_URL, or PGDATABASE and its companions.
    runner = await run(task_list={"test_task": test_task}, name="worker-1")
    completed = asyncio.Event()

    runner.events.on(
        "job:success", lambda event: print(f"Hooray! Worker {event.worker.worker_id} completed job {event.job.id}")
    )
    runner.events.on("job:complete", lambda event: completed.set())

    await runner.add_job("test_task", {"this_is_the_payload": True})
    await completed.wait()
    await runner.stop()


asyncio.run(main())
