"""A key makes one job of many events: debounce, throttle, dedupe, remove.

DATABASE_URL=postgresql:///my_db python examples/readme/keys.py
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from stowhand.runner import WorkerUtils, make_worker_utils

NOON = datetime(2035, 1, 1, 12, 0, tzinfo=UTC)
LATER = datetime(2035, 1, 1, 12, 5, tzinfo=UTC)


async def debounce(utils: WorkerUtils) -> None:
    """Each event moves the run time on: it runs once it has been quiet."""
    await utils.add_job("index", {"count": 1}, job_key="index home", run_at=NOON)
    job = await utils.add_job("index", {"count": 2}, job_key="index home", run_at=LATER)
    print("debounce:", job.id, job.payload, job.run_at.astimezone(UTC).strftime("%H:%M"))


async def throttle(utils: WorkerUtils) -> None:
    """The first event sets the run time, later ones only the payload: it runs at most once in a while."""
    await utils.add_job("count", {"count": 1}, job_key="count home", run_at=NOON)
    job = await utils.add_job("count", {"count": 2}, job_key="count home", run_at=LATER, job_key_mode="preserve_run_at")
    print("throttle:", job.id, job.payload, job.run_at.astimezone(UTC).strftime("%H:%M"))


async def dedupe(utils: WorkerUtils) -> None:
    """Whatever job has the key stays as it is, even one that runs or has failed: the event may have no effect."""
    await utils.add_job("mail", {"count": 1}, job_key="mail home", run_at=NOON)
    job = await utils.add_job("mail", {"count": 2}, job_key="mail home", run_at=LATER, job_key_mode="unsafe_dedupe")
    print("dedupe:", job.id, job.payload, job.run_at.astimezone(UTC).strftime("%H:%M"))


async def main() -> None:
    async with await make_worker_utils() as utils:
        await utils.migrate()
        await debounce(utils)
        await throttle(utils)
        await dedupe(utils)
        print("removed:", (await utils.remove_job("index home")).result)
        print("again:", (await utils.remove_job("index home")).result)


asyncio.run(main())
