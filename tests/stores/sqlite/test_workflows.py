"""Workflows in a file: races of two connections, callers' transactions, and what other jobs pay."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Wait, Waiting
from stowhand.protocols.store import ClaimRequest, StoreOptions
from stowhand.protocols.workflows import NewStep
from stowhand.stores.sqlite.queue import SqliteStore, heartbeats
from stowhand.stores.sqlite.queue.transaction import STATEMENTS
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.contract.backends import SqliteBackend
from tests.contract.store_harness import SETTLEMENTS, StoreHarness, harness_at, judged, new_token
from tests.contract.test_workflows import record, steps, wait, with_result, workflows_of
from tests.stores.sqlite.test_plans import plan
from tests.support.memory_rows import raw_of

RACES = 1000
NO_FLUSH = StoreOptions(synchronous="NORMAL")
Story = Callable[[StoreHarness], Coroutine[Any, Any, None]]


@pytest.fixture
def play(path: Path, run: Run) -> Callable[[Story], None]:
    """Run a story with a harness on the file."""

    async def on_harness(story: Story) -> None:
        async with harness_at(SqliteBackend(path)) as harness:
            await story(harness)

    return lambda story: run(on_harness(story))


async def claim(store: SqliteStore | MemoryStore, number: int, task: str) -> list[Lease]:
    request = ClaimRequest(worker="w", token=new_token(), limit=number, lease=600.0, tasks=(task,))
    return [claim.lease for claim in await store.claim(request)]


# -- races --------------------------------------------------------------------------------------------------


def test_no_wake_up_is_lost_in_races_of_an_event_and_a_wait(path: Path, run: Run) -> None:
    async def story() -> None:
        waiter, emitter = SqliteStore(path, NO_FLUSH), SqliteStore(path, NO_FLUSH)
        await waiter.jobs.enqueue_many([NewJob(task="t")] * RACES)
        leases = await claim(waiter, RACES, "t")
        assert len(leases) == RACES
        for lease in leases:
            event = f"e{lease.job_id}"
            settlement = judged(Waiting(Wait(step=f"event:{event}", event=event)))
            await asyncio.gather(waiter.settle([(lease, settlement)]), emitter.workflows.emit(event, "1"))
        assert len(await claim(waiter, RACES, "t")) == RACES
        await waiter.close()
        await emitter.close()

    run(story(), timeout=60)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM stowhand_steps WHERE value = '1'").fetchone() == (RACES,)


def test_no_wake_up_is_lost_in_races_of_two_last_children(path: Path, run: Run) -> None:
    call = Wait(step="s", children=(NewJob(task="child"),) * 2, places=(0, 1), value='{"size": 2}')

    async def story() -> None:
        one, other = SqliteStore(path, NO_FLUSH), SqliteStore(path, NO_FLUSH)
        await one.jobs.enqueue_many([NewJob(task="t")] * RACES)
        await one.settle([(lease, judged(Waiting(call))) for lease in await claim(one, RACES, "t")])
        children = await claim(one, 2 * RACES, "child")
        assert len(children) == 2 * RACES
        for first, second in zip(children[::2], children[1::2], strict=True):
            await asyncio.gather(one.settle([(first, with_result("1"))]), other.settle([(second, with_result("2"))]))
        assert len(await claim(one, RACES, "t")) == RACES
        await one.close()
        await other.close()

    run(story(), timeout=60)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT DISTINCT remaining FROM stowhand_steps WHERE place = -1").fetchall() == [(0,)]


# -- callers' transactions ----------------------------------------------------------------------------------


def test_an_event_in_a_transaction_is_emitted_by_its_commit(path: Path, play: Callable[[Story], None]) -> None:
    async def story(harness: StoreHarness) -> None:
        lease = await harness.start()
        await wait(harness, lease, "event:paid", event="paid")
        with closing(sqlite3.connect(path)) as connection:
            assert workflows_of(harness).emit_in(connection, "paid", "1") is True
            connection.rollback()
            assert not await workflows_of(harness).is_emitted("paid")
            assert workflows_of(harness).emit_in(connection, "paid", "2") is True
            assert workflows_of(harness).emit_in(connection, "paid", "3") is False
            assert not (await steps(harness, lease.job_id))["event:paid"].is_recorded
            connection.commit()
        assert (await harness.take()).job_id == lease.job_id
        assert (await steps(harness, lease.job_id))["event:paid"].value == "2"

    play(story)


def test_a_step_in_a_transaction_is_recorded_by_its_commit(path: Path, play: Callable[[Story], None]) -> None:
    async def story(harness: StoreHarness) -> None:
        lease = await harness.start()
        with closing(sqlite3.connect(path)) as connection:
            for number, end in enumerate((connection.rollback, connection.commit)):
                assert workflows_of(harness).record_in(connection, lease, NewStep(f"step {number}", "1")) is True
                end()
            assert set(await steps(harness, lease.job_id)) == {"step 1"}
            await harness.settle(lease)
            assert workflows_of(harness).record_in(connection, lease, NewStep("late", "1")) is False
            connection.rollback()

    play(story)


def test_an_object_that_is_not_a_connection_is_refused_by_the_name_of_the_call(play: Callable[[Story], None]) -> None:
    async def story(harness: StoreHarness) -> None:
        with pytest.raises(ConfigurationError, match=r"emit_in needs a connection to SQLite.*not a builtins\.str"):
            workflows_of(harness).emit_in("connection", "paid", "1")

    play(story)


def test_a_memory_store_refuses_transactions(run: Run) -> None:
    with pytest.raises(ConfigurationError, match="emit_in: a memory store has no transactions"):
        MemoryStore().workflows.emit_in(object(), "paid", "1")


def test_in_tests_an_event_in_memory_is_visible_after_the_commit(run: Run) -> None:
    store = MemoryStore(supports_enqueue_in=True)
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        connection.begin()
        assert store.workflows.emit_in(connection, "paid", "1") is True
        assert not run(store.workflows.is_emitted("paid"))
        connection.rollback()
        assert not run(store.workflows.is_emitted("paid"))
        with connection.begin():
            store.workflows.emit_in(connection, "paid", "2")
        assert run(store.workflows.is_emitted("paid"))
    engine.dispose()


# -- what other jobs pay ------------------------------------------------------------------------------------


def test_a_plain_job_reads_no_steps_and_no_events(run: Run) -> None:
    store = MemoryStore()
    tables: set[str] = set()

    def note(_action: int, table: str | None, *_: object) -> int:
        tables.add(table or "")
        return sqlite3.SQLITE_OK

    async def story() -> None:
        raw_of(store).set_authorizer(note)
        await store.jobs.enqueue_many([NewJob(task="t")] * 8)
        await store.settle([(lease, SETTLEMENTS["complete"]) for lease in await claim(store, 2, "t")])
        for settlement in ("retry", "fail", "snooze"):
            assert await store.settle([(lease, SETTLEMENTS[settlement]) for lease in await claim(store, 1, "t")])
        raw_of(store).set_authorizer(None)

    run(story())
    assert "stowhand_jobs" in tables
    assert not {table for table in tables if "steps" in table or "events" in table}


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("waiting_for_event", "stowhand_jobs_waiting"),
        ("unfinished_children", "stowhand_jobs_children"),
        ("detach_children", "stowhand_jobs_children"),
        ("prune_events", "stowhand_events_at"),
    ],
)
def test_the_indexes_of_workflows_are_used(template: Path, statement: str, index: str) -> None:
    assert any(index in step for step in plan(template, STATEMENTS[statement]))


# -- children -----------------------------------------------------------------------------------------------


# -- maintenance --------------------------------------------------------------------------------------------


def test_maintenance_checks_a_page_of_jobs_with_steps(
    path: Path, play: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "MAX_JOBS_PER_STEP_CHECK", 2)

    async def story(harness: StoreHarness) -> None:
        leases = [await harness.start() for _ in range(5)]
        for lease in leases:
            await record(harness, lease, "charge")
        for lease in leases[1::2]:
            await harness.settle(lease, SETTLEMENTS["fail"])
        await harness.store.admin.remove_jobs([lease.job_id for lease in leases[1::2]])
        left = []
        for _ in range(3):
            await harness.heartbeats.maintain()
            with closing(sqlite3.connect(path)) as connection:
                left += connection.execute("SELECT count(*) FROM stowhand_steps").fetchone()
        assert left == [4, 3, 3]

    play(story)
