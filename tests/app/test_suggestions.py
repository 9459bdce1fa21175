"""An unknown name meets the nearest known one, wherever it is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from stowhand import App, WorkerOptions
from stowhand.app.settings.resolver import read_settings, resolve_store_url, unknown_variables
from stowhand.app.settings.settings import SETTINGS
from stowhand.cli.program import root
from stowhand.cli.program import run as run_command
from stowhand.cron.item import CronItem
from stowhand.cron.sources import items_of
from stowhand.errors import SYNONYMS, ConfigurationError, InvalidJob, StowhandError, hint, suggest
from stowhand.jobs.job import NewJob
from stowhand.jobs.limits import check_options
from stowhand.protocols.flow_shape import FlowShape, Limiter, Queue
from stowhand.protocols.store import StoreOptions
from stowhand.remote import HttpOptions
from stowhand.remote.server.lender import ServerOptions
from stowhand.retry import resolve_backoff
from stowhand.runner.events import WorkerEvents
from stowhand.runner.options import find_store, make_plan
from stowhand.stores.table.arguments import read_states
from stowhand.stores.url import store_url
from stowhand.table import TableOptions
from stowhand.worker.resetter import ResetterOptions
from tests.conftest import Run


def app() -> App:
    instance = App("memory://")
    instance.task(name="send")(lambda: None)
    return instance


async def worker(**options: Any) -> None:
    async with app() as made:
        made.worker(**options)


def command(*words: str) -> None:
    root.main(list(words), standalone_mode=False)


def settings(**typed: str) -> None:
    read_settings(typed, environ={})


def any_of(kind: Any, *placed: Any, **given: Any) -> Callable[[], object]:
    return lambda: kind(*placed, **given)


PLACES: dict[str, tuple[Callable[[], object], str]] = {
    "App": (any_of(App, shema="x"), "schema"),
    "App, a preset": (any_of(App, preset="sevice"), "service"),
    "App.task": (lambda: app().task(name="x", prioritty=1)(lambda: None), "priority"),  # type: ignore[call-overload]
    "App.task, an executor": (lambda: app().task(name="x", executor="thred")(lambda: None), "thread"),  # type: ignore[call-overload]
    "App.task, a backoff": (lambda: app().task(name="x", backoff="nartual")(lambda: None), "natural"),
    "App.cron": (lambda: app().cron("* * * * *", "send", backfil_period=1), "backfill_period"),  # type: ignore[call-arg]
    "App.task, another word": (lambda: app().task(name="x", group="heavy")(lambda: None), "queue"),  # type: ignore[call-overload]
    "an enqueue": (lambda: app().registry.new_job("send", {}, {"seral": "x"}), "serial"),  # type: ignore[typeddict-unknown-key]
    "an enqueue, a task": (lambda: app().registry.get("sned"), "send"),
    "an enqueue, a key mode": (lambda: check_options(NewJob(task="t", key="k", key_mode="replase")), "replace"),  # type: ignore[arg-type]
    "WorkerOptions": (any_of(WorkerOptions, concurency=4), "concurrency"),
    "WorkerOptions, a backoff": (any_of(WorkerOptions, backoff="servce"), "service"),
    "WorkerOptions, a setting's name": (any_of(WorkerOptions, jobs=4), "concurrency"),
    "StoreOptions, a setting's name": (any_of(StoreOptions, max_pool_size=4), "pool_size"),
    "a scheme": (lambda: store_url("postgers://localhost/shop"), "postgresql"),
    "a scheme of a file": (lambda: store_url("sqlite3:///shop.db"), "sqlite"),
    "StoreOptions": (any_of(StoreOptions, pool_sise=4), "pool_size"),
    "StoreOptions, a word": (any_of(StoreOptions, synchronous="NORML"), "NORMAL"),
    "ResetterOptions": (any_of(ResetterOptions, intervall=4), "interval"),
    "TableOptions": (any_of(TableOptions, name="x", tabel_name="jobs"), "table_name"),
    "TableOptions, a column": (
        any_of(TableOptions, name="x", table_name="jobs", alternate_column_names={"staet": "x"}),
        "state",
    ),
    "a state of a record": (lambda: read_states(["cancelled"]), "canceled"),
    "HttpOptions": (any_of(HttpOptions, tokn="x"), "token"),
    "ServerOptions": (any_of(ServerOptions, prot=1), "port"),
    "a queue of a flow": (any_of(Queue, name="x", max_retrys=1), "max_retries"),
    "a queue of a flow, by its place": (any_of(Queue, "x", max_retrys=1), "max_retries"),
    "a flow": (any_of(FlowShape, nam="f", serials=()), "name"),
    "a limiter of a flow": (any_of(Limiter, intervall=1), "interval"),
    "a queue's name": (lambda: FlowShape(name="f", queues=(Queue("first"),)).find_queue("frist"), "first"),
    "runner": (lambda: make_plan("run", {"noHandleSignals": True}, once=False), "no_handle_signals"),
    "runner's utils": (lambda: find_store("utils", {"shema": "x"}), "schema"),
    "runner, a setting's name": (lambda: make_plan("run", {"jobs": 3}, once=False), "concurrency"),
    "runner, an App's name": (lambda: make_plan("run", {"pool_size": 3}, once=False), "max_pool_size"),
    "runner, a backoff": (lambda: make_plan("run", {"backoff": "nartual"}, once=False), "natural"),
    "runner, an event": (
        lambda: WorkerEvents().on("job:sucess", lambda event: None),  # type: ignore[call-overload]
        "job:success",
    ),
    "a crontab": (lambda: items_of({"crontab": "* * * * * t ?fil=2d"}), "fill"),
    "a crontab, a cron item's name": (lambda: items_of({"crontab": "* * * * * t ?identifer=x"}), "id"),
    "a crontab, a zone": (lambda: items_of({"crontab": "* * * * * t ?tz=europe/berlni"}), "Europe/Berlin"),
    "a cron item": (any_of(CronItem, task="t", match="* * * * *", identifer="x"), "identifier"),
    "a backoff": (lambda: resolve_backoff("servce"), "service"),
    "a flag, a preset": (any_of(settings, preset="sevice"), "service"),
    "a flag, a level": (any_of(settings, log_level="warnin"), "warning"),
    "a flag, a format": (any_of(settings, log_format="jsn"), "json"),
    "a flag, a backoff": (any_of(settings, backoff="servce"), "service"),
    "a command": (lambda: command("wroker"), "worker"),
    "a command of a group": (lambda: command("jobs", "lst"), "list"),
    "a flag": (lambda: command("worker", "--crontabb", "x"), "--crontab"),
    "a flag, a state": (lambda: command("jobs", "list", "--state", "quueed"), "queued"),
    "a flag, how it is written": (lambda: command("worker", "--preset", "servcie"), "service"),
    "a flag, a key": (lambda: command("table", "ddl", "x", "--key", "bigin"), "bigint"),
    "a flag, a dialect": (lambda: command("table", "ddl", "x", "--dialect", "postgress"), "postgres"),
    "a flag, a state of a record": (lambda: command("table", "list", "--state", "quueed"), "queued"),
    "a shell": (lambda: command("completion", "bahs"), "bash"),
    "a flag, a scope": (lambda: command("tokens", "make", "x", "--scope", "clame"), "claim"),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_unknown_name_is_answered_with_the_nearest(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    do, meant = PLACES[place]
    with pytest.raises((StowhandError, TypeError, ValueError, click.ClickException)) as caught:
        do()
    error = caught.value
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert f"did you mean {meant!r}?" in message.lower() or f"did you mean {meant!r}?" in message, message


def test_an_unknown_option_of_a_worker_is_answered_with_the_nearest(run: Run) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'concurrency'"):
        run(worker(concurency=3))
    with pytest.raises(ConfigurationError, match="did you mean 'concurrency'"):
        run(worker(jobs=3))
    with pytest.raises(ConfigurationError, match="no option 'groups'; did you mean 'queues'"):
        run(worker(groups=["heavy"]))


def test_a_single_task_name_is_refused_as_a_list(run: Run) -> None:
    with pytest.raises(ConfigurationError, match="tasks: got a str; use a list of names"):
        run(worker(tasks="send"))
    with pytest.raises(ConfigurationError, match="tasks: got an int; use a list of names"):
        run(worker(tasks=7))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("proceses", "processes"),
        ("Log-Levle", "log_level"),
        ("pool_size", "max_pool_size"),
        ("concurency", "concurrency"),
        ("groups", "queues"),
    ],
)
def test_an_unknown_key_of_a_settings_file_is_answered_with_the_nearest(given: str, meant: str, tmp_path: Path) -> None:
    (tmp_path / "stowhand.toml").write_text(f"{given} = 1\n")
    with pytest.raises(ConfigurationError, match=f"unknown setting '{given}'; did you mean '{meant}'"):
        resolve_store_url(environ={}, folder=tmp_path)


@pytest.mark.parametrize(("given", "meant"), [("PROCESES", "PROCESSES"), ("POOL_SIZE", "MAX_POOL_SIZE")])
def test_an_unknown_variable_is_answered_with_the_nearest(given: str, meant: str) -> None:
    ((_, said),) = unknown_variables({f"STOWHAND_{given}": "1"})
    assert said.endswith(f"; did you mean 'STOWHAND_{meant}'?")


def test_every_option_that_a_setting_names_differently_is_found_by_both_names() -> None:
    differ = {option.field: option.name for option in SETTINGS.values() if option.called}
    assert {**differ, **{name: field for field, name in differ.items()}}.items() <= SYNONYMS.items()


def test_an_unsimilar_word_is_answered_with_a_limited_list() -> None:
    assert suggest("zzz", ["one", "two"]) == "; available: one, two"
    assert suggest("tow", ["one", "two"]) == "; did you mean 'two'? Available: two, one"
    assert suggest("x", []) == "; none is available"
    assert suggest("x", [f"word {n}" for n in range(30)]).endswith("word 3, …")
    assert suggest("wrod 29", [f"word {n}" for n in range(30)]).count("word 29") == 2
    assert suggest("x", ["b", "A", "c"]) == "; available: A, b, c"
    assert hint("JOBkey", ["jobKey"]) == "; did you mean 'jobKey'?"
    assert hint("zzz", ["one"]) == ""


def test_the_option_group_is_answered_with_queue(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["worker", "--group", "heavy"]) == 2
    assert capsys.readouterr().err.startswith("error: no option '--group'; did you mean '--queue'?\n")


BOTH = "; queue=... is the class of work, and serial=... runs jobs one at a time."


def test_the_name_of_a_queue_in_sql_is_answered_with_both_words() -> None:
    option: Any = {"queue_name": "mail"}
    app = App("memory://")
    with pytest.raises(TypeError, match=f"NewJob: no option 'queue_name'{re.escape(BOTH)}"):
        NewJob(task="t", **option)
    with pytest.raises(ConfigurationError, match=f"no task option 'queue_name'{re.escape(BOTH)}"):
        app.task(name="sum", **option)(lambda: None)
    task = app.task(name="sum")(lambda: None)
    with pytest.raises(InvalidJob, match=f"no option 'queue_name'{re.escape(BOTH)}"):
        task.options(**option)
