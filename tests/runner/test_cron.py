"""A crontab beside a runner: as text, as a file, as parsed items."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stowhand.runner import CronItem, parse_cron_items, parse_crontab, run, run_once
from stowhand.runner.options import make_plan

EVERY_MINUTE = "* * * * * tick ?id=ticking {answer:42}"


async def first_payload(url: str, **crontab: Any) -> Any:
    got: list[Any] = []
    came = asyncio.Event()

    async def tick(payload: Any) -> None:
        got.append(payload)
        came.set()

    await run_once(connection_string=url, task_list={"tick": tick}, **crontab)
    return got[0] if got else None


@pytest.mark.parametrize("form", ["crontab", "crontab_file", "parsed_cron_items", "items"])
async def test_each_form_of_a_crontab_schedules(sqlite_url: str, surroundings: Path, form: str) -> None:
    (surroundings / "crontab").write_text(EVERY_MINUTE)
    forms: dict[str, dict[str, Any]] = {
        "crontab": {"crontab": EVERY_MINUTE},
        "crontab_file": {"crontab_file": surroundings / "crontab"},
        "parsed_cron_items": {"parsed_cron_items": parse_crontab(EVERY_MINUTE)},
        "items": {
            "parsed_cron_items": parse_cron_items(
                [CronItem(task="tick", pattern="* * * * *", payload={"answer": 42}, identifier="ticking")]
            )
        },
    }
    payload = await first_payload(sqlite_url, **forms[form])
    assert payload["answer"] == 42
    assert payload["_cron"]["backfilled"] is False
    plan = make_plan(
        "run", {"connection_string": sqlite_url, "task_list": {"tick": lambda payload: None}, **forms[form]}, once=True
    )
    assert [item.identifier for item in plan.cron] == ["ticking"]


async def test_without_a_crontab_no_job_is_scheduled(sqlite_url: str, surroundings: Path) -> None:
    (surroundings / "crontab").write_text(EVERY_MINUTE)
    assert await first_payload(sqlite_url) is None


async def test_a_scheduler_ends_with_its_runner(sqlite_url: str) -> None:
    before = asyncio.all_tasks()
    runner = await run(
        connection_string=sqlite_url,
        task_list={"tick": lambda payload: None},
        crontab=EVERY_MINUTE,
        no_handle_signals=True,
    )
    await asyncio.sleep(0)
    await runner.stop()
    assert asyncio.all_tasks() <= before
