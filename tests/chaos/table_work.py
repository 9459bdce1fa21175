"""A worker process of the table's chaos test: ``URL``. Its handler's effect is a row in the same database."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

from stowhand import Worker, WorkerOptions, run_all
from stowhand.handler import Attempt
from stowhand.service.exit_codes import OK
from stowhand.table import Resetter, ResetterOptions, TableOptions, TableStore

OPTIONS: TableOptions[dict[str, Any]] = TableOptions(
    name="chaos",
    table_name="records",
    transactional=True,
    stalled_max_age=1.5,
    heartbeat_interval=0.4,
    max_num_retries=50,
    retry_after=0.05,
    max_resets=50,
)


async def handle(ctx: Attempt[Any], record: dict[str, Any]) -> None:
    """Leave a trace before and after some time; now and then, fail between."""
    statement = "insert into effects (record, part) values (%s, %s)"
    await ctx.connection.execute(statement, (record["id"], "begun"))
    await asyncio.sleep(random.uniform(0, 0.06))
    if random.random() < 0.05:
        raise ValueError("bad luck")
    await ctx.connection.execute(statement, (record["id"], "ended"))


async def main(url: str) -> int:
    async with TableStore(url, OPTIONS) as store:
        worker = Worker(store, handle, WorkerOptions(concurrency=6, poll_interval=0.2, grace=10, sweep_interval=0.5))
        await run_all(worker, Resetter(store, ResetterOptions(interval=0.5)))
    return OK


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
