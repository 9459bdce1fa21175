"""What recurs, said in a program in three ways. Each item has a job for the minute that is running.

DATABASE_URL=postgresql:///my_db python examples/readme/crontabs.py
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from stowhand.runner import CronItem, CronOptions, parse_cron_items, parse_crontab, run_migrations, run_once

FILE = Path(__file__).parent / "crontab"
ITEMS = [
    CronItem(
        task="tick",
        pattern="* * * * *",
        options=CronOptions(backfill_period=timedelta(days=2), max_attempts=10, queue_name="ticks", priority=1),
        payload={"said": "by items"},
        identifier="items",
    )
]


def tick(payload: dict[str, Any]) -> None:
    due = datetime.fromisoformat(payload["_cron"]["ts"])
    print(payload["said"], due.second, payload["_cron"]["backfilled"])


async def main() -> None:
    await run_migrations()
    tasks = {"tick": tick}
    await run_once(task_list=tasks, crontab="* * * * * tick ?id=text {said:'by a text'}")
    await run_once(task_list=tasks, parsed_cron_items=parse_crontab("* * * * * tick ?id=parsed {said:'parsed'}"))
    await run_once(task_list=tasks, parsed_cron_items=parse_cron_items(ITEMS))
    await run_once(task_list=tasks, crontab_file=FILE)  # its items are due another time
    print("the file has", len(parse_crontab(FILE.read_text())), "items")


asyncio.run(main())
