"""Figures of a large file do not read all of it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from stowhand.stores.kernel import due
from stowhand.stores.sqlite.queue.reader import SQLITE_DIALECT

SECOND = 1_000_000


@pytest.fixture
def large(path: Path) -> Path:
    """5,000 jobs wait."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (now,) = connection.execute("SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000000").fetchone()
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000)"
        connection.execute(
            "INSERT INTO stowhand_jobs (task, payload, state, serial, priority, run_at, max_attempts, created_at,"
            f" updated_at) {numbers} SELECT 't' || (i % 4), '{{}}', iif(i % 10 = 0, 'errored', 'queued'),"
            " iif(i % 5 = 0, 'q', NULL), 0, :now + iif(i % 2, -1, 1) * 3600000000, 25, :now, :now FROM n",
            {"now": now},
        )
    return path


def test_the_oldest_due_job_is_found_without_reading_what_waits_behind_others(large: Path) -> None:
    """Of (a, b) > (x, y) SQLite searches by the first column alone: each of five tasks and serial keys was read
    whole."""
    looks: list[None] = []
    query = SQLITE_DIALECT.statement(f"{due.FIRST_DUE_JOBS} ORDER BY run_at LIMIT 1")
    with closing(sqlite3.connect(large)) as connection:
        connection.set_progress_handler(lambda: looks.append(None), 100)
        now = int(time.time() * SECOND)
        ((_, oldest, _),) = connection.execute(query, {"before": now}).fetchall()
    assert (now - oldest) / SECOND == pytest.approx(3600, abs=60)
    assert len(looks) < 50, "hundreds of steps of SQLite's machine"
