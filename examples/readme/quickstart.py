"""A worker and a job in one program: what quickstart.sh does with commands.

DATABASE_URL=postgresql:///my_db python examples/readme/quickstart.py
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from stowhand.runner import Helpers, quick_add_job, run

URL = os.environ.get("DATABASE_URL", "postgresql:///my_db")


async def hello(payload: dict[str, Any], helpers: Helpers) -> None:
    helpers.logger.info(f"Hello, {payload['name']}")


async def main() -> None:
    runner = await run(
        connection_string=URL,
        concurrency=5,
        no_handle_signals=False,  # TERM and Ctrl-C stop it gracefully
        poll_interval=1,  # seconds
        task_list={"hello": hello},  # or task_directory="tasks"
    )
    await quick_add_job({"connection_string": URL}, "hello", {"name": "Bobby Tables"})
    await runner.promise  # until it is stopped; raises what broke it


asyncio.run(main())
