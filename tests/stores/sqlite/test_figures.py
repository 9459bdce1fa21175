"""Figures of a large file: by indexes."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from stowhand.jobs.job import State
from stowhand.protocols.figures import Amount, Figures
from stowhand.stores.kernel import counts, due
from stowhand.stores.sqlite.queue import SqliteStore
from stowhand.stores.sqlite.queue.reader import DIALECT

SECOND = 1_000_000


def figures_of(path: Path) -> Figures:
    async def ask() -> Figures:
        store = SqliteStore(path)
        try:
            return await store.inspect.figures()
        finally:
            await store.close()

    return asyncio.run(ask())


@pytest.fixture
def large(path: Path) -> Path:
    """5,000 jobs wait, 500 have failed and 5,000 are over."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (now,) = connection.execute("SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000000").fetchone()
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000)"
        connection.execute(
            "INSERT INTO stowhand_jobs (task, payload, state, queue, priority, run_at, max_attempts, created_at,"
            f" updated_at) {numbers} SELECT 't' || (i % 4), '{{}}', iif(i % 10 = 0, 'errored', 'queued'),"
            " iif(i % 5 = 0, 'q', NULL), 0, :now + iif(i % 2, -1, 1) * 3600000000, 25, :now, :now FROM n",
            {"now": now},
        )
        connection.execute(
            "INSERT INTO stowhand_jobs (task, payload, state, priority, run_at, max_attempts, finished_at, created_at,"
            f" updated_at) {numbers}"
            " SELECT 't1', '{}', 'failed', 0, :now, 25, :now - i * :second, :now, :now FROM n LIMIT 500",
            {"now": now, "second": SECOND},
        )
        connection.execute(
            "INSERT INTO stowhand_history (id, task, payload, state, priority, run_at, attempts, max_attempts, resets,"
            f" revision, epoch, cancel_requested, finished_at, created_at, updated_at) {numbers}"
            " SELECT 100000 + i, 't' || (i % 2), '{}', iif(i % 10 = 0, 'canceled', 'completed'), 0, :now, 1, 25, 0, 0,"
            " 1, 0, :now - (5000 - i) * :second, :now, :now FROM n",
            {"now": now, "second": SECOND},
        )
    return path


def test_what_waits_is_counted_however_much_it_is(large: Path) -> None:
    states = figures_of(large).states
    assert states[State.QUEUED] == Amount(4500)
    assert states[State.ERRORED] == Amount(500)
    figures = figures_of(large)
    assert [(one.name, one.waiting, one.due.number) for one in figures.queues] == [("q", Amount(1000), 500)]
    assert {one.name: one.due.number for one in figures.tasks if one.name is not None} == {
        "t0": 0,
        "t1": 1250,
        "t2": 0,
        "t3": 1250,
    }


def test_failed_jobs_are_counted_by_task_up_to_a_number(large: Path) -> None:
    with closing(sqlite3.connect(large, isolation_level=None)) as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000)"
            " INSERT INTO stowhand_jobs (task, payload, state, priority, run_at, max_attempts, finished_at, created_at,"
            " updated_at) SELECT 't2', '{}', 'failed', 0, 0, 25, 4000000000000000 + i, 0, 0 FROM n"
        )
    figures = figures_of(large)
    assert figures.states[State.FAILED] == Amount(10_000, least=True)
    failed = {one.name: one.failed for one in figures.tasks if one.failed.number}
    assert failed == {"t1": Amount(500), "t2": Amount(10_000, least=True)}


def test_a_history_is_counted_by_state(large: Path) -> None:
    states = figures_of(large).states
    assert (states[State.COMPLETED], states[State.CANCELED]) == (Amount(4500), Amount(500))


def test_a_short_history_is_counted(path: Path) -> None:
    assert all(amount == Amount(0) for amount in figures_of(path).states.values())


def test_what_waits_is_the_same_whether_it_is_read_whole_or_up_to_a_bound(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beyond the bound is not read."""
    whole = figures_of(large)
    monkeypatch.setattr(counts, "FAR", 999)  # of 1,000 in a queue
    bounded = figures_of(large)
    assert (whole.states[State.QUEUED], whole.states[State.ERRORED]) == (
        bounded.states[State.QUEUED],
        bounded.states[State.ERRORED],
    )
    assert [one.waiting for one in bounded.queues] == [Amount(999, least=True)]
    waiting = [sum(one.waiting.number for one in figures.tasks) for figures in (whole, bounded)]
    assert waiting == [5_000, 4_999]


def test_the_oldest_due_job_is_found_without_reading_what_waits_behind_others(large: Path) -> None:
    """Of (a, b) > (x, y) SQLite searches by the first column alone: each of five tasks and queues was read whole."""
    looks: list[None] = []
    query = DIALECT.statement(f"{due.HEADS} ORDER BY run_at LIMIT 1")
    with closing(sqlite3.connect(large)) as connection:
        connection.set_progress_handler(lambda: looks.append(None), 100)
        now = int(time.time() * SECOND)
        ((_, oldest),) = connection.execute(query, {"before": now}).fetchall()
    assert (now - oldest) / SECOND == pytest.approx(3600, abs=60)
    assert len(looks) < 50, "hundreds of steps of SQLite's machine"
