"""Names of tasks and queues: what a worker claims, made once at its start, and the report of a wrong name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stowhand.app.app import App
from stowhand.app.options import claimed_tasks
from stowhand.app.settings.resolver import read_settings
from stowhand.app.settings.settings import WorkerSettings
from stowhand.errors import ConfigurationError, StowhandError
from stowhand.protocols.operator import PURGE_TASK
from stowhand.service.task_loader import load_tasks
from stowhand.tasks.registry import Registry
from stowhand.testing import MemoryStore
from tests.conftest import Run

FLAGS: dict[str, Any] = {"connection": "sqlite:///queue.db", "app": f"{__name__}:app"}


def declared() -> App:
    app = App(store=MemoryStore())
    app.task(name="render", queue="heavy")(lambda: None)
    app.task(name="encode", queue="heavy")(lambda: None)
    app.task(name="mail", queue="light")(lambda: None)
    app.task(name="log")(lambda: None)
    return app


app = declared()


@pytest.fixture
def registry() -> Registry:
    return declared().registry


@pytest.mark.parametrize(
    ("tasks", "excluded", "claims"),
    [
        (None, (), ("render", "encode", "mail", "log", PURGE_TASK)),
        (("log", PURGE_TASK), (), ("log", PURGE_TASK)),
        (None, ("render", PURGE_TASK), ("encode", "mail", "log")),
        (("mail", "log"), ("mail", "render"), ("log",)),
        ((), (), ()),
    ],
)
def test_a_worker_claims_the_tasks_that_are_named_and_not_excluded(
    registry: Registry, tasks: tuple[str, ...] | None, excluded: tuple[str, ...], claims: tuple[str, ...]
) -> None:
    assert claimed_tasks(registry, tasks, excluded, lent=False) == claims


def test_workers_of_a_remote_store_do_not_run_built_in_tasks(registry: Registry) -> None:
    assert PURGE_TASK not in claimed_tasks(registry, None, (), lent=True)
    assert claimed_tasks(registry, (PURGE_TASK,), (), lent=True) == (PURGE_TASK,)


@pytest.mark.parametrize(
    ("tasks", "excluded", "words"),
    [
        (("rendr",), (), "no task 'rendr'; did you mean 'render'"),
        (None, ("maill",), "no task 'maill'; did you mean 'mail'"),
        (("mail",), ("mail",), "they exclude every task"),
    ],
)
def test_an_unknown_task_and_an_empty_list_are_refused(
    registry: Registry, tasks: tuple[str, ...] | None, excluded: tuple[str, ...], words: str
) -> None:
    with pytest.raises(StowhandError, match=words):
        claimed_tasks(registry, tasks, excluded, lent=False)


def test_an_embedded_worker_takes_tasks_and_queues_as_keywords(run: Run) -> None:
    async def scenario() -> None:
        app = declared()
        async with app:
            options = app.worker(queues=["heavy"], exclude_tasks=["encode"]).options
            assert (options.queues, options.tasks) == (("heavy",), ("render", "mail", "log", PURGE_TASK))
            async with app.run_in_background(tasks=["log"]) as worker:
                assert worker.options.tasks == ("log",)
            with pytest.raises(ConfigurationError, match="queues: got a str; use a list of names"):
                app.worker(queues="heavy")

    run(scenario())


def test_a_queue_that_no_task_and_no_job_names_is_a_warning_with_the_nearest(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        app = declared()
        async with app:
            await app.add_job("log", queue="urgent", delay=60)
            async with app.run_in_background(queues=["heavy", "default", "urgent"], exclude_queues=["light"]):
                assert not warnings_of(caplog)
            async with app.run_in_background(queues=["heavi"], exclude_queues=["lihgt"]):
                pass

    run(scenario())
    assert [words.partition(" Available")[0] for words in warnings_of(caplog)] == [
        "No task declares the queue 'heavi', and no job is in it; did you mean 'heavy'?",
        "No task declares the queue 'lihgt', and no job is in it; did you mean 'light'?",
    ]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def claimed(settings: WorkerSettings) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    return load_tasks(settings).claimed(settings), settings.worker.queues


def test_the_command_line_the_environment_and_the_file_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "stowhand.toml").write_text("queues = ['heavy', 'light']\nexclude_tasks = ['encode', 'log']\n")
    in_file = claimed(read_settings(FLAGS, environ={}, folder=tmp_path))
    assert in_file == (("render", "mail", PURGE_TASK), ("heavy", "light"))
    environ = {"STOWHAND_QUEUE": "light", "STOWHAND_TASK": "log,render", "STOWHAND_EXCLUDE_TASKS": "mail"}
    in_environment = claimed(read_settings(FLAGS, environ=environ, folder=tmp_path))
    assert in_environment == (("render", "log"), ("light",))
    typed = FLAGS | {"queues": ("heavy",), "task": ("mail", "log"), "exclude_tasks": ("render",)}
    settings = read_settings(typed, environ=environ, folder=tmp_path)
    assert claimed(settings) == (("mail", "log"), ("heavy",))
    assert WorkerSettings.from_json(settings.to_json()) == settings, "children are told the same"
    with pytest.raises(ConfigurationError, match="--task, --exclude-task: no task 'rendr'; did you mean 'render'"):
        claimed(read_settings(FLAGS | {"task": ("rendr",)}, environ={}, folder=tmp_path / "none"))
