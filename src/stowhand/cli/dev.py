"""``stowhand dev``: run a worker that restarts when its files change, and the dashboard, until Ctrl-C.

The worker and the dashboard are separate processes. Both exit when their standard input closes, so they never outlive
this process. This process never imports the application after the start. A file that cannot be imported stops only
the worker, and the next change starts it again.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from stowhand.app.settings.settings import SETTINGS
from stowhand.cli.help import Command
from stowhand.cli.options import dev_options, settings_of, take_app
from stowhand.cli.web import DEFAULT_PORT, dashboard_beside, environment_of
from stowhand.cli.worker import check_tasks
from stowhand.clock import SystemClock
from stowhand.observe.job_logger import core_logger
from stowhand.service.children import Child, Children, NextStep, Slot
from stowhand.service.exit_codes import OK
from stowhand.service.file_watch import Snapshot, WatchedPath, watch_paths
from stowhand.tasks.program import describe_exit
from stowhand.worker.host import DEFAULT_TIMINGS

RESTART_GRACE = "2s"
"""Time that running jobs have when the worker restarts. A job returned then uses no attempt and runs the new code."""
WATCHED_SUFFIXES = (".py", ".toml")
IGNORED_FOLDERS = ("__pycache__", "node_modules", "site-packages")


@click.command(cls=Command)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="Port of the dashboard."
)
@dev_options
def command(port: int, **option_values: Any) -> int:
    """Run a worker that reloads, and the dashboard, while you write.

    MODULE:APP is your App, such as shop.jobs:app; the default is the folder tasks/. The worker restarts when a *.py or
    *.toml file of the current folder changes. Ctrl-C stops both.
    """
    take_app(option_values)
    settings = settings_of(option_values)
    check_tasks(settings)
    connection = settings.store.connection
    missing = [name for name in ("jinja2", "starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        core_logger().info("No dashboard: pip install 'stowhand[web]'")
    elif connection.scheme == "memory":
        core_logger().warning(
            "No dashboard: this App keeps its jobs in the memory of each process, so a dashboard cannot read them"
        )
    has_dashboard = not missing and connection.scheme != "memory"
    with dashboard_beside(f"127.0.0.1:{port}" if has_dashboard else None, option_values, allow_actions=True):
        asyncio.run(_Development(option_values, Path.cwd()).run())
    return OK


class _Development:
    """Restarts the worker process when a file changes."""

    def __init__(self, option_values: Mapping[str, Any], folder: Path) -> None:
        grace = os.environ.get("STOWHAND_GRACE", RESTART_GRACE)
        self._environ = {"STOWHAND_GRACE": grace, **environment_of(option_values, "store", "worker")}
        self._grace = SETTINGS["grace"].read(self._environ["STOWHAND_GRACE"])
        self._folder = folder
        self._clock = SystemClock()
        self._children = Children(1, self._start, self._on_end, grace=self._grace)
        self._must_restart = asyncio.Event()
        """Set when a file has changed since the worker was started, or when it must stop."""

    async def run(self) -> None:
        """Run until Ctrl-C: the first lets running jobs finish, the second returns them, the third exits at once."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._stop)
        async with watch_paths({WatchedPath(self._folder, take_snapshot): self._on_change}):
            await self._children.run()

    def _stop(self) -> None:
        self._children.request_stop()
        self._must_restart.set()

    async def _start(self, slot: Slot) -> Child:
        self._must_restart.clear()
        return await Child.start("stowhand.cli", "worker", "--beside", environ=self._environ)

    async def _on_end(self, slot: Slot, code: int) -> NextStep:
        if not self._must_restart.is_set():  # The worker has logged the reason.
            core_logger().error(f"The worker {describe_exit(code)}; waiting for a file to change")
            await self._must_restart.wait()
        return NextStep.AT_ONCE

    async def _on_change(self, names: list[str]) -> None:
        more = ", …" if len(names) > 3 else ""
        core_logger().info(f"Changed: {', '.join(names[:3])}{more}; restarting")
        self._must_restart.set()
        (slot,) = self._children.slots
        if slot.child is not None:
            slot.child.send(b"drain")
            timer = self._clock.call_later(self._grace + DEFAULT_TIMINGS.exit_timeout, slot.child.kill)
            await slot.child.wait()
            timer.cancel()


def take_snapshot(folder: Path) -> Snapshot:
    """Return the application's files with their times and sizes.

    It ignores hidden folders, installed packages and virtual environments.
    """
    snapshot: Snapshot = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith(".") and name not in IGNORED_FOLDERS
            and not Path(root, name, "pyvenv.cfg").exists()
        ]  # fmt: skip
        for name in files:
            if name.endswith(WATCHED_SUFFIXES):
                with suppress(OSError):  # The file was deleted meanwhile.
                    status = (file := Path(root, name)).stat()
                    snapshot[str(file.relative_to(folder))] = status.st_mtime_ns, status.st_size
    return snapshot
