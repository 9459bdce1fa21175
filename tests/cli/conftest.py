"""The real program, as a process of its own or as a call; in a folder and an environment of the test's own."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowhand.cli.program import run as run_program
from tests.support import subprocesses

HELLO = """\
async def hello(payload, helpers):
    helpers.logger.info(f"Hello, {payload['name']}")
"""
NAMING = ("STOWHAND_", "PG", "DATABASE_URL")


class Ended(msgspec.Struct, frozen=True):
    """What a command left behind."""

    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


Stowhand = Callable[..., Ended]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty but for ``tasks/hello.py``; no variable names a store or a setting."""
    for name in list(os.environ):
        if name.startswith(NAMING) or name == "NO_COLOR":
            monkeypatch.delenv(name)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "hello.py").write_text(HELLO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stowhand(folder: Path) -> Stowhand:
    """``stowhand("jobs", "list")`` in a process of its own."""

    def stowhand(*arguments: object, stdin: str | None = None, **environ: str) -> Ended:
        done = subprocesses.run(
            command(*arguments),
            cwd=folder,
            env={**os.environ, **environ},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return stowhand


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Stowhand]:
    """The same inside this process: faster, for whatever does not need a process."""

    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        code = run_program([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("stowhand").level
    yield call
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    logging.getLogger("stowhand").setLevel(before[2])


def command(*arguments: object) -> list[str]:
    """The words that start the program."""
    return [sys.executable, "-m", "stowhand.cli", *(str(argument) for argument in arguments)]
