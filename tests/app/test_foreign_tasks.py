"""A method of an App concerns that App: a task of another App is refused there, and nothing is written anywhere."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stowhand import App
from stowhand.errors import Misuse
from stowhand.testing import MemoryStore

APPS = """
from stowhand import App

one = App("memory://", include=["{module}"])
"""
MODULE = """
from {apps} import one

@one.task
def included(number: int = 0) -> int:
    return number
"""

CALLS: dict[str, Callable[[App, Any, sqlite3.Connection], object]] = {
    "enqueue": lambda app, task, _: asyncio.run(awaited(lambda: app.enqueue(task, 1))),
    "enqueue of app.sync": lambda app, task, _: app.sync.enqueue(task, 1),
    "enqueue with options": lambda app, task, _: app.sync.enqueue(task.options(delay=60), 1),
    "enqueue_in": lambda app, task, connection: app.enqueue_in(connection, task, 1),
    "enqueue_in of app.sync": lambda app, task, connection: app.sync.enqueue_in(connection, task, 1),
    "enqueue_and_wait": lambda app, task, _: app.sync.enqueue_and_wait(task, 1, timeout=0),
    "App.job": lambda app, task, _: app.sync.job(1, task),
    "App.cron": lambda app, task, _: app.cron("* * * * *", task),
    "on_failure": lambda app, task, _: app.task(on_failure=task)(lambda_named),
}


def lambda_named() -> None: ...


async def awaited(call: Callable[[], Awaitable[object]]) -> object:
    return await call()


@pytest.mark.parametrize("call", CALLS)
def test_a_task_of_another_app_is_refused(tmp_path: Path, call: str) -> None:
    one, other = (App(f"sqlite:///{tmp_path}/{name}.db") for name in ("one", "other"))

    @one.task
    def send(number: int = 0) -> None: ...

    one.sync.install()
    other.sync.install()
    connection = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(Misuse, match=rf"{call.partition(' ')[0]}(\(.*\))?: task 'send' is declared by another App"):
        CALLS[call](other, send, connection)
    connection.close()
    assert [sum(app.sync.counts().values()) for app in (one, other)] == [0, 0]
    assert one.sync.enqueue(send, 1).id == 1
    for app in (one, other):
        app.sync.close()


def test_a_task_of_an_included_module_is_the_apps_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    apps, module = "own_apps_e2", "own_tasks_e2"
    (tmp_path / f"{apps}.py").write_text(APPS.format(module=module))
    (tmp_path / f"{module}.py").write_text(MODULE.format(apps=apps))
    app: App = __import__(apps).one
    try:
        app.discover()
        included = sys.modules[module].included
        assert app.sync.enqueue(included, 3).payload == {"number": 3}
        app.cron("* * * * *", included)
    finally:
        app.sync.close()
        for name in (apps, module):
            sys.modules.pop(name, None)


def test_an_app_kept_elsewhere_for_a_test_has_its_tasks_still() -> None:
    app = App("memory://")

    @app.task
    def send(number: int) -> None: ...

    with app.using(MemoryStore()):
        app.sync.enqueue(send, 1)
    with app.immediate():
        app.sync.enqueue(send, 1)
    app.sync.close()
