"""A process that is forked reaches a lent store on connections of its own."""

from __future__ import annotations

import sys

import pytest

from stowhand.testing import MemoryStore
from tests.support import subprocesses
from tests.support.child_does import CHILD_DOES
from tests.support.memory_rows import rows_of
from tests.support.shared_server import SharedServer

STORY = """
import asyncio, os, sys
from stowhand import App, NewJob
from stowhand.stores.api import open_store

store, loop = open_store(sys.argv[1]), asyncio.new_event_loop()
app = App(store=open_store(sys.argv[1]))

def enqueue(task):
    loop.run_until_complete(store.jobs.enqueue(NewJob(task=task)))
    app.sync.add_job(task)

loop.run_until_complete(store.open())
enqueue("parent")
child_does(lambda: (enqueue("child"), loop.run_until_complete(store.close()), app.sync.close()))
enqueue("parent again")
loop.run_until_complete(store.close())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork here")
def test_both_sides_of_a_fork_keep_working() -> None:
    with SharedServer() as server:
        url = server.lend(kept := MemoryStore())
        words = [subprocesses.PYTHON, "-W", "ignore::DeprecationWarning", "-c", CHILD_DOES + STORY, url]
        ended = subprocesses.run(words, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        server.withdraw(url)
    tasks = [row.task for row in rows_of(kept)]
    assert sorted(tasks) == ["child", "child", "parent", "parent", "parent again", "parent again"]
