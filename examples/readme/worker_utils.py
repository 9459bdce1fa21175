"""Enqueueing without a worker: one ``WorkerUtils`` for the whole program.

DATABASE_URL=postgresql:///my_db python examples/readme/worker_utils.py
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta

from stowhand.runner import make_worker_utils

URL = os.environ.get("DATABASE_URL", "postgresql:///my_db")


async def main() -> None:
    utils = await make_worker_utils(connection_string=URL)
    try:
        await utils.migrate()

        plain = await utils.add_job("calculate-life-meaning", {"value": 42})
        detailed = await utils.add_job(
            "task_2",
            {"foo": "bar"},
            queue_name="one-after-another",
            run_at=datetime.now(UTC) + timedelta(days=2),
            priority=-1,
            max_attempts=5,
            job_key="task_2 of the day",
            job_key_mode="replace",
            flags=["customer:1"],
        )
        print(plain.id, plain.task, plain.payload)
        print(detailed.id, detailed.serial, detailed.key, *detailed.flags)
    finally:
        await utils.release()


asyncio.run(main())
