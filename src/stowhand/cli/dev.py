"""``stowhand dev``: while an application is written. A worker that is started anew when its files change, and the
dashboard, until Ctrl-C.

The worker is a process of its own, and so is the dashboard; both end with their standard input, and so with this one,
however that ends. This process never imports the application after the start: a file that cannot be imported stops the
worker alone, and the next change starts it again.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from stowhand.app.settings.settings import SETTINGS
from stowhand.cli.options import dev_options, settings_of
from stowhand.cli.web import PORT, dashboard_beside, environment_of
from stowhand.cli.worker import check_tasks
from stowhand.clock import stopwatch
from stowhand.observe.job_logger import core_logger
from stowhand.service.exit_codes import OK

GRACE = "2s"
"""How long a running job has when its worker is started anew; then it goes back unspent, and runs with the new code."""
PAUSE, QUIET = 0.3, 0.1
"""Seconds between two looks at the files; and until a burst of changes is over."""
SHARE = 10
"""Of a folder with very many files: the time between two looks is so many times what a look takes."""
LAST = 10.0
"""Seconds that a worker has to end beyond its grace."""
WATCHED = (".py", ".toml")
PASSED_OVER = ("__pycache__", "node_modules", "site-packages")

Seen = dict[str, tuple[int, int]]


@click.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Of the dashboard.")
@dev_options
def command(port: int, **typed: Any) -> int:
    """Run a worker that reloads, and the dashboard, while you write.

    MODULE:APP is your App, as in shop.jobs:app; without one it is the folder tasks/. The worker is started anew when a
    file of the current folder changes (*.py, *.toml). Ctrl-C ends everything.
    """
    settings = settings_of(typed)
    check_tasks(settings)
    connection = settings.store.connection
    stop = _Stop()
    missing = [name for name in ("jinja2", "starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        core_logger().info("No dashboard: pip install 'stowhand[web]'")
    elif connection.scheme == "memory":
        core_logger().warning("No dashboard: this App's jobs are in the memory of each process, and no other sees them")
    is_shown = not missing and connection.scheme != "memory"
    with dashboard_beside(f"127.0.0.1:{port}" if is_shown else None, typed, allow_actions=True):
        _work(typed, Path.cwd(), stop)
    return OK


class _Stop:
    """Ctrl-C and TERM: the first lets running jobs end, within their grace; the second hands them back; the third
    ends at once."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.times = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._add())

    def _add(self) -> None:
        self.times += 1
        self.asked.set()


class _Worker:
    """A worker's process, in a group of its own, so that a terminal's Ctrl-C is for this process alone."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stowhand.cli", "worker", "--beside"],
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def code(self) -> int | None:
        """Its exit code; ``None``: it runs."""
        return self._process.poll()

    def end(self, stop: _Stop, within: float) -> None:
        """In order, if it does within so many seconds; a repeated Ctrl-C hurries it."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        last, hurried = stopwatch() + within, stop.times
        while self.code is None and stopwatch() < last and stop.times < hurried + 2:
            if stop.times > hurried and self.code is None:
                self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PAUSE)
        if self.code is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _work(typed: Mapping[str, Any], folder: Path, stop: _Stop) -> None:
    """Until stopped. A worker that ends by itself has said why; the next change starts another."""
    environ = {"STOWHAND_GRACE": os.environ.get("STOWHAND_GRACE", GRACE), **environment_of(typed, "store", "worker")}
    within = SETTINGS["grace"].read(environ["STOWHAND_GRACE"]) + LAST
    seen, pause = look(folder), PAUSE
    worker: _Worker | None = _Worker(environ)
    try:
        while not stop.asked.wait(pause):
            if worker is not None and worker.code is not None:
                core_logger().error(f"The worker has ended with code {worker.code}; waiting for a change of a file")
                worker = None
            began = stopwatch()
            changed, seen = _changes(folder, seen)
            pause = max(PAUSE, SHARE * (stopwatch() - began))
            if changed:
                core_logger().info(f"Changed: {', '.join(changed[:3])}{', …' * (len(changed) > 3)}; starting anew")
                if worker is not None:
                    worker.end(stop, within)
                worker = None if stop.asked.is_set() else _Worker(environ)
    finally:
        if worker is not None:
            worker.end(stop, within)


def _changes(folder: Path, seen: Seen) -> tuple[list[str], Seen]:
    """The files that are new, gone or different, once nothing changes any more; and what there is now."""
    now = look(folder)
    while now != seen and (then := _after_a_pause(folder)) != now:
        now = then
    changed = sorted(name for name in {*seen, *now} if seen.get(name) != now.get(name))
    return changed, now


def _after_a_pause(folder: Path) -> Seen:
    threading.Event().wait(QUIET)
    return look(folder)


def look(folder: Path) -> Seen:
    """The files of an application, and what of them changes with their contents. Hidden folders, installed packages and
    virtual environments are passed over."""
    found: Seen = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith(".") and name not in PASSED_OVER
            and not Path(root, name, "pyvenv.cfg").exists()
        ]  # fmt: skip
        for name in files:
            if name.endswith(WATCHED):
                with suppress(OSError):  # gone again
                    status = (file := Path(root, name)).stat()
                    found[str(file.relative_to(folder))] = status.st_mtime_ns, status.st_size
    return found
