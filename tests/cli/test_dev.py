"""``stowhand dev``: a worker that restarts when a file changes, and the dashboard; Ctrl-C ends both."""

from __future__ import annotations

import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from stowhand.cli.dev import take_snapshot
from stowhand.cli.web import current_declarations
from stowhand.errors import InvalidJob
from stowhand.jobs.job import NewJob
from tests.cli.conftest import Stowhand, command
from tests.support import subprocesses

DEADLINE = 60
APP = """
from stowhand import App

app = App()

@app.task
async def hello(name: str) -> None:
    print("hello", name, flush=True)
"""


class Dev:
    """The command, and what it and its worker say."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.process = subprocesses.Popen(
            words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until(self, words: str) -> str:
        """The next line with these words."""
        while words not in (line := self._lines.get(timeout=DEADLINE)):
            assert line, "".join(self.said)
        return line

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def close(self) -> None:
        """Its children have its output, too: read to the end, they have ended."""
        self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            self._lines.put(line)
        self._lines.put("")


@contextmanager
def dev(folder: Path, *arguments: str, program: list[str] | None = None) -> Iterator[Dev]:
    """At the end it is killed, unless it has ended; its children must be gone then."""
    running = Dev(folder, command("dev", *arguments) if program is None else [*program, "dev", *arguments])
    children: list[psutil.Process] = []
    try:
        yield running
        if running.process.poll() is None:
            children = running.children()
    finally:
        running.process.kill()
        running.close()
        for child in children:
            child.wait(DEADLINE)  # raises psutil.TimeoutExpired for one that is left running


def test_a_change_restarts_a_mistake_waits_and_ctrl_c_stops_all(folder: Path, stowhand: Stowhand) -> None:
    file = folder / "shop.py"
    file.write_text(APP)
    with dev(folder, "shop:app", "--port", "0") as running:
        assert "http://127.0.0.1:" in running.until("Dashboard: ")
        running.until("Worker connected")
        stowhand("enqueue", "hello", '{"name": "Ada"}')
        running.until("hello Ada")
        file.write_text(APP.replace('"hello"', '"good morning"'))
        assert "shop.py; restarting" in running.until("Changed: ")
        running.until("Worker connected")
        stowhand("enqueue", "hello", '{"name": "Bea"}')
        running.until("good morning Bea")
        file.write_text(APP + "\ndef (")
        running.until("SyntaxError")
        running.until("exited with code 2; waiting for a file to change")
        file.write_text(APP)
        running.until("Worker connected")
        children = running.children()
        assert len(children) == 2
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(DEADLINE) == 0
        assert not [child for child in children if child.is_running()]
    assert sum("Dashboard: " in line for line in running.said) == 1


def test_a_job_added_in_the_dashboard_uses_the_current_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    shop, mail = folder / "edited_shop.py", folder / "edited_mail.py"
    shop.write_text("from stowhand import App\napp = App(include=['edited_mail'])\n")
    task = "from edited_shop import app\n@app.task(max_attempts={})\ndef {}(to: str) -> None: ...\n"
    mail.write_text(task.format(3, "send"))
    instance = current_declarations("edited_shop:app")
    job = NewJob(task="send", payload='{"to":"x"}')
    assert instance(job).max_attempts == 3
    mail.write_text(task.format(20, "send") + task.partition("\n")[2].format(4, "call"))
    assert instance(job).max_attempts == 20
    assert instance(NewJob(task="call", payload='{"to":"x"}')).max_attempts == 4
    shop.write_text("def (")
    with pytest.raises(InvalidJob, match=r"SyntaxError: .*edited_shop\.py, line 1"):
        instance(job)
    shop.write_text("from stowhand import App\napp = App()\n")
    assert instance(job).max_attempts is None


WITHOUT_WEB = """
import sys
for name in ("jinja2", "starlette", "uvicorn"):
    sys.modules[name] = None
from stowhand.cli import main
sys.exit(main())
"""
"""The program, where the extra `web` is not installed."""


def test_without_the_extra_web_the_worker_runs_alone_and_names_the_extra(folder: Path) -> None:
    (folder / "shop.py").write_text(APP)
    with dev(folder, "shop:app", program=[sys.executable, "-c", WITHOUT_WEB]) as running:
        running.until("No dashboard: pip install 'stowhand[web]'")
        running.until("Worker connected")
        (worker,) = running.children()
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(DEADLINE) == 0
        assert not worker.is_running()


def test_killing_dev_leaves_no_process(folder: Path) -> None:
    (folder / "shop.py").write_text(APP)
    with dev(folder, "shop:app", "--port", "0") as running:
        running.until("Worker connected")
        assert len(running.children()) == 2


def test_a_mistyped_app_and_a_used_port_are_reported_at_once(folder: Path, stowhand: Stowhand) -> None:
    (folder / "shop.py").write_text(APP)
    mistyped = stowhand("dev", "shopp:app")
    assert mistyped.code == 2
    assert "'shopp:app': no module named 'shopp'; did you mean 'shop'?" in mistyped.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = stowhand("dev", "shop:app", "--port", port)
    assert in_use.code == 2
    assert f"port {port} on 127.0.0.1 is in use" in in_use.err


def test_packages_and_hidden_folders_are_not_watched(tmp_path: Path) -> None:
    for name in ("shop.py", "shop/mail.py", "stowhand.toml", "notes.txt", ".git/a.py", "node_modules/b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "venv" / "c.py").write_text("")
    assert sorted(take_snapshot(tmp_path)) == ["shop.py", "shop/mail.py", "stowhand.toml"]
