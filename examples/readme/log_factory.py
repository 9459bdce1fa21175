"""Log lines go where the program wants: its own function for each scope.

DATABASE_URL=postgresql:///my_db python examples/readme/log_factory.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from stowhand.runner import Helpers, Logger, make_worker_utils, run_once


def log_factory(scope: Mapping[str, Any]) -> Callable[[str, str, Mapping[str, Any] | None], None]:
    """Called once for each scope: ``label``, ``worker_id``, ``task_identifier``, ``job_id``, and what was added."""

    def log(level: str, message: str, meta: Mapping[str, Any] | None) -> None:
        if scope["label"] == "job":
            print(level, "|", message, "|", scope["task_identifier"], scope["job_id"], scope.get("step"), "|", meta)

    return log


async def task_2(payload: Any, helpers: Helpers) -> None:
    helpers.logger.debug(f"received {payload}")
    helpers.logger.info("half of it", {"percent": 50})
    helpers.logger.warn("slowly")
    helpers.logger.scope({"step": "last"}).error("given up")


async def main() -> None:
    async with await make_worker_utils() as utils:
        await utils.migrate()
        await utils.add_job("task_2", {"foo": "bar"})
    await run_once(logger=Logger(log_factory), task_list={"task_2": task_2})


asyncio.run(main())
