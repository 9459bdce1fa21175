"""A store survives a fork on both sides: each opens connections of its own."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.stores.sqlite.programs import ROOT

PROGRAM = """
import asyncio, os, sys
from stowhand.jobs.job import NewJob
from stowhand.stores.sqlite.queue import SqliteStore

store = SqliteStore(sys.argv[1])
heartbeats = store.heartbeats()

async def before():
    await store.open()
    await store.jobs.enqueue(NewJob(task="parent"))
    await heartbeats.maintain()

asyncio.run(before())
pid = os.fork()

async def after():
    await store.jobs.enqueue(NewJob(task="child" if pid == 0 else "parent again"))
    await heartbeats.reset_stalled(1.0)
    # A lock that was inherited in memory only would not be in the kernel's table.
    assert any(is_locked() for look in range(20)), "no lock is held"

def is_locked():
    # The table is read in parts, and what others let go of meanwhile moves the rest.
    locks = [line.split() for line in open("/proc/locks")]
    inode = str(os.stat(sys.argv[1]).st_ino)
    return any(words[4] == str(os.getpid()) and words[5].endswith(":" + inode) for words in locks)

asyncio.run(after())
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
asyncio.run(store.close())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc/locks")
def test_parent_and_child_continue_after_a_fork(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(PROGRAM), str(path)],
        cwd=ROOT,
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    connection = sqlite3.connect(path)
    assert {task for (task,) in connection.execute("SELECT task FROM stowhand_jobs")} == {
        "parent",
        "child",
        "parent again",
    }
    connection.close()
