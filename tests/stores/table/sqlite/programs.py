"""What the other processes of these tests run: ``python -m tests.stores.table.sqlite.programs <what> <file>``."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from stowhand.jobs.lifecycle import COMPLETED
from stowhand.stores.sqlite.table import SqliteTable
from stowhand.stores.table.names import read_shape
from stowhand.stores.table.options import TableOptions
from tests.stores.table.sqlite.application import asking

ROOT = Path(__file__).parents[4]


def start(what: str, path: Path) -> subprocess.Popen[str]:
    """One of the programs below, in a process of its own; it has said that it is ready."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.stores.table.sqlite.programs", what, str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert line(program) == "ready"
    return program


def line(program: subprocess.Popen[str]) -> str:
    """The next one that it prints."""
    assert program.stdout is not None
    return program.stdout.readline().strip()


def tell(program: subprocess.Popen[str]) -> None:
    """Let it go on."""
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def drain(table: SqliteTable) -> None:
    """Claim and complete until nothing is left; once it has some, wait for the others. Prints every key claimed."""
    claimed: list[int] = []
    while taken := await table.claim(asking(3, worker=str(os.getpid()))):
        if not claimed:
            _say("ready")
            sys.stdin.readline()
        claimed += [one.lease.job_id for one in taken]
        assert await table.settle([(one.lease, COMPLETED) for one in taken]) == ["settled"] * len(taken)
        await asyncio.sleep(0.01)  # so that the others get their turn
    _say(*claimed)


async def hold(table: SqliteTable) -> None:
    """Claim one, and hang."""
    _say("ready")
    sys.stdin.readline()
    (taken,) = await table.claim(asking(1, worker="doomed"))
    _say(taken.lease.job_id)
    sys.stdin.readline()


def write(path: str) -> None:
    """An application that writes, holds its transaction until it is told, and commits."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO uploads (size) VALUES (77)")
    _say("ready")
    sys.stdin.readline()
    connection.execute("COMMIT")
    connection.close()


async def _serve(what: str, path: str) -> None:
    options = TableOptions[Any](name="uploads", table_name="uploads")
    table = SqliteTable(path, options, read_shape("uploads", None, {}, folds=False))
    await table.open()
    await {"drain": drain, "hold": hold}[what](table)
    await table.close()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    else:
        asyncio.run(_serve(*sys.argv[1:]))
