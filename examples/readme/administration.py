"""What an administrator does with jobs by their ids. Jobs that run are left alone; what was changed comes back.

DATABASE_URL=postgresql:///my_db python examples/readme/administration.py
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from stowhand.runner import make_worker_utils

NOBODY = 99


async def main() -> None:
    async with await make_worker_utils() as utils:
        await utils.migrate()
        one, two, three = [job.id for job in await utils.add_jobs([{"identifier": "work"} for _ in range(3)])]

        completed = await utils.complete_jobs([one, NOBODY])
        print("completed:", [job.id for job in completed])

        failed = await utils.permanently_fail_jobs([two, NOBODY], "no such customer")
        print("failed:", [(job.id, job.last_error) for job in failed])

        rescheduled = await utils.reschedule_jobs(
            [two, three, NOBODY],
            run_at=datetime(2035, 2, 2, 2, 2, 2, tzinfo=UTC),
            priority=5,
            attempts=5,
            max_attempts=25,
        )
        print("rescheduled:", [(job.id, job.attempts, job.max_attempts, job.priority) for job in rescheduled])


asyncio.run(main())
