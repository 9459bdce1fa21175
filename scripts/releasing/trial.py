"""Install a built file in a bare environment, and run a job there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_TASK = "def hello(payload, helpers):\n    helpers.logger.info(f\"Hello {payload['name']}\")\n"


class Unfit(Exception):
    """A built file cannot be installed, or does not work where it is."""


def run(artifact: Path, folder: Path, version: str) -> None:
    """Raise ``Unfit`` unless the command says its version and a worker completes a job."""
    environment = folder / "environment"
    _done([sys.executable, "-m", "venv", str(environment)], folder)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    _done([*pip, f"{artifact}[binary]"], folder)
    program = str(environment / "bin" / "stowhand")
    _expect(_done([program, "--version"], folder), version)
    shop = folder / "shop"
    (shop / "tasks").mkdir(parents=True)
    (shop / "tasks" / "hello.py").write_text(_TASK)
    _done([program, "migrate"], shop)
    _done([program, "enqueue", "hello", '{"name": "Ann"}'], shop)
    printed = _done([program, "worker", "--once"], shop)
    _expect(printed, "Hello Ann")
    _expect(printed, "Completed task 1 (hello) with success")


def _done(command: list[str], folder: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOWHAND_", "PG", "PYTHON"))}
    kept.pop("DATABASE_URL", None)
    done = subprocess.run(
        command, cwd=folder, env=kept, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        raise Unfit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def _expect(printed: str, wanted: str) -> None:
    if wanted not in printed:
        raise Unfit(f"{wanted!r} is not in:\n{printed}")
