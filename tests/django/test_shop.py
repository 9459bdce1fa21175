"""The shop of examples/django_shop, by real HTTP, with a worker beside it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import urlopen

import pytest

from tests.support import subprocesses
from tests.support.databases import Databases
from tests.support.fork_server import FORKS_TOO
from tests.support.sources import ROOT

PATIENCE = 60.0


class Shop:
    """The project in a folder of its own, and its processes."""

    def __init__(self, folder: Path, environment: dict[str, str], *, is_forked: bool = True) -> None:
        """``is_forked``: its processes have imported Django when they begin, with its driver."""
        self.is_forked = is_forked
        self.folder = folder / "django_shop"
        shutil.copytree(ROOT / "examples" / "django_shop", self.folder)
        self._environment = environment
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self, *words: str, log: IO[str] | None = None) -> subprocess.Popen[bytes]:
        begin = subprocesses.Popen if self.is_forked else subprocess.Popen
        return begin(self._words(*words), cwd=self.folder, env=self._environment, stderr=log)

    def run(self, *words: str) -> str:
        run: Any = subprocesses.run if self.is_forked else subprocess.run
        ended = run(self._words(*words), cwd=self.folder, env=self._environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return str(ended.stdout)

    def get(self, path: str, **form: str) -> Any:
        """A GET, or with a form a POST."""
        data = urlencode(form).encode() if form else None
        with urlopen(f"http://127.0.0.1:{self.port}{path}", data, timeout=30) as reply:
            return json.load(reply)

    def until(self, path: str, holds: Any) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                result = self.get(path)
                if holds(result):
                    return result
            except (HTTPError, URLError) as error:
                result = error
            assert time.monotonic() < deadline, result
            time.sleep(0.05)

    def _words(self, *words: str) -> list[str]:
        return [sys.executable, "manage.py", *words]

    def change(self, file: str, change: Callable[[str], str]) -> None:
        """A file of the project."""
        place = self.folder / file
        place.write_text(change(place.read_text()))


PSYCOPG2 = """
import sys
sys.modules["psycopg"] = None
import django.db.backends.postgresql.base, django.db.backends.postgresql.psycopg_any as driver
assert not driver.is_psycopg3
del sys.modules["psycopg"]
"""
"""Django takes psycopg 3 where it can be imported; jobs need it."""


def plain() -> dict[str, str]:
    """The environment of a project that is told nothing."""
    of_tests = ("SITE_", "DJANGO_", "DATABASE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(of_tests)}


@pytest.fixture(
    params=[*(pytest.param(kind, marks=pytest.mark.rare) for kind in ("sqlite", "postgres by psycopg2")), "postgres"]
)
def shop(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Databases) -> Iterator[Shop]:
    """Migrated, with a web server and a worker."""
    environment = plain()
    with ExitStack() as stack:
        if request.param != "sqlite":
            parts = urlsplit(stack.enter_context(postgres_server.lend(None)))
            query = parse_qs(parts.query)
            environment |= {
                "DATABASE_NAME": parts.path.removeprefix("/"),
                "DATABASE_HOST": query["host"][0] if "host" in query else parts.hostname or "",
                "DATABASE_PORT": query["port"][0] if "port" in query else str(parts.port or 5432),
                "DATABASE_USER": parts.username or "postgres",
            }
        result = Shop(tmp_path, environment, is_forked="psycopg2" not in request.param)
        if not result.is_forked:
            result.change("shop/settings.py", PSYCOPG2.__add__)
        result.run("migrate")
        for words in (
            ("runserver", "--noreload", "--skip-checks", f"127.0.0.1:{result.port}"),
            ("stowhand", "worker"),
        ):
            process = stack.enter_context(result.start(*words))
            stack.callback(process.send_signal, signal.SIGTERM)
        yield result


def test_the_shop_handles_orders_mail_and_the_nightly_report(shop: Shop) -> None:
    shop.until("/reports", lambda found: found == {})
    instance = shop.get("/orders", item="lamp", email="somebody@example.com")["order"]
    with pytest.raises(HTTPError, match="400"):
        shop.get("/orders", item="sold out", email="nobody@example.com")
    found = shop.until(f"/orders/{instance}", lambda found: found["mail"] == "SUCCESSFUL")
    assert found == {"item": "lamp", "mail": "SUCCESSFUL", "attempts": 1}
    shop.run("stowhand", "cron", "run", "nightly")
    (told,) = shop.until("/reports", bool).values()
    assert told == 0  # yesterday
    mail = "".join(file.read_text() for file in (shop.folder / "mail").iterdir())
    assert "One lamp is on its way." in mail
    assert "nobody@example.com" not in mail


@pytest.fixture
def debugged(tmp_path: Path) -> Shop:
    """Migrated, on SQLite, with DEBUG and a job; nothing runs."""
    result = Shop(tmp_path, plain() | {FORKS_TOO: ""})
    result.change("shop/settings.py", lambda text: text.replace("DEBUG = False", "DEBUG = True"))
    result.run("migrate")
    report(result)
    return result


def report(shop: Shop) -> None:
    """Enqueue one."""
    shop.run("shell", "--no-imports", "-c", "from shop.tasks import report; report.enqueue('2026-05-01')")


@contextmanager
def running(shop: Shop, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], None]]]:
    """The process, and what waits until it has said a text once more; killed at the end if need be."""
    file = shop.folder.parent / "log"
    heard = 0

    def until_it_says(text: str) -> None:
        nonlocal heard
        deadline = time.monotonic() + PATIENCE
        while (at := file.read_text().find(text, heard)) < 0:
            assert time.monotonic() < deadline, file.read_text()
            time.sleep(0.05)
        heard = at + len(text)

    with file.open("w") as log, shop.start("stowhand", *words, log=log) as process:
        try:
            yield process, until_it_says
        finally:
            process.kill()


@pytest.mark.rare
def test_two_processes_share_the_work_and_log_each_line_once(debugged: Shop) -> None:
    """With DEBUG Django writes the lines of `django.tasks` itself, if nobody stops it."""
    with running(debugged, "worker", "--once", "--processes", "2") as (process, _):
        assert process.wait(PATIENCE) == 0
    message = (debugged.folder.parent / "log").read_text()
    assert message.count("state=SUCCESSFUL") == 1, message
    assert message.count("Worker connected") == 2, message


@pytest.mark.rare
def test_the_dashboard_of_the_project_is_shown(debugged: Shop) -> None:
    with running(debugged, "web", "--port", str(debugged.port)) as (process, until_it_says):
        until_it_says(str(debugged.port))
        with urlopen(f"http://127.0.0.1:{debugged.port}/jobs", timeout=30) as reply:
            assert "shop.tasks.report" in reply.read().decode().replace("<wbr>", "")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.rare
def test_a_mistake_while_editing_is_reported_until_it_is_fixed(debugged: Shop) -> None:
    with running(debugged, "dev", "--port", "0") as (process, until_it_says):
        until_it_says("(shop.tasks.report) with success")
        debugged.change("shop/tasks.py", lambda text: f"1 / 0\n{text}")
        until_it_says("ZeroDivisionError: division by zero (shop/tasks.py, line 1)")
        until_it_says("waiting for a file to change")
        debugged.change("shop/tasks.py", lambda text: text.removeprefix("1 / 0\n"))
        until_it_says("looking for jobs")
        report(debugged)
        until_it_says("(shop.tasks.report) with success")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) in (0, 130)


def test_the_settings_and_migrations_of_the_shop_are_valid(tmp_path: Path) -> None:
    project = Shop(tmp_path, plain())
    assert "no issues" in project.run("check", "--fail-level", "WARNING")
    project.run("makemigrations", "--check")
