"""A preset holds for the workers of an App as it does for those of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowhand.app.app import App
from stowhand.app.settings.resolver import read_settings
from stowhand.errors import ConfigurationError
from stowhand.protocols.options import WorkerOptions
from stowhand.retry import natural
from stowhand.testing import MemoryStore
from tests.conftest import Run

SETTLED_APART = ("name", "tasks")


@pytest.fixture(autouse=True)
def _nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("STOWHAND_PRESET", "STOWHAND_CONNECTION", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


def embedded(run: Run, app: App, **options: Any) -> WorkerOptions:
    """The options of a worker of this app."""
    app.task(name="nothing")(lambda: None)

    async def made() -> WorkerOptions:
        async with app:
            worker = app.worker(**options)
        async with app.run_in_background(**options) as running:
            assert plain(running.options) == plain(worker.options)
        return worker.options

    return run(made())


def plain(options: WorkerOptions) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(options).items() if name not in SETTLED_APART}


def of_the_command_line(**typed: str) -> dict[str, Any]:
    return plain(read_settings(typed).worker)


@pytest.mark.parametrize("said", ["argument", "environment", "file"])
def test_a_worker_of_an_app_begins_with_what_its_preset_gives_to_the_command_line(
    run: Run, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if said == "environment":
        monkeypatch.setenv("STOWHAND_PRESET", "service")
    elif said == "file":
        (tmp_path / "stowhand.toml").write_text("preset = 'service'\n")
    app = App("memory://", preset="service") if said == "argument" else App("memory://")
    options = embedded(run, app)
    assert plain(options) == of_the_command_line(preset="service")
    assert (options.fair, options.timeout, options.grace) == (True, 300.0, 300.0)


def test_an_argument_of_the_app_outdoes_the_preset_of_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOWHAND_PRESET", "service")
    assert plain(embedded(run, App("memory://", preset="default"))) == of_the_command_line(preset="default")
    assert embedded(run, App(store=MemoryStore())).fair


def test_options_override_the_preset_and_the_grace_follows_the_timeout(run: Run) -> None:
    app = App("memory://", preset="service")
    options = embedded(run, app, timeout="90s", backoff="natural", poll_interval=None, concurrency=1)
    assert (options.timeout, options.grace, options.concurrency) == (90.0, 90.0, 1)
    assert (options.backoff, options.poll_interval) == (natural, None)
    assert plain(options) == of_the_command_line(
        preset="service", timeout="90s", backoff="natural", concurrency="1"
    ) | {"poll_interval": None}


def test_without_a_preset_the_grace_is_its_own_and_one_that_is_given_wins(run: Run) -> None:
    assert embedded(run, App("memory://"), timeout=90).grace == 25.0
    assert embedded(run, App("memory://", preset="service"), grace=12).grace == 12.0
    assert embedded(run, App("memory://", preset="service"), timeout=None).grace == 25.0


def test_an_unknown_preset_in_the_environment_is_reported_before_anything_runs(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(store=MemoryStore())
    monkeypatch.setenv("STOWHAND_PRESET", "sevice")
    with pytest.raises(ConfigurationError, match="STOWHAND_PRESET: got 'sevice'"):
        embedded(run, app)


def test_tasks_that_a_stop_would_cut_short_are_named_where_the_preset_lets_everything_end(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    for preset, named in (("default", False), ("service", True)):
        caplog.clear()
        app = App("memory://", preset=preset)
        app.task(name="render", timeout="10m")(lambda: None)
        embedded(run, app)
        output = "When the worker stops, running jobs have 5m to finish (grace). Jobs of tasks that may take longer"
        assert any(output in line and "render (10m)" in line for line in caplog.messages) is named
