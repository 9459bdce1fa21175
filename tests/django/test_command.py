"""`manage.py stowhand`: processes of a project, one of which is killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.db import connections
from django.tasks import TaskResultStatus, task_backends

from stowhand.django import StowhandBackend
from stowhand.django.attempts import options_of
from stowhand.django.management.commands.stowhand import Command
from stowhand.django.project import app_of
from stowhand.jobs.job import NewJob
from tests.django.conftest import drain
from tests.support import subprocesses
from tests.support.sources import ROOT

Status = TaskResultStatus
PATIENCE = 60.0


def test_the_command_uses_the_store_of_the_project(backend: StowhandBackend, shop: Any) -> None:
    result = shop.add.using(backend=backend.alias, priority=1).enqueue(1)
    ended = subprocesses.run(
        words(backend, "jobs", "list", "--json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr
    assert f'"id":{result.id},' in ended.stdout.replace(" ", "")
    assert not ended.stderr
    assert shop.add.module_path in ended.stdout


def test_a_worker_of_the_command_serves_the_named_queues(site: None, shop: Any) -> None:
    backend = task_backends["default"]
    drain(backend)
    results = [task.enqueue(1) for task in (shop.add.using(queue_name="heavy"), shop.add)]
    ended = subprocesses.run(
        words(backend, "worker", "--queue", "heavy", "--once"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr
    for result in results:
        result.refresh()
    assert [result.is_finished for result in results] == [True, False]


def test_a_job_added_by_the_command_has_the_options_of_its_task(backend: StowhandBackend, shop: Any) -> None:
    ended = subprocesses.run(
        words(backend, "enqueue", shop.report.module_path), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode == 0, ended.stderr
    job = backend.database.jobs.get(int(ended.stdout))
    assert job is not None
    assert (job.max_attempts, job.key) == (3, "the report")


def test_a_scheduled_job_has_the_options_of_its_task(backend: StowhandBackend, shop: Any) -> None:
    declared = app_of(backend).registry.complete_foreign_job(NewJob(task=shop.report.module_path))
    assert (declared.max_attempts, declared.key) == (3, "the report")
    assert options_of(shop.report.using(priority=30))["priority"] == -30


def test_an_unknown_backend_is_reported(site: None, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.dict(os.environ), pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "stowhand", "jobs", "list", "--backend", "postgre"])
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert output.startswith(
        "error: 'stowhand.django.serving:app': TASKS has no backend 'postgre' of stowhand; did you"
    )
    assert "project.py" not in output


@pytest.mark.parametrize("arguments", [["jobs", "lst"], ["jobs", "explain"], ["worker", "--wep"]])
def test_errors_name_the_command_as_it_was_called(
    site: None, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with mock.patch.dict(os.environ), pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "stowhand", *arguments])
    assert ended.value.code == 2
    assert f"\nTry: manage.py stowhand {arguments[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_advice_names_commands_of_this_project(
    backend: StowhandBackend, shop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plain ``stowhand`` would act on another store."""
    result = shop.add.using(backend=backend.alias).enqueue(1, 2)
    for command in (["jobs", "explain", result.id], ["doctor"]):
        with mock.patch.dict(os.environ), pytest.raises(SystemExit):
            Command().run_from_argv(["manage.py", "stowhand", *command, "--backend", backend.alias])
        assert "manage.py stowhand worker" in capsys.readouterr().out


def test_child_processes_find_the_settings_of_django(site: None, tmp_path: Path) -> None:
    values = [f"--pythonpath={tmp_path}", "--settings", "tests.django.site.settings"]
    with mock.patch.dict(os.environ, PYTHONPATH="elsewhere"):
        with pytest.raises(SystemExit) as ended:
            Command().run_from_argv(["manage.py", "stowhand", "jobs", "list", "--json", *values])
        assert os.environ["PYTHONPATH"] == f"{tmp_path}{os.pathsep}elsewhere"
    assert ended.value.code == 0


@pytest.mark.parametrize("backend", [pytest.param("sqlite", marks=pytest.mark.rare), "postgres"], indirect=True)
def test_a_killed_worker_leaves_nothing_running(backend: StowhandBackend, shop: Any) -> None:
    marker = f"killed {backend.alias}"
    result = shop.hang.using(backend=backend.alias).enqueue(marker)
    from tests.django.site.shop.models import Order

    with subprocesses.Popen(words(backend, "worker", "--lease", "2s"), cwd=ROOT, start_new_session=True) as first:
        until(lambda: Order.objects.filter(name=marker).exists())
        os.killpg(first.pid, signal.SIGKILL)
    assert backend.get_result(result.id).status == Status.RUNNING
    with subprocesses.Popen(words(backend, "worker", "--lease", "2s"), cwd=ROOT, start_new_session=True) as second:
        try:
            until(lambda: backend.get_result(result.id).is_finished)
        finally:
            second.send_signal(signal.SIGTERM)
    result.refresh()
    assert (result.status, result.return_value) == (Status.SUCCESSFUL, "recovered")
    (worker,) = result.worker_ids
    assert f"-{second.pid}-" in worker
    (error,) = result.errors
    assert f"-{first.pid}-" in error.traceback
    assert "died while running it" in error.traceback


def words(backend: StowhandBackend, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "django", "stowhand", "--backend", backend.alias, *arguments]


def until(holds: Callable[[], bool]) -> None:
    """Waits until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        connections.close_all()
        time.sleep(0.05)
