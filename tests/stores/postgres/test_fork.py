"""A process that is forked opens connections of its own, and leaves its parent's as they are."""

from __future__ import annotations

import sys

import pytest

from stowhand import App
from tests.support import subprocesses
from tests.support.child_does import CHILD_DOES

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no fork here")
BEGINNING = """
import asyncio, os, sys
from psycopg_pool import AsyncConnectionPool
from stowhand import App, NewJob
from stowhand.stores.api import open_store
from stowhand.errors import StoreUnreachable

def session():
    return loop.run_until_complete(backend())

async def backend():
    async with store.connections.pool.connection("test") as connection:
        return connection.info.backend_pid
"""
A_STORE_ON_ONE_LOOP = """
store, loop = open_store(sys.argv[1]), asyncio.new_event_loop()

def enqueue(task):
    loop.run_until_complete(store.jobs.enqueue(NewJob(task=task)))

loop.run_until_complete(store.open())
enqueue("parent")
before = session()
child_does(lambda: (enqueue("child"), loop.run_until_complete(store.close())))
enqueue("parent again")
assert session() == before, "the parent has lost its session"
loop.run_until_complete(store.close())
"""
A_GIVEN_STORE = """
store = open_store(sys.argv[1])
app = App(store=store)
app.sync.add_job("parent")
before = app.sync._portal.run(backend, "")
child_does(lambda: (app.sync.add_job("child"), app.sync.close()))
app.sync.add_job("parent again")
assert app.sync._portal.run(backend, "") == before, "the parent has lost its session"
"""
A_CHILD_THAT_ONLY_ENDS = """
import gc
app = App(sys.argv[1])
app.sync.add_job("parent")
waiting = app.sync.enqueue(app.task(name="child")(lambda: None))  # its wait listens
try:
    waiting.wait(timeout=0.1)
except TimeoutError:
    pass
if (pid := os.fork()) == 0:
    app.__dict__.clear()
    gc.collect()
    sys.exit()  # with everything that ends a program
assert os.waitpid(pid, 0)[1] == 0
app.sync.add_job("parent again")
"""
A_LOCK_IN_USE = """
app = App(sys.argv[1])
app.sync.add_job("parent")
with app.sync._portal._lock:  # of a thread that is not there in the child
    child_does(lambda: app.sync.add_job("child"))
app.sync.add_job("parent again")
"""
A_POOL = """
loop = asyncio.new_event_loop()
pool = AsyncConnectionPool(sys.argv[1], min_size=1, open=False)
app = App(pool=pool)

async def add(task):
    await app.add_job(task)

def enqueue(task):
    loop.run_until_complete(add(task))

def refused():
    try:
        enqueue("child")
    except StoreUnreachable as error:
        print(error, flush=True)

loop.run_until_complete(pool.open())
enqueue("parent")
child_does(refused)
enqueue("parent again")
loop.run_until_complete(pool.close())
"""


@pytest.mark.parametrize(
    "story",
    [A_STORE_ON_ONE_LOOP, A_GIVEN_STORE, A_CHILD_THAT_ONLY_ENDS, A_LOCK_IN_USE],
    ids=["a store on one loop", "a given store", "a child that only ends", "a lock in use"],
)
def test_parent_and_child_of_a_fork_continue_with_separate_sessions(story: str, postgres_url: str) -> None:
    assert program(story, postgres_url) == ""
    app = App(postgres_url)
    jobs = sorted(app.sync.list(), key=lambda job: job.id)
    app.sync.close()
    assert [job.task for job in jobs] == ["parent", "child", "parent again"]


def test_a_pool_of_the_application_is_refused_after_a_fork(postgres_url: str) -> None:
    assert "before this process was forked" in program(A_POOL, postgres_url)


def program(story: str, url: str) -> str:
    words = [subprocesses.PYTHON, "-W", "ignore::DeprecationWarning", "-c", CHILD_DOES + BEGINNING + story, url]
    ended = subprocesses.run(words, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    return str(ended.stdout)
