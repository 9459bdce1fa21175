"""A process that is forked speaks to Redis on connections of its own, and leaves its parent's as they are."""

from __future__ import annotations

import sys

import pytest
import redis

from tests.support import subprocesses
from tests.support.child_does import CHILD_DOES

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no fork here")
BEGINNING = """
import asyncio, gc, os, sys
from stowhand.flows import Flow, Queue
import redis

flow = Flow("demo", sys.argv[1], queues=[Queue("first")])
watch = redis.Redis.from_url(sys.argv[1])

def sessions():
    return {one["id"] for one in watch.client_list()} - {str(watch.client_id())}
"""
ON_ONE_LOOP = """
loop = asyncio.new_event_loop()

def create(name):
    loop.run_until_complete(asyncio.wait_for(flow.create_job({"by": name}), 20))

loop.run_until_complete(flow.open())
create("parent")
before = sessions()
watch.close()
child_does(lambda: (create("child"), loop.run_until_complete(flow.close())))
create("parent again")
assert before <= sessions(), "the parent has lost its session"
loop.run_until_complete(flow.close())
"""
WITHOUT_A_LOOP = """
flow.sync.create_job({"by": "parent"})
before = sessions()
watch.close()
child_does(lambda: (flow.sync.create_job({"by": "child"}), flow.sync.close()))
flow.sync.create_job({"by": "parent again"})
assert before <= sessions(), "the parent has lost its session"
flow.sync.close()
"""
A_CHILD_THAT_ONLY_ENDS = """
flow.sync.create_job({"by": "parent"})
before = sessions()
watch.close()
if (pid := os.fork()) == 0:
    flow.sync.create_job({"by": "child"})
    flow.__dict__.clear()
    gc.collect()
    sys.exit()  # with everything that ends a program
assert os.waitpid(pid, 0)[1] == 0
flow.sync.create_job({"by": "parent again"})
assert before <= sessions(), "the parent has lost its session"
flow.sync.close()
"""


@pytest.mark.parametrize(
    "story",
    [ON_ONE_LOOP, WITHOUT_A_LOOP, A_CHILD_THAT_ONLY_ENDS],
    ids=["on one loop", "without a loop", "a child that only ends"],
)
def test_both_sides_of_a_fork_go_on_with_sessions_of_their_own(story: str, redis_url: str) -> None:
    words = [subprocesses.PYTHON, "-W", "ignore::DeprecationWarning", "-c", CHILD_DOES + BEGINNING + story, redis_url]
    ended = subprocesses.run(words, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        jobs = [client.hget(key, "by") for key in client.scan_iter("*") if client.type(key) == "hash"]
    assert sorted(filter(None, jobs)) == ['"child"', '"parent again"', '"parent"']
