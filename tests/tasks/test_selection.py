"""Groups and names of tasks: what a worker claims, made once at its start, and told where a name is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stowhand.app.app import App
from stowhand.app.settings.resolver import read_settings
from stowhand.app.settings.settings import WorkerSettings
from stowhand.errors import ConfigurationError, StowhandError
from stowhand.protocols.operating import PURGE
from stowhand.service.loading import load_tasks
from stowhand.tasks.registry import Registry
from stowhand.tasks.selection import Selection
from stowhand.testing import MemoryStore
from tests.conftest import Run

FLAGS: dict[str, Any] = {"connection": "sqlite:///queue.db", "app": f"{__name__}:app"}


def declared() -> App:
    app = App(store=MemoryStore())
    app.task(name="render", group="heavy")(lambda: None)
    app.task(name="encode", group="heavy")(lambda: None)
    app.task(name="mail", group="light")(lambda: None)
    app.task(name="log")(lambda: None)
    return app


app = declared()


@pytest.fixture
def registry() -> Registry:
    return declared().registry


@pytest.mark.parametrize(
    ("told", "claims"),
    [
        ({}, ("render", "encode", "mail", "log", PURGE)),
        ({"groups": ("heavy",)}, ("render", "encode")),
        ({"groups": ("heavy", "light")}, ("render", "encode", "mail")),
        ({"tasks": ("log", PURGE)}, ("log", PURGE)),
        ({"groups": ("light",), "tasks": ("log",)}, ("mail", "log")),
        ({"exclude_tasks": ("render", PURGE)}, ("encode", "mail", "log")),
        ({"groups": ("heavy",), "exclude_tasks": ("render", "mail")}, ("encode",)),
        ({"tasks": ()}, ()),
    ],
)
def test_a_worker_claims_what_it_is_told_by_group_and_by_name(
    registry: Registry, told: dict[str, Any], claims: tuple[str, ...]
) -> None:
    assert Selection(**told).of(registry, lent=False) == claims


def test_built_in_tasks_are_left_to_whoever_keeps_a_lent_store(registry: Registry) -> None:
    assert PURGE not in Selection().of(registry, lent=True)
    assert Selection(tasks=(PURGE,)).of(registry, lent=True) == (PURGE,)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"groups": ("heavi",)}, "no task has the group 'heavi'; did you mean 'heavy'"),
        ({"tasks": ("rendr",)}, "no task 'rendr'; did you mean 'render'"),
        ({"exclude_tasks": ("maill",)}, "no task 'maill'; did you mean 'mail'"),
        ({"groups": ("light",), "exclude_tasks": ("mail",)}, "no task is left to claim"),
    ],
)
def test_an_unknown_name_and_an_empty_list_are_refused(registry: Registry, told: dict[str, Any], words: str) -> None:
    with pytest.raises(StowhandError, match=words):
        Selection(**told).of(registry, lent=False)


def test_a_group_that_nobody_declares_is_refused_with_the_way_to_declare_one() -> None:
    with pytest.raises(ConfigurationError, match=r"no task has the group 'x'; a task is put into one by @app.task\("):
        Selection(groups=("x",)).of(Registry(), lent=False)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (5, "group: an int; give a string"),
        ("", "group: empty"),
        ("a,b", "leave out commas and outer spaces"),
        (" a", "leave out commas and outer spaces"),
        ("g" * 129, "group: 129 characters, the limit is 128"),
    ],
)
def test_a_group_is_one_word(group: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        App(store=MemoryStore()).task(name="act", group=group)(lambda: None)


def test_an_embedded_worker_is_told_with_keywords(run: Run) -> None:
    async def scenario() -> None:
        app = declared()
        async with app:
            assert app.worker(groups=["heavy"], exclude_tasks=["encode"]).options.tasks == ("render",)
            async with app.run_in_background(tasks=["log"]) as worker:
                assert worker.options.tasks == ("log",)
            with pytest.raises(ConfigurationError, match="groups: a str; give a list of names"):
                app.worker(groups="heavy")
            with pytest.raises(StowhandError, match="did you mean 'heavy'"):
                app.worker(groups=["heavyy"])

    run(scenario())


def claimed(settings: WorkerSettings) -> tuple[str, ...]:
    return load_tasks(settings).claimed(settings)


def test_the_command_line_the_environment_and_the_file_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "stowhand.toml").write_text("groups = ['heavy', 'light']\nexclude_tasks = 'encode'\n")
    assert claimed(read_settings(FLAGS, environ={}, folder=tmp_path)) == ("render", "mail")
    environ = {"STOWHAND_GROUP": "light", "STOWHAND_TASK": "log,render", "STOWHAND_EXCLUDE_TASKS": "mail"}
    assert claimed(read_settings(FLAGS, environ=environ, folder=tmp_path)) == ("render", "log")
    typed = FLAGS | {"groups": ("heavy",), "task": ("mail", "log"), "exclude_tasks": ("render",)}
    settings = read_settings(typed, environ=environ, folder=tmp_path)
    assert claimed(settings) == ("encode", "mail", "log")
    assert WorkerSettings.from_json(settings.to_json()) == settings, "children are told the same"
    with pytest.raises(ConfigurationError, match="--task, --exclude-task: no task 'rendr'; did you mean 'render'"):
        claimed(read_settings(FLAGS | {"task": ("rendr",)}, environ={}, folder=tmp_path / "none"))
