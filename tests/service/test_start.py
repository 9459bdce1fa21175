"""Errors at the start are reported at once, each with a fix; and every option has an environment variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowhand.app.settings.resolver import read_settings
from stowhand.app.settings.settings import SETTINGS, WorkerSettings
from stowhand.app.start import grace_warning
from stowhand.cli.worker import command
from stowhand.errors import ConfigurationError, StoreUnreachable
from stowhand.service.exit_codes import STORE_UNREACHABLE, USAGE, exit_code
from stowhand.service.run import run_worker
from stowhand.tasks.registry import Registry, define

NOBODY = "postgresql://nobody@127.0.0.1:1/x"
"""Port 1: refused at once."""

# Of each option of the worker: something that it can be, and something that it cannot.
VALUES: dict[str, tuple[str, str | None]] = {
    "connection": ("sqlite:///other.db", "mysql://x"),
    "token": ("secret", None),
    "ca_file": ("ca.pem", None),
    "insecure": ("yes", "perhaps"),
    "schema": ("jobs", "x" * 64),
    "no_prepared_statements": ("1", "2"),
    "log_level": ("WARNING", "loud"),
    "log_format": ("json", "xml"),
    "tasks": ("work", None),
    "app": ("shop.jobs:app", None),
    "task": ("send", None),
    "exclude_tasks": ("send,fetch", None),
    "queues": ("mail,bulk", "x" * 200),
    "exclude_queues": ("mail", "x" * 200),
    "crontab": ("times", None),
    "concurrency": ("7", "0"),
    "processes": ("2", "none"),
    "max_jobs": ("1000", "0"),
    "max_age": ("6h", "old"),
    "max_memory": ("512MB", "much"),
    "max_pool_size": ("12", "-1"),
    "poll_interval": ("500", "soon"),
    "lease": ("20s", "0.1"),
    "grace": ("1m", "-1"),
    "timeout": ("300s", "0"),
    "backoff": ("service", "linear"),
    "forbidden_flags": ("slow,big", "x" * 200),
    "history": ("14d", "14y"),
    "failed_retention": ("30d", "never"),
    "listen_url": ("postgresql://direct/x", "sqlite:///x"),
    "synchronous": ("normal", "OFF"),
    "preset": ("service", "servce"),
    "fair": ("on", "fair"),
    "watch": ("true", "x"),
    "http": ("0.0.0.0:9100", "host"),
    "web": ("8080", "host"),
    "app_version": ("2026.11", None),
    "metrics_labels": ("7", "0"),
    "otel": ("TRUE", "-"),
    "once": ("true", "twice"),
    "schema_only": ("true", "3"),
}


def values_of(settings: WorkerSettings) -> dict[str, Any]:
    """Return all settings by name. The store is represented by its address, since the sources differ."""
    structs = (
        settings.worker,
        settings.store,
        settings.store.options,
        settings,
    )  # a worker's own tasks are not settings
    fields = {name: value for struct in structs for name, value in msgspec.structs.asdict(struct).items()}
    return {name: fields[option.field] for name, option in SETTINGS.items()} | {"connection": settings.store.url}


def test_every_option_of_a_worker_is_tested_here() -> None:
    no_settings = {"version", "beside", "module_app"}
    assert {option.name for option in command.params} - no_settings == VALUES.keys()


@pytest.mark.parametrize("name", VALUES)
def test_an_environment_variable_is_read_like_its_option(name: str, tmp_path: Path) -> None:
    value, _ = VALUES[name]
    usual = values_of(read_settings({}, environ={}, folder=tmp_path))
    message = values_of(read_settings({name: value}, environ={}, folder=tmp_path))
    heard = values_of(read_settings({}, environ={SETTINGS[name].variables[0]: value}, folder=tmp_path))
    assert heard == message
    assert heard[name] != usual[name]


@pytest.mark.parametrize("name", [name for name, (_, wrong) in VALUES.items() if wrong is not None])
def test_a_wrong_variable_is_named(name: str, tmp_path: Path) -> None:
    wrong = VALUES[name][1]
    assert wrong is not None
    with pytest.raises(ConfigurationError) as refused:
        read_settings({}, environ={SETTINGS[name].variables[0]: wrong}, folder=tmp_path)
    assert str(refused.value).startswith(f"{SETTINGS[name].variables[0]}: ")


def test_an_undecodable_environment_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^STOWHAND_CONNECTION: "):
        read_settings({}, environ={"STOWHAND_CONNECTION": "\udcff"}, folder=tmp_path)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_all_errors_are_reported_at_once(processes: str, tmp_path: Path) -> None:
    settings = read_settings(
        {
            "connection": NOBODY,
            "app": "no_such_module:app",
            "crontab": str(tmp_path / "absent"),
            "http": "192.0.2.1:80",
            "processes": processes,
        },
        environ={},
        folder=tmp_path,
    )
    with pytest.raises(ConfigurationError) as refused:
        run_worker(settings)
    address, app, crontab, store = str(refused.value).split("\n")[:4]
    assert address.startswith("--http 192.0.2.1:80: ")
    assert app.startswith("'no_such_module:app': ")
    assert crontab.startswith(f"crontab {tmp_path}")
    assert store.startswith(NOBODY)
    assert exit_code(refused.value) == USAGE


def test_an_unreachable_store_keeps_its_exit_code_and_is_reported_last(tmp_path: Path) -> None:
    output = {"connection": NOBODY, "app": "tests.service.work:app"}
    with pytest.raises(StoreUnreachable) as unreachable:
        run_worker(read_settings(output, environ={}, folder=tmp_path))
    assert exit_code(unreachable.value) == STORE_UNREACHABLE
    assert str(unreachable.value).count(NOBODY) == 1


def test_an_app_whose_import_fails_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks would be there twice, if it were imported again to see what else is wrong."""
    (tmp_path / "halves_app.py").write_text("from stowhand import App\napp = App()\n")
    (tmp_path / "halves_tasks.py").write_text(
        "from halves_app import app\n@app.task\nasync def send(): ...\nimport no_such_module\n"
    )
    (tmp_path / "halves.py").write_text("from halves_app import app\nimport halves_tasks\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    output = {"connection": f"sqlite:///{tmp_path}/queue.db", "app": "halves:app"}
    with pytest.raises(ConfigurationError) as refused:
        run_worker(read_settings(output, environ={}, folder=tmp_path))
    why = "'halves:app': importing halves failed: No module named 'no_such_module'"
    assert str(refused.value) == f"{why} ({tmp_path}/halves_tasks.py, line 4)"


def test_tasks_with_timeouts_longer_than_the_grace_are_named() -> None:
    registry = Registry()
    for name, timeout in (("short", 20), ("as_long", 300), ("import_all", 600)):
        registry.add(define(_task, name, {"timeout": timeout}))
    registry.add(define(_task, "unlimited", {}))
    settings = read_settings({"preset": "service", "connection": "sqlite:///x.db"}, environ={})
    output = grace_warning(registry, settings.worker.grace, "--grace")
    assert output is not None
    assert output.startswith("When the worker stops, running jobs have 5m to finish (--grace)")
    assert output.endswith(": import_all (10m)")
    assert grace_warning(Registry(), settings.worker.grace, "--grace") is None


async def _task() -> None:
    """Nothing."""
