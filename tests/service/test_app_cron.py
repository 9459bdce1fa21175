"""Recurring tasks as an App declares them, and as a worker is given them."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stowhand.app.app import App
from stowhand.cron.crontab import parse_cron_items, parse_crontab
from stowhand.cron.item import CronDate, CronItem
from stowhand.cron.sources import RecurringWorker, declared
from stowhand.errors import ConfigurationError
from stowhand.jobs.job import KeyMode
from stowhand.tasks.task import Task
from stowhand.testing import MemoryStore
from tests.conftest import Run

AT = datetime(2030, 1, 1, 4, tzinfo=UTC)


Rollup = Task[[int], None, Coroutine[Any, Any, None]]


@pytest.fixture
def app() -> App:
    return App(store=MemoryStore())


@pytest.fixture
def task(app: App) -> Rollup:
    @app.task(serial="slow", priority=3, max_attempts=2, key="rollup", key_mode="preserve_run_at")
    async def rollup(hours: int) -> None: ...

    return rollup


def test_an_item_has_the_options_of_its_task_unless_it_overrides_them(app: App, task: Rollup) -> None:
    app.cron("0 4 * * *", task, {"hours": 4}, tz="UTC")
    app.cron("0 5 * * *", task, {"hours": 1}, identifier="other", serial="fast", priority=0, key=None)
    app.cron("0 4 * * *", "elsewhere", backfill_period=timedelta(hours=1))
    first, other, elsewhere = (item.job(AT, backfilled=False) for item in app.cron_items)
    assert (first.serial, first.priority, first.max_attempts) == ("slow", 3, 2)
    assert (first.key, first.key_mode) == ("rollup", KeyMode.PRESERVE_RUN_AT)
    assert json.loads(first.payload)["hours"] == 4
    assert (other.serial, other.priority, other.max_attempts, other.key) == ("fast", 0, 2, None)
    assert (elsewhere.serial, elsewhere.max_attempts) == (None, None)
    assert app.cron_items[2].fill == 3600


def test_a_recurring_job_is_in_the_queue_of_its_task_unless_the_item_names_another(app: App) -> None:
    @app.task(queue="bulk")
    def export() -> None: ...

    app.cron("0 4 * * *", export)
    app.cron("0 4 * * *", export, identifier="other", queue="mail", serial="s")
    app.cron("0 4 * * *", export.options(queue="slow"), identifier="of options")
    app.cron("0 4 * * *", export.options(queue="default"), identifier="of the default queue")
    app.cron("0 4 * * *", "export", identifier="by name", queue="mail")
    app.cron("0 4 * * *", "elsewhere", queue="mail")
    in_text = declared(parse_crontab("0 4 * * * export\n0 4 * * * export ?id=b&work_queue=mail&queue=s"), app.registry)
    jobs = [item.job(AT, backfilled=False) for item in (*app.cron_items, *in_text)]
    assert [job.queue for job in jobs] == ["bulk", "mail", "slow", "default", "mail", "mail", "bulk", "mail"]
    assert [job.serial for job in jobs] == [None, "s", None, None, None, None, None, "s"]
    assert app.cron_items[1].spec == "0 4 * * * export ?id=other&queue=s&work_queue=mail"


def test_mistakes_are_reported_with_their_location(app: App, task: Rollup) -> None:
    with pytest.raises(ConfigurationError, match="unexpected argument 'days'"):
        app.cron("0 4 * * *", task, {"hours": 1, "days": 4})
    with pytest.raises(ConfigurationError, match="missing argument"):
        app.cron("0 4 * * *", task)
    with pytest.raises(ConfigurationError, match="hour '25'"):
        app.cron("0 25 * * *", task, {"hours": 1})
    with pytest.raises(
        ConfigurationError,
        match=r"no option 'queue_name'; queue=... is the class of work, and serial=... runs jobs one at a time",
    ):
        app.cron("0 4 * * *", task, queue_name="x")  # type: ignore[call-arg]
    with pytest.raises(
        ConfigurationError, match=r"App.cron \(rollup\): key_mode: 'unsafe_dedupe'; available: preserve_run_at"
    ):
        app.cron("0 4 * * *", task, {"hours": 1}, key_mode="unsafe_dedupe")  # type: ignore[arg-type]
    app.cron("0 4 * * *", task, {"hours": 1})
    with pytest.raises(ConfigurationError, match="duplicate identifier 'rollup'"):
        app.cron("0 5 * * *", task, {"hours": 1})
    with pytest.raises(ConfigurationError, match="flags, which a recurring job cannot have"):
        app.cron("0 6 * * *", task.options(flags=["x"]), {"hours": 1}, identifier="flagged")
    assert len(app.cron_items) == 1, "what was wrong left nothing behind"


@pytest.mark.parametrize(
    ("known", "fields"),
    [
        ("0 9 * * mon", "0 9 * * 1"),
        ("0 9 * * MON-Fri", "0 9 * * 1-5"),
        ("0 9 * jan,jul,12 sun,2", "0 9 * 1,7,12 0,2"),
        ("0 9 1 january-Mar *", "0 9 1 1-3 *"),
        ("0 9 * * saturday-sun", "0 9 * * 6-7"),
        ("0 9 * * sun-tue", "0 9 * * 0-2"),
        ("@hourly", "0 * * * *"),
        (" @Daily ", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * sun"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 jan *"),
    ],
)
def test_names_and_macros_equal_the_fields_of_a_crontab(app: App, known: str, fields: str) -> None:
    app.cron(known, "t", backfill_period="2h")
    app.cron(fields, "t", identifier="u", backfill_period=7200)
    one, other = app.cron_items
    assert one.spec == other.spec.replace("id=u&", "")
    year = AT, AT.replace(year=2031)
    assert list(one.ticks(*year)) == list(other.ticks(*year))


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("@dayly", r"App.cron \(t\): '@dayly': no such macro; did you mean '@daily'"),
        ("@reboot", "'@reboot': no such macro; available: @annually"),
        ("0 9 * * mno", "weekday 'mno': no name 'mno'; did you mean 'mon'"),
        ("0 9 * * jan", "weekday 'jan': no name 'jan'"),
        ("0 nine * * *", "hour 'nine': 'nine' is not a number"),
        ("0 9 * * fri-mon", "weekday '5-1': the start of 5-1 is not before its end; write 5-6,0-1"),
        ("@daily t", "no such macro"),
    ],
)
def test_an_unknown_name_is_reported_with_the_nearest(app: App, pattern: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        app.cron(pattern, "t")
    assert app.cron_items == ()


def test_a_function_may_decide_whether_a_minute_is_a_tick(app: App) -> None:
    def at_four(date: CronDate) -> bool:
        return (date.hour, date.minute) == (4, 0)

    app.cron(at_four, "rollup")
    assert app.cron_items[0].due(AT)
    assert not app.cron_items[0].due(AT + timedelta(minutes=1))


def test_a_worker_schedules_items_of_all_sources(app: App, task: Rollup, run: Run, tmp_path: Path) -> None:
    app.cron("0 1 * * *", task, {"hours": 1})
    file = tmp_path / "crontab"
    file.write_text("\ufeff0 2 * * * rollup ?id=in_file {hours:2}\r\n")
    items = parse_cron_items([CronItem(task="rollup", match="0 3 * * *", identifier="parsed", payload={"hours": 3})])

    async def scenario() -> None:
        async with app:
            worker = app.worker(crontab="0 4 * * * rollup ?id=text {hours:4}", crontab_file=file, cron_items=items)
            assert isinstance(worker, RecurringWorker)
            assert worker._scheduler is not None
            assert [item.identifier for item in worker._scheduler.items] == ["rollup", "text", "in_file", "parsed"]
            with pytest.raises(ConfigurationError, match="duplicate identifier 'rollup'"):
                app.worker(crontab="0 4 * * * rollup {hours:4}")
            with pytest.raises(ConfigurationError, match="No such file"):
                app.worker(crontab_file=tmp_path / "missing")
            with pytest.raises(ConfigurationError, match="got a CronItem; use what parse_crontab or parse_cron_items"):
                app.worker(cron_items=[CronItem(task="x", match="* * * * *")])  # type: ignore[list-item]
            for wrong in ({"crontab": 5}, {"crontab_file": 5}, {"cron_items": 5}, {"crontab_file": "a\0b"}):
                with pytest.raises(ConfigurationError, match=r"cron.*: (got an int; use|embedded null byte)"):
                    app.worker(**wrong)

    run(scenario())


def test_a_worker_with_once_schedules_what_is_due_first(run: Run) -> None:
    app = App(store=MemoryStore())
    ran: list[int] = []

    @app.task
    async def count(number: int) -> None:
        ran.append(number)

    async def scenario() -> None:
        async with app:
            await app.worker(once=True, cron_items=parse_crontab("* * * * * count {number: 7}")).run()

    run(scenario())
    assert set(ran) == {7}


def test_an_item_has_the_options_that_its_task_declares(app: App) -> None:
    @app.task(serial="bank", max_attempts=3)
    def charge(cents: int) -> None: ...

    app.cron("0 4 * * *", "charge", {"cents": 5}, priority=2)
    job = app.cron_items[-1].job(datetime(2030, 1, 1, 4, tzinfo=UTC), backfilled=False)
    assert (job.serial, job.max_attempts, job.priority) == ("bank", 3, 2)
    with pytest.raises(ConfigurationError, match="payload of task 'charge': missing argument 'cents'"):
        app.cron("0 5 * * *", "charge", identifier="wrong")
