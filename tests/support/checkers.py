"""Programs of users under the type checkers: which lines are complained about."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

from mypy import api

from tests.support.sources import ROOT


def mypy(files: list[Path]) -> str:
    """What it says of programs, strictly: with the settings and the cache of `scripts/test`, filled just before."""
    state = ROOT / ".state"
    state.mkdir(exist_ok=True)
    options = [f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}", "--no-error-summary"]
    with (state / "mypy.lock").open("w") as lock:  # one process of a test run at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        out, err, _ = api.run([*options, "--hide-error-context", *map(str, sorted(files))])
    assert not err, err
    return out


def under_mypy(program: str, folder: Path) -> dict[int, set[str]]:
    """Line -> codes of the errors there, by ``mypy --strict``."""
    path = _written(program, folder)
    found: dict[int, set[str]] = {}
    for line in mypy([path]).splitlines():
        if ": error: " in line and path.name in line:
            found.setdefault(int(line.split(":")[1]), set()).add(line.rpartition("[")[2].rstrip("]"))
    return found


def under_pyright(program: str, folder: Path) -> dict[int, set[str]]:
    """Line -> rules of the errors there. Its program and its node are packages of the dev group: nothing is fetched."""
    path = _written(program, folder)
    ran = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(path)],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        check=False,
    )
    said = json.loads(ran.stdout)["generalDiagnostics"]
    found: dict[int, set[str]] = {}
    for one in said:
        if one["severity"] == "error" and Path(one["file"]).name == path.name:
            found.setdefault(one["range"]["start"]["line"] + 1, set()).add(one.get("rule", ""))
    return found


def expected(program: str, mark: str = "# E ") -> dict[int, set[str]]:
    """Line -> the codes that its comment names."""
    return {
        number: set(line.partition(mark)[2].split())
        for number, line in enumerate(program.splitlines(), 1)
        if mark in line
    }


def _written(program: str, folder: Path) -> Path:
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    return path
