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
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import urlopen

import pytest

from tests.support.databases import Databases
from tests.support.sources import ROOT

PATIENCE = 60.0


class Shop:
    """The project in a folder of its own, and its processes."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder / "django_shop"
        shutil.copytree(ROOT / "examples" / "django_shop", self.folder)
        self._environment = environment
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._words(*words), cwd=self.folder, env=self._environment)

    def run(self, *words: str) -> str:
        ended = subprocess.run(
            self._words(*words), cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def get(self, path: str, **form: str) -> Any:
        """A GET, or with a form a POST."""
        data = urlencode(form).encode() if form else None
        with urlopen(f"http://127.0.0.1:{self.port}{path}", data, timeout=30) as reply:
            return json.load(reply)

    def until(self, path: str, holds: Any) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                found = self.get(path)
                if holds(found):
                    return found
            except (HTTPError, URLError) as error:
                found = error
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def _words(self, *words: str) -> list[str]:
        return [sys.executable, "manage.py", *words]


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.rare), "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Databases) -> Iterator[Shop]:
    """Migrated, with a web server and a worker."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SITE_", "DJANGO_"))}
    environment.pop("DATABASE_URL", None)
    with ExitStack() as stack:
        if request.param == "postgres":
            parts = urlsplit(stack.enter_context(postgres_server.lend(None)))
            query = parse_qs(parts.query)
            environment |= {
                "DATABASE_NAME": parts.path.removeprefix("/"),
                "DATABASE_HOST": query["host"][0] if "host" in query else parts.hostname or "",
                "DATABASE_PORT": query["port"][0] if "port" in query else str(parts.port or 5432),
                "DATABASE_USER": parts.username or "postgres",
            }
        found = Shop(tmp_path, environment)
        found.run("migrate")
        for words in (
            ("runserver", "--noreload", "--skip-checks", f"127.0.0.1:{found.port}"),
            ("stowhand", "worker"),
        ):
            process = stack.enter_context(found.start(*words))
            stack.callback(process.send_signal, signal.SIGTERM)
        yield found


def test_orders_mail_and_the_nightly_report(shop: Shop) -> None:
    shop.until("/reports", lambda found: found == {})
    made = shop.get("/orders", item="lamp", email="somebody@example.com")["order"]
    with pytest.raises(HTTPError, match="400"):
        shop.get("/orders", item="sold out", email="nobody@example.com")
    found = shop.until(f"/orders/{made}", lambda found: found["mail"] == "SUCCESSFUL")
    assert found == {"item": "lamp", "mail": "SUCCESSFUL", "attempts": 1}
    shop.run("stowhand", "cron", "run", "nightly")
    (told,) = shop.until("/reports", bool).values()
    assert told == 0  # yesterday
    mail = "".join(file.read_text() for file in (shop.folder / "mail").iterdir())
    assert "One lamp is on its way." in mail
    assert "nobody@example.com" not in mail


def test_its_settings_and_its_migrations_are_in_order(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SITE_", "DJANGO_"))}
    environment.pop("DATABASE_NAME", None)
    project = Shop(tmp_path, environment)
    assert "no issues" in project.run("check", "--fail-level", "WARNING")
    project.run("makemigrations", "--check")
