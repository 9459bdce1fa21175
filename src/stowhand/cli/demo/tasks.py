"""The demo's tasks, as an application would write them."""

from __future__ import annotations

from pathlib import Path

from stowhand.app.app import App
from stowhand.cli.demo.files import checksum_of
from stowhand.cli.demo.report import Report
from stowhand.clock import sleep_blocking
from stowhand.errors import Poison
from stowhand.retry import constant
from stowhand.tasks.context import Context

app = App()


@app.task(name="checksum", backoff=constant(0.5), timeout=60.0)
def checksum(context: Context, path: str, report: str, pause: float = 0.0, fail_first: bool = False) -> None:
    """Read one file and enter its checksum into the report. Plain synchronous code: it runs in a thread of the
    worker."""
    if fail_first and context.attempt == 1:
        raise OSError(f"{path}: made to fail the first time, to show a retry")
    if not Path(path).is_file():
        raise Poison(f"{path}: there is no such file, and trying again will not make one")
    found = checksum_of(Path(path))
    sleep_blocking(pause)  # so that there is a middle in which a worker can be killed
    Report(Path(report)).enter(path, found)
