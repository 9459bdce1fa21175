"""Programs of users under the type checkers: which lines are complained about."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sources import ROOT


def mypy(files: list[Path]) -> str:
    """What it says of programs, strictly: with the settings and the cache of `scripts/test`, filled just before.

    In a process of its own, which it needs a fifth of a second to begin: in this one it would undo what keeps the
    collector of garbage from looking through a million objects of pytest's (tests/conftest.py), for seconds each time.
    """
    state = ROOT / ".state"
    state.mkdir(exist_ok=True)
    options = [f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}", "--no-error-summary"]
    command = [sys.executable, "-m", "mypy", *options, "--hide-error-context", *map(str, sorted(files))]
    with (state / "mypy.lock").open("w") as lock:  # one process of a test run at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not ran.stderr, ran.stderr
    return ran.stdout


def under_mypy(program: str, folder: Path) -> dict[int, set[str]]:
    """Line -> codes of the errors there, by ``mypy --strict``."""
    path = _written(program, folder)
    result: dict[int, set[str]] = {}
    for line in mypy([path]).splitlines():
        if ": error: " in line and path.name in line:
            result.setdefault(int(line.split(":")[1]), set()).add(line.rpartition("[")[2].rstrip("]"))
    return result


def for_pyright(program: str) -> str:
    """Declares a program when its module is imported: the first test that asks has all of them checked in one run.

    A run reads the package and what it needs anew (2 s). The tests are a group of a distributed run: OF_PYRIGHT.
    """
    _programs.append(program)
    return program


OF_PYRIGHT = pytest.mark.xdist_group("pyright")

_programs: list[str] = []
_found: dict[str, dict[int, set[str]]] = {}


def under_pyright(program: str, folder: Path) -> dict[int, set[str]]:
    """Line -> rules of the errors there. `program`: a declared one."""
    if program not in _found:
        _found.update(zip(_programs, _under_pyright(_programs, folder), strict=True))
    return _found[program]


def _under_pyright(programs: list[str], folder: Path) -> list[dict[int, set[str]]]:
    """Its program and its node are packages of the dev group: nothing is fetched."""
    paths = [_written(program, folder, f"program_{number}.py") for number, program in enumerate(programs)]
    ran = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, paths)],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        check=False,
    )
    result: dict[str, dict[int, set[str]]] = {path.name: {} for path in paths}
    for one in json.loads(ran.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            lines = result[Path(one["file"]).name]
            lines.setdefault(one["range"]["start"]["line"] + 1, set()).add(one.get("rule", ""))
    return list(result.values())


def expected(program: str, mark: str = "# E ") -> dict[int, set[str]]:
    """Line -> the codes that its comment names."""
    return {
        number: set(line.partition(mark)[2].split())
        for number, line in enumerate(program.splitlines(), 1)
        if mark in line
    }


def _written(program: str, folder: Path, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(program, encoding="utf-8")
    return path
