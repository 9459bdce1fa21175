"""What a task is given besides its payload: the job, a logger, a connection, and a way to enqueue.

DATABASE_URL=postgresql:///my_db python examples/readme/helpers_of_a_task.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from stowhand.runner import Helpers, make_worker_utils, run_once


async def ask(payload: Any, helpers: Helpers) -> None:
    async def one(connection: Any) -> Any:
        cursor = await connection.execute("select 1 as one")
        return await cursor.fetchone()

    print("lent connection:", (await helpers.with_pg_client(one))[0])
    (row,) = await helpers.query("select %s::int + 1 as sum", [41])
    print("query:", row["sum"], "for", payload)
    print("attempt", helpers.job.attempts, "of", helpers.job.max_attempts)
    await helpers.add_job("answer", {"sum": row["sum"]}, job_key=f"answer of {helpers.job.id}")


def answer(payload: Any) -> None:
    print("answer:", payload["sum"])


async def main() -> None:
    async with await make_worker_utils() as utils:
        await utils.migrate()
        await utils.add_job("ask", {"of": "the ultimate question"})
    await run_once(task_list={"ask": ask, "answer": answer})


asyncio.run(main())
