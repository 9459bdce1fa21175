"""Install a built file in an empty environment, and run the example of the README there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_EXAMPLE = re.compile(r"^```python\n(# jobs\.py\n.*?)^```$", re.MULTILINE | re.DOTALL)
_PACKAGES_OF_EXAMPLE = ("sqlalchemy",)


class Unfit(Exception):
    """A built file cannot be installed, or does not work where it is."""


def run(artifact: Path, folder: Path, version: str, readme: str) -> None:
    """Raise ``Unfit`` unless the command prints this version and the example of the README works."""
    environment = folder / "environment"
    _done([sys.executable, "-m", "venv", str(environment)], folder)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    _done([*pip, f"{artifact}[binary]", *_PACKAGES_OF_EXAMPLE], folder)
    program = str(environment / "bin" / "stowhand")
    _expect(_done([program, "--version"], folder), version)
    (example,) = _EXAMPLE.findall(readme)
    shop = folder / "shop"
    shop.mkdir()
    (shop / "jobs.py").write_text(example)
    _done([str(environment / "bin" / "python"), "jobs.py"], shop)
    printed = _done([program, "worker", "jobs:app", "--once"], shop)
    _expect(printed, "Dear ann@example.com")
    _expect(printed, "Completed task 1 (send) with success")


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
