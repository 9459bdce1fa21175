"""`manage.py stowhand`: processes of a project, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from django.tasks import TaskResultStatus

from stowhand.django import StowhandBackend
from tests.support.sources import ROOT

Status = TaskResultStatus
PATIENCE = 60.0


def test_the_command_looks_at_the_jobs_of_the_project(backend: StowhandBackend, shop: Any) -> None:
    result = shop.add.using(backend=backend.alias, priority=1).enqueue(1)
    ended = subprocess.run(
        words(backend, "jobs", "list", "--json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert f'"id":{result.id},' in ended.stdout.replace(" ", "")
    assert not ended.stderr
    assert shop.add.module_path in ended.stdout


@pytest.mark.parametrize("backend", [pytest.param("sqlite", marks=pytest.mark.rare), "postgres"], indirect=True)
def test_a_killed_worker_leaves_nothing_running(backend: StowhandBackend, shop: Any) -> None:
    marker = f"killed {backend.alias}"
    result = shop.hang.using(backend=backend.alias).enqueue(marker)
    from tests.django.site.shop.models import Order

    with subprocess.Popen(words(backend, "worker", "--lease", "2s"), cwd=ROOT, start_new_session=True) as first:
        until(lambda: Order.objects.filter(name=marker).exists())
        os.killpg(first.pid, signal.SIGKILL)
    assert backend.get_result(result.id).status == Status.RUNNING
    with subprocess.Popen(words(backend, "worker", "--lease", "2s"), cwd=ROOT, start_new_session=True) as second:
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
