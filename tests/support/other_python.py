"""Tests of tests/django run in an environment of their own, `.venv-django` (scripts/setup-django): Django 6 needs
Python 3.12, and this run may have an older one.

Here each file is one test, which runs the file there and passes its reports on, so that the closing line counts and
shows them as if they had run here. Without such an environment it is skipped, and with `--all` it fails. By hand:
`.venv-django/bin/python -m pytest tests/django/test_backend.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.databases import Databases
from tests.support.sources import ROOT

PYTHON = ROOT / ".venv-django" / "bin" / "python"
OLDER = ROOT / ".state" / "django-6.0"
REPORTS = "REPORTS_OF_DJANGO"
"""Names the file of reports, in the other environment. (What begins with our own name is told to mean nothing.)"""
LONGEST = 280
"""Seconds that a file may take there."""
ABSENT = "Django 6 needs Python 3.12, and scripts/setup-django found none: tests/django did not run"
FOLDER = ROOT / "tests" / "django"
_passed_on = pytest.StashKey[list[dict[str, Any]]]()


def is_there() -> bool:
    """This process is the other environment's."""
    return Path(sys.prefix) == PYTHON.parent.parent


class ElsewhereModule(pytest.Module):
    """A file of tests that is not imported here."""

    def _getobj(self) -> ModuleType:
        module = ModuleType(self.path.stem)
        file = self.path

        def test_in_the_environment_of_django(request: pytest.FixtureRequest, postgres_server: Databases) -> None:
            run_there(request, file, postgres_server)

        @pytest.mark.rare
        def test_with_django_6_0(request: pytest.FixtureRequest, postgres_server: Databases) -> None:
            run_there(request, file, postgres_server, OLDER)

        for function in (test_in_the_environment_of_django, test_with_django_6_0):
            function.__module__ = module.__name__
            setattr(module, function.__name__, pytest.mark.timeout(LONGEST + 20)(function))
        return module


def run_there(request: pytest.FixtureRequest, file: Path, server: Databases, beside: Path | None = None) -> None:
    """Run the file's tests, and pass their reports on. ``beside``: a folder whose packages come first."""
    if not PYTHON.exists() or (beside is not None and not beside.exists()):
        (pytest.fail if request.config.getoption("--all") else pytest.skip)(ABSENT)
    reports: Path = request.getfixturevalue("tmp_path") / "reports"
    words = [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    words += ["--all"] if request.config.getoption("--all") else []
    environment = os.environ | {REPORTS: str(reports), "DATABASE_URL": server.admin_url}
    environment.pop("PYTEST_XDIST_WORKER", None)
    if beside is not None:
        environment["PYTHONPATH"] = str(beside)
    ended = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    lines = reports.read_text().splitlines() if reports.exists() else []
    of = "" if beside is None else f"[{beside.name}]"
    found = [json.loads(line) for line in lines]
    for one in found:
        one["nodeid"] += of
    request.config.stash.setdefault(_passed_on, []).extend(found)
    explained = any(one["outcome"] == "failed" for one in found)
    if ended.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or (
        ended.returncode and not explained
    ):
        pytest.fail(f"pytest ended with {ended.returncode} there:\n{ended.stdout}{ended.stderr}", pytrace=False)


class There:
    """In the other environment: writes each report down."""

    def __init__(self, config: pytest.Config, place: Path) -> None:
        self._config = config
        self._place = place

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
            with self._place.open("a") as file:
                file.write(json.dumps(data) + "\n")


class Here:
    """Counts and shows the other environment's reports; of a distributed run, in the process that shares it out."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        for data in getattr(node, "workeroutput", {}).get("passed_on", ()):
            _log(node.config, data)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        passed_on = session.config.stash.get(_passed_on, [])
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["passed_on"] = passed_on
            return
        for data in passed_on:
            _log(session.config, data)
        if any(data["outcome"] == "failed" for data in passed_on) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _log(config: pytest.Config, data: dict[str, Any]) -> None:
    report = config.hook.pytest_report_from_serializable(config=config, data=data)
    config.hook.pytest_runtest_logreport(report=report)


def pytest_configure(config: pytest.Config) -> None:
    if place := os.environ.get(REPORTS):
        config.pluginmanager.register(There(config, Path(place)))
    else:
        config.pluginmanager.register(Here())


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path.parent == FOLDER and not is_there():
        return ElsewhereModule.from_parent(parent, path=module_path)
    return None
