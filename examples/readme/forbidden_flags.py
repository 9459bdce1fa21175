"""Jobs bear flags; a worker leaves some alone: by a list, by a function, by an asynchronous one.

DATABASE_URL=postgresql:///my_db python examples/readme/forbidden_flags.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from stowhand.runner import make_worker_utils, run_once

full = {"customer:1"}
"""Refreshed now and then in a real program; the function must be quick."""


def remembered() -> Sequence[str]:
    return sorted(full)


async def asked() -> Sequence[str] | None:
    await asyncio.sleep(0)
    return None if not full else sorted(full)


async def main() -> None:
    ran: list[str] = []

    def deliver(payload: dict[str, Any]) -> None:
        ran.append(payload["to"])

    async with await make_worker_utils() as utils:
        await utils.migrate()
        for forbidden in ([*full], remembered, asked, None):
            await utils.add_job("deliver", {"to": "customer 1"}, flags=["customer:1"], job_key="customer 1")
            await utils.add_job("deliver", {"to": "customer 2"}, flags=["customer:2"])
            ran.clear()
            await run_once(task_list={"deliver": deliver}, forbidden_flags=forbidden)
            print(sorted(ran))


asyncio.run(main())
