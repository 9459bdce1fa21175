"""``stowhand cron list`` and ``run``, and the default crontab of ``stowhand worker``."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stowhand.clock import wall_clock
from stowhand.protocols.store import StoreOptions
from stowhand.stores.url import open_store
from tests.cli.conftest import Stowhand

APP = """\
from stowhand import App

app = App()


@app.task
async def rollup(hours: int) -> None: ...


def never(date) -> bool:
    return False


app.cron("0 4 * * *", rollup, {"hours": 4})
app.cron(never, rollup, {"hours": 5}, identifier="by_function")
"""


@pytest.fixture
def crontab(folder: Path) -> Path:
    file = folder / "crontab"
    file.write_text("0 4 1 1 * hello ?id=yearly&queue=slow&max=3 {name: 'Bob'}\n* * * * * hello {name: 'Ann'}\n")
    return file


@pytest.mark.usefixtures("crontab")
def test_a_crontab_beside_the_tasks_is_listed(call: Stowhand) -> None:
    worked = call("worker", "--once")
    assert worked.code == 0
    assert "Scheduling 2 recurring tasks: 'yearly', 'hello'" in worked.err
    assert "Hello, Ann" in worked.err
    hello, yearly = call("cron", "list", "--json").rows()
    assert (hello["identifier"], yearly["identifier"], yearly["last_tick"]) == ("hello", "yearly", None)
    assert yearly["next_run"].endswith("-01-01T04:00:00Z")
    next_run, last_tick = (datetime.fromisoformat(hello[name]) for name in ("next_run", "last_tick"))
    assert next_run - last_tick >= timedelta(minutes=1)
    shown = call("cron", "list").out.splitlines()
    assert shown[0].split() == ["ITEM", "SCHEDULED", "BY", "LAST", "TICK", "NEXT", "RUN", "CRONTAB"]
    assert hello["is_scheduled"]
    assert hello["scheduled_by"] in shown[1]
    assert "0 4 1 1 * hello ?id=yearly&max=3&queue=slow" in shown[2]


def known_long_ago(url: str, *items: tuple[str, str]) -> None:
    """Items that a scheduler had ten minutes ago."""

    async def enter() -> None:
        store = open_store(url, StoreOptions(pinned=lambda: wall_clock() - timedelta(minutes=10)))
        try:
            await store.open()
            await store.timetable.register(items)
            await store.timetable.report([name for name, _ in items], "old-host:1")
        finally:
            await store.close()

    asyncio.run(enter())


def test_an_unscheduled_item_has_no_next_run_and_can_be_removed(call: Stowhand, folder: Path) -> None:
    call("migrate")
    known_long_ago(f"sqlite:///{folder}/stowhand.db", ("often", "* * * * * hello"), ("backup", "0 4 1 1 * hello"))
    assert " none since " in call("cron", "list").out.splitlines()[1]
    backup, often = call("cron", "list", "--json").rows()
    assert [(row["is_scheduled"], row["scheduled_by"], row["next_run"]) for row in (backup, often)] == [
        (False, "old-host:1", None)
    ] * 2
    assert (backup["missed_tick"], often["missed_tick"] is None) == (None, False)
    examined = call("doctor")
    assert examined.code == 0
    assert "not scheduled by any worker: backup, often; start a worker with their crontab, or" in examined.out
    assert "missed a tick: often (" in examined.out
    assert call("cron", "remove", "backup").out == "backup: removed\n"
    assert [row["identifier"] for row in call("cron", "list", "--json").rows()] == ["often"]
    assert "did you mean 'often'?" in call("cron", "remove", "oftn").err


@pytest.mark.usefixtures("crontab")
def test_a_scheduled_item_is_not_removed(call: Stowhand) -> None:
    call("worker", "--once")
    refused = call("cron", "remove", "yearly")
    assert refused.code == 1
    assert "'yearly' is scheduled by " in refused.err
    assert len(call("cron", "list", "--json").rows()) == 2
    assert "2 recurring items, all scheduled" in call("doctor").out


@pytest.mark.usefixtures("crontab")
def test_run_enqueues_the_job_of_an_item_for_the_current_minute(call: Stowhand) -> None:
    call("migrate")
    assert call("cron", "run", "yearly").out == "1\n"
    (job,) = call("jobs", "list", "--json").rows()
    ts = datetime.fromisoformat(job["payload"].pop("_cron")["ts"])
    assert timedelta() <= wall_clock() - ts < timedelta(minutes=2)
    assert (ts.second, datetime.fromisoformat(job["run_at"])) == (0, ts.astimezone(UTC))
    assert (job["serial"], job["max_attempts"], job["payload"]) == ("slow", 3, {"name": "Bob"})
    assert call("cron", "list").out == "", "the ledger and the known items are left alone"


def test_run_finds_items_that_a_worker_registered(call: Stowhand, crontab: Path) -> None:
    call("worker", "--once")
    crontab.unlink()
    assert call("cron", "run", "yearly").code == 0
    wrong = call("cron", "run", "yaerly")
    assert wrong.code == 2
    assert "no recurring item 'yaerly'; did you mean 'yearly'?" in wrong.err


def test_run_finds_items_of_an_app_and_of_another_file(call: Stowhand, folder: Path, crontab: Path) -> None:
    call("migrate")
    (folder / "shop.py").write_text(APP)
    assert call("cron", "run", "rollup", "--app", "shop:app").code == 0
    other = folder / "other"
    other.write_text("0 5 * * * hello ?id=from_other\n")
    assert call("cron", "run", "from_other", "--crontab", other).code == 0
    assert "available: hello, yearly" in call("cron", "run", "from_other").err
    bad = call("cron", "run", "x", "--crontab", folder / "missing")
    assert (bad.code, "No such file" in bad.err) == (2, True)
    payloads = [json.dumps(row["payload"]) for row in call("jobs", "list", "--json").rows()]
    assert '"hours": 4' in payloads[0]


def test_a_function_cannot_be_run_from_the_store_alone(call: Stowhand, folder: Path) -> None:
    (folder / "shop.py").write_text(APP)
    assert call("worker", "--once", "--app", "shop:app").code == 0
    refused = call("cron", "run", "by_function")
    assert refused.code == 2
    assert "was declared in Python, not in a crontab; name its App" in refused.err
    (row,) = [row for row in call("cron", "list", "--json").rows() if row["identifier"] == "by_function"]
    assert row["next_run"] is None


def test_an_app_does_not_take_the_crontab_of_a_folder(call: Stowhand, folder: Path, crontab: Path) -> None:
    (folder / "shop.py").write_text(APP)
    worked = call("worker", "--once", "--app", "shop:app")
    assert "Scheduling 2 recurring tasks: 'rollup', 'by_function'" in worked.err
    both = call("worker", "--once", "--app", "shop:app", "--crontab", crontab)
    assert "Scheduling 4 recurring tasks" in both.err
    assert "no task 'hello' here" in both.err
