"""The store in memory: what is its own beside the queue, which the contract suite tests."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stowhand.errors import StoreUnreachable
from stowhand.jobs.job import KeyMode, NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.store import ClaimRequest
from stowhand.stores.sqlite.queue import schema
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.support import subprocesses
from tests.support.child_does import CHILD_DOES
from tests.support.memory_rows import raw_of, refuse, rows_of

ERRORED = Settlement(State.ERRORED, AttemptOutcome.RETRY, delay=7.0, error="x")
Act = Callable[[MemoryStore], Coroutine[Any, Any, object]]


def request(*, token: str = "t") -> ClaimRequest:
    return ClaimRequest(worker="w", token=token, limit=5, lease=30.0)


def test_a_full_store_names_its_limit_and_keeps_what_is_committed(run: Run) -> None:
    """SQLite's limit of 1 GiB gives the same error as this smaller one."""
    store = MemoryStore()
    run(store.jobs.enqueue(NewJob(task="t")))
    raw_of(store).execute("PRAGMA max_page_count = 200")
    with pytest.raises(StoreUnreachable, match=r"memory store is full.* 1 GiB .*sqlite:///"):
        run(store.jobs.enqueue(NewJob(task="t", payload=f'"{"x" * 900_000}"')))
    assert [job.task for job in run(store.inspect.list())] == ["t"]


def test_a_new_store_runs_no_migrations(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run(MemoryStore().open())
    monkeypatch.setattr(schema, "install", None)
    store = MemoryStore()
    run(store.jobs.enqueue(NewJob(task="t")))
    status = run(store.schema.status())
    assert status.installed == status.expected
    assert [row.task for row in rows_of(store)] == ["t"]


def test_a_store_starts_no_thread_and_no_task(run: Run) -> None:
    async def story() -> None:
        before, tasks = set(threading.enumerate()), asyncio.all_tasks()
        store = MemoryStore()
        await store.jobs.enqueue(NewJob(task="t"))
        await store.inspect.search()
        (claim,) = await store.claim(request())
        await store.settle([(claim.lease, COMPLETED)])
        assert set(threading.enumerate()) == before
        assert asyncio.all_tasks() == tasks

    run(story())


async def _enqueue(store: MemoryStore) -> None:
    await store.jobs.enqueue(NewJob(task="t", delay=5.0))


async def _fail(store: MemoryStore) -> None:
    (claim,) = await store.claim(request())
    await store.settle([(claim.lease, ERRORED)])


async def _complete(store: MemoryStore) -> None:
    (claim,) = await store.claim(request())
    await store.settle([(claim.lease, COMPLETED)])


async def _enqueue_again(store: MemoryStore) -> None:
    await store.jobs.enqueue(NewJob(task="t", key="k", key_mode=KeyMode.UNIQUE))


async def _beat(store: MemoryStore) -> None:
    (claim,) = await store.claim(request())
    await store.heartbeats().beat([claim.lease], 30.0)


async def _pause(store: MemoryStore) -> None:
    await store.operate.pause_serial("q")


async def _resume(store: MemoryStore) -> None:
    await store.operate.pause_serial("q")
    await store.operate.resume_serial("q")


@pytest.mark.parametrize("act", [_enqueue, _fail, _resume])
def test_a_worker_is_woken_when_a_job_may_have_become_claimable(run: Run, act: Act) -> None:
    assert run(_wakes(act)) == 1


@pytest.mark.parametrize("act", [_complete, _enqueue_again, _beat, _pause])
def test_other_changes_wake_no_worker(run: Run, act: Act) -> None:
    assert run(_wakes(act)) == 0


async def _wakes(act: Act) -> int:
    store = MemoryStore()
    await store.jobs.enqueue(NewJob(task="t", key="k"))
    before = store._connections.wake.wakes
    await act(store)
    return store._connections.wake.wakes - before


def test_a_rolled_back_transaction_wakes_no_worker(run: Run) -> None:
    async def story() -> None:
        store = MemoryStore()
        before = store._connections.wake.wakes
        with pytest.raises(sqlite3.IntegrityError):
            await store._connections.write(lambda tx: _insert_and_fail(tx.raw))
        assert store._connections.wake.wakes == before
        assert rows_of(store) == []

    run(story())


def _insert_and_fail(raw: sqlite3.Connection) -> None:
    raw.execute(
        "INSERT INTO stowhand_jobs (task, payload, priority, run_at, max_attempts, created_at, updated_at)"
        " VALUES ('t', '{}', 0, 0, 1, 0, 0)"
    )
    raise sqlite3.IntegrityError("refused")


def test_a_refused_settlement_is_reported_without_a_pause(run: Run) -> None:
    async def story() -> None:
        store = MemoryStore()
        await store.jobs.enqueue(NewJob(task="t"))
        (claim,) = await store.claim(request())
        refuse(store, None, State.COMPLETED)
        settling = store.settle([(claim.lease, COMPLETED)])
        with pytest.raises(StopIteration):
            settling.send(None)  # it waits for nothing

    run(story())


def test_a_store_that_is_dropped_closes_its_database(run: Run) -> None:
    store = MemoryStore()
    run(store.jobs.enqueue(NewJob(task="t")))
    raw, gone = raw_of(store), weakref.ref(store._connections)
    del store
    gc.collect()
    assert gone() is None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        raw.execute("SELECT 1")


FORKED = """
import asyncio
from stowhand import NewJob
from stowhand.query import JobFilter
from stowhand.testing import MemoryStore

store, loop = MemoryStore(), asyncio.new_event_loop()

def tasks(task):
    loop.run_until_complete(store.jobs.enqueue(NewJob(task=task)))
    return [job.task for job in loop.run_until_complete(store.inspect.list(JobFilter()))]

def child():
    assert tasks("child") == ["parent", "child"]

assert tasks("parent") == ["parent"]
child_does(child)
assert tasks("again") == ["parent", "again"]
"""


@pytest.mark.skipif(sys.platform == "win32" or not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_a_copy_of_the_jobs() -> None:
    words = [subprocesses.PYTHON, "-W", "ignore::DeprecationWarning", "-c", CHILD_DOES + FORKED]
    ended = subprocesses.run(words, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
