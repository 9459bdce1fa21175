"""An unknown name meets the nearest known one, wherever it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from stowhand import App, TableOptions, WorkerOptions
from stowhand.app.settings.reading import read_settings, resolve_store_url, unknown_variables
from stowhand.cli.program import root
from stowhand.cron.item import CronItem
from stowhand.cron.sources import items_of
from stowhand.errors import ConfigurationError, StowhandError, hint, suggest
from stowhand.jobs.job import NewJob
from stowhand.jobs.limits import check_options
from stowhand.protocols.flow_shape import FlowShape, Limiter, Queue
from stowhand.protocols.store import StoreOptions
from stowhand.remote.client import HttpOptions
from stowhand.remote.server.http_server import ServerOptions
from stowhand.retry import named
from stowhand.runner.events import WorkerEvents
from stowhand.runner.options import find_store, make_plan
from stowhand.stores.table.asking import read_states
from stowhand.worker.resetter import ResetterOptions
from tests.conftest import Run


def app() -> App:
    made = App("memory://")
    made.task(name="send")(lambda: None)
    return made


async def worker(**options: Any) -> None:
    async with app() as made:
        made.worker(**options)


def command(*words: str) -> None:
    root.main(list(words), standalone_mode=False)


def settings(**typed: str) -> None:
    read_settings(typed, environ={})


def any_of(kind: Any, **given: Any) -> Callable[[], object]:
    return lambda: kind(**given)


PLACES: dict[str, tuple[Callable[[], object], str]] = {
    "App": (any_of(App, shema="x"), "schema"),
    "App, a preset": (any_of(App, preset="sevice"), "service"),
    "App.task": (lambda: app().task(name="x", prioritty=1)(lambda: None), "priority"),  # type: ignore[call-overload]
    "App.task, an executor": (lambda: app().task(name="x", executor="thred")(lambda: None), "thread"),  # type: ignore[call-overload]
    "App.task, a backoff": (lambda: app().task(name="x", backoff="nartual")(lambda: None), "natural"),
    "App.cron": (lambda: app().cron("* * * * *", "send", backfil_period=1), "backfill_period"),  # type: ignore[call-arg]
    "an enqueue": (lambda: app().registry.new_job("send", {}, {"quue": "x"}), "queue"),  # type: ignore[typeddict-unknown-key]
    "an enqueue, a task": (lambda: app().registry.get("sned"), "send"),
    "an enqueue, a key mode": (lambda: check_options(NewJob(task="t", key="k", key_mode="replase")), "replace"),  # type: ignore[arg-type]
    "WorkerOptions": (any_of(WorkerOptions, concurency=4), "concurrency"),
    "WorkerOptions, a backoff": (any_of(WorkerOptions, backoff="servce"), "service"),
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
    "a limiter of a flow": (any_of(Limiter, intervall=1), "interval"),
    "a queue's name": (lambda: FlowShape(name="f", queues=(Queue("first"),)).find_queue("frist"), "first"),
    "runner": (lambda: make_plan("run", {"noHandleSignals": True}, once=False), "no_handle_signals"),
    "runner's utils": (lambda: find_store("utils", {"shema": "x"}), "schema"),
    "runner, a backoff": (lambda: make_plan("run", {"backoff": "nartual"}, once=False), "natural"),
    "runner, an event": (
        lambda: WorkerEvents().on("job:sucess", lambda event: None),  # type: ignore[call-overload]
        "job:success",
    ),
    "a crontab": (lambda: items_of({"crontab": "* * * * * t ?fil=2d"}), "fill"),
    "a crontab, a zone": (lambda: items_of({"crontab": "* * * * * t ?tz=europe/berlni"}), "Europe/Berlin"),
    "a cron item": (any_of(CronItem, task="t", match="* * * * *", identifer="x"), "identifier"),
    "a backoff": (lambda: named("servce"), "service"),
    "a flag, a preset": (any_of(settings, preset="sevice"), "service"),
    "a flag, a level": (any_of(settings, log_level="warnin"), "warning"),
    "a flag, a format": (any_of(settings, log_format="jsn"), "json"),
    "a flag, a backoff": (any_of(settings, backoff="servce"), "service"),
    "a command": (lambda: command("wroker"), "worker"),
    "a command of a group": (lambda: command("jobs", "lst"), "list"),
    "a flag": (lambda: command("worker", "--jbos", "3"), "--jobs"),
    "a flag, a state": (lambda: command("jobs", "list", "--state", "quueed"), "queued"),
    "a flag, a scope": (lambda: command("tokens", "make", "x", "--scope", "clame"), "claim"),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_unknown_name_meets_the_nearest(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    do, meant = PLACES[place]
    with pytest.raises((StowhandError, TypeError, ValueError, click.ClickException)) as caught:
        do()
    error = caught.value
    said = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert f"did you mean {meant!r}?" in said.lower() or f"did you mean {meant!r}?" in said, said


def test_an_unknown_option_of_an_app_s_worker_meets_the_nearest(run: Run) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'concurrency'"):
        run(worker(concurency=3))


@pytest.mark.parametrize(("given", "meant"), [("proceses", "processes"), ("Log-Levle", "log_level")])
def test_an_unknown_key_of_a_settings_file_meets_the_nearest(given: str, meant: str, tmp_path: Path) -> None:
    (tmp_path / "stowhand.toml").write_text(f"{given} = 1\n")
    with pytest.raises(ConfigurationError, match=f"unknown setting '{given}'; did you mean '{meant}'"):
        resolve_store_url(environ={}, folder=tmp_path)


def test_an_unknown_variable_meets_the_nearest() -> None:
    ((_, said),) = unknown_variables({"STOWHAND_PROCESES": "1"})
    assert said.endswith("; did you mean 'STOWHAND_PROCESSES'?")


def test_what_is_like_nothing_meets_the_list_and_a_long_one_is_cut() -> None:
    assert suggest("zzz", ["one", "two"]) == "; there are: one, two"
    assert suggest("tow", ["one", "two"]) == "; did you mean 'two'? there are: one, two"
    assert suggest("x", []) == "; there are none"
    assert suggest("x", [f"word {n}" for n in range(30)]).endswith("word 19, …")
    assert hint("JOBkey", ["jobKey"]) == "; did you mean 'jobKey'?"
    assert hint("zzz", ["one"]) == ""
