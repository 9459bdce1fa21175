"""Tests of tests/django run in an environment of their own, `.venv-django` (scripts/setup-django): Django 6 needs
Python 3.12, and this run may have an older one.

Here each file is one test per Django, which passes the reports of its file on, so that the closing line counts and
shows them as if they had run here. One process there runs all files: its start and its databases take longer than most
files do. Without such an environment a file is skipped, and with `--all` it fails. By hand:
`.venv-django/bin/python -m pytest tests/django/test_backend.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from types import ModuleType
from typing import IO, Any

import pytest

from tests.support.databases import Databases
from tests.support.sources import ROOT

PYTHON = ROOT / ".venv-django" / "bin" / "python"
OLDER = ROOT / ".state" / "django-6.0"
REPORTS = "REPORTS_OF_DJANGO"
"""The other environment's end of a pipe. (What begins with our own name is told to mean nothing.)"""
LONGEST = 300
"""Seconds that a file may take there."""
END = 60
"""Seconds in which that process ends once its last file has."""
ABSENT = "Django 6 needs Python 3.12, and scripts/setup-django found none: tests/django did not run"
FOLDER = ROOT / "tests" / "django"
_passed_on = pytest.StashKey[list[dict[str, Any]]]()


def is_there() -> bool:
    """This process is the other environment's."""
    return Path(sys.prefix) == PYTHON.parent.parent


class Elsewhere:
    """A run of tests in the other environment."""

    def __init__(self, process: subprocess.Popen[bytes], lines: IO[str], said: IO[bytes]) -> None:
        self._process = process
        self._said = said
        self._found: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._ended: dict[str, list[dict[str, Any]]] = {}
        # Read at once: the other process does not wait for the time in which its reports are asked for.
        threading.Thread(target=self._read, args=(lines,), name="reports of Django", daemon=True).start()

    def reports(self, file: str) -> list[dict[str, Any]]:
        """Of the tests of this file, once it has ended."""
        reports: list[dict[str, Any]] = []
        while file not in self._ended:
            match self._found.get():
                case {"ended": other}:
                    self._ended[other], reports = reports, []
                case None:
                    self._found.put(None)
                    self._process.wait(END)
                    self._fail(f"without having run {file}, behind {reports[-1]['nodeid'] if reports else 'no test'}")
                case report:
                    reports.append(report)
        return self._ended[file]

    def end(self) -> None:
        """After the last file: what went wrong besides tests."""
        code = self._process.wait(END)
        failed = any(one["outcome"] == "failed" for reports in self._ended.values() for one in reports)
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or (code and not failed):
            self._fail("after its last test")

    def _read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._found.put(json.loads(line))
        self._found.put(None)

    def _fail(self, when: str) -> None:
        self._said.seek(0)
        output = self._said.read().decode(errors="replace")
        pytest.fail(f"pytest ended with {self._process.returncode} there, {when}:\n{output}", pytrace=False)


def _started(request: pytest.FixtureRequest, server: Databases, beside: Path | None = None) -> Iterator[Elsewhere]:
    """A run of the files that this run asks for. ``beside``: a folder whose packages come first."""
    every = request.config.getoption("--all")
    if not PYTHON.exists() or (beside is not None and not beside.exists()):
        (pytest.fail if every else pytest.skip)(ABSENT)
    asking = [item for item in request.session.items if request.fixturename in getattr(item, "fixturenames", ())]
    words = [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", *(["--all"] if every else [])]
    words += [file_of(item) for item in asking]
    readable, writable = os.pipe()
    environment = os.environ | {REPORTS: str(writable), "DATABASE_URL": server.admin_url}
    for name in ("PYTEST_XDIST_WORKER", "FAILED_STEPS"):
        environment.pop(name, None)
    if beside is not None:
        environment["PYTHONPATH"] = str(beside)
    with TemporaryFile() as said:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT, pass_fds=[writable]
        )
        os.close(writable)
        with process:
            try:
                yield (elsewhere := Elsewhere(process, os.fdopen(readable), said))
                if request.session.shouldstop or request.session.shouldfail:
                    return
                elsewhere.end()
            finally:
                process.kill()


@pytest.fixture(scope="session")
def django(request: pytest.FixtureRequest, postgres_server: Databases) -> Iterator[Elsewhere]:
    """The run with the newest Django."""
    yield from _started(request, postgres_server)


@pytest.fixture(scope="session")
def django_6_0(request: pytest.FixtureRequest, postgres_server: Databases) -> Iterator[Elsewhere]:
    """The run with the one before."""
    yield from _started(request, postgres_server, OLDER)


class ElsewhereModule(pytest.Module):
    """A file of tests that is not imported here."""

    def _getobj(self) -> ModuleType:
        module = ModuleType(self.path.stem)

        @pytest.mark.xdist_group("django")
        def test_in_the_environment_of_django(request: pytest.FixtureRequest, django: Elsewhere) -> None:
            pass_on(request, django)

        @pytest.mark.rare
        @pytest.mark.xdist_group("django_6_0")
        def test_with_django_6_0(request: pytest.FixtureRequest, django_6_0: Elsewhere) -> None:
            pass_on(request, django_6_0, f"[{OLDER.name}]")

        for function in (test_in_the_environment_of_django, test_with_django_6_0):
            function.__module__ = module.__name__
            setattr(module, function.__name__, pytest.mark.timeout(LONGEST)(function))
        return module


def file_of(item: pytest.Item) -> str:
    """As the other environment names it."""
    return item.path.relative_to(ROOT).as_posix()


def pass_on(request: pytest.FixtureRequest, elsewhere: Elsewhere, of: str = "") -> None:
    """The reports of the file of this test, as if its tests had run here. ``of``: behind their names."""
    rows = [as_here(one, of) for one in elsewhere.reports(file_of(request.node))]
    request.config.stash.setdefault(_passed_on, []).extend(rows)


def as_here(report: dict[str, Any], of: str) -> dict[str, Any]:
    """With what JSON has taken from it: where and why a test was skipped is a tuple, or --junitxml ends the run."""
    why = report["longrepr"]
    return report | {"nodeid": report["nodeid"] + of, "longrepr": tuple(why) if isinstance(why, list) else why}


class There:
    """In the other environment: writes down each report, and that a file has ended."""

    def __init__(self, config: pytest.Config, pipe: IO[str]) -> None:
        self._config = config
        self._pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._write(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        done = yield
        if nextitem is None or nextitem.path != item.path:
            self._write({"ended": file_of(item)})
        return done

    def _write(self, data: dict[str, Any]) -> None:
        self._pipe.write(json.dumps(data) + "\n")
        self._pipe.flush()


class Here:
    """Counts and shows the other environment's reports; of a distributed run, in the process that shares it out."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._log(node.config, getattr(node, "workeroutput", {}).get("passed_on", ()))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        passed_on = session.config.stash.get(_passed_on, [])
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["passed_on"] = passed_on
            return
        self._log(session.config, passed_on)
        if any(data["outcome"] == "failed" for data in passed_on) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _log(self, config: pytest.Config, found: Sequence[dict[str, Any]]) -> None:
        # Before it is told of them: more than were collected would be more than 100 %.
        self._session.testscollected += len({data["nodeid"] for data in found})
        for data in found:
            report = config.hook.pytest_report_from_serializable(config=config, data=data)
            config.hook.pytest_runtest_logreport(report=report)


def pytest_configure(config: pytest.Config) -> None:
    if place := os.environ.pop(REPORTS, None):
        os.set_inheritable(int(place), False)
        config.pluginmanager.register(There(config, os.fdopen(int(place), "w")))
    else:
        config.pluginmanager.register(Here())


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path.parent == FOLDER and not is_there():
        return ElsewhereModule.from_parent(parent, path=module_path)
    return None
