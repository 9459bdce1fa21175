"""Enqueueing inside a transaction of the application's own connection."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from stowhand.errors import ConfigurationError, InvalidJob, SchemaMissing, StoreUnreachable
from stowhand.jobs.job import Job, NewJob
from stowhand.stores.sqlite.queue import SqliteStore
from tests.conftest import Run

JOB = NewJob(task="t")
LEVELS = [None, "", "DEFERRED", "IMMEDIATE"]


def count(path: Path, table: str = "stowhand_jobs") -> int:
    connection = sqlite3.connect(path)
    result = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    connection.close()
    return int(result)


def application(path: Path, level: Any = "") -> sqlite3.Connection:
    """The application's connection to the file, with a table of its own beside ours."""
    connection = sqlite3.connect(path, isolation_level=level)
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")
    connection.commit()
    return connection


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("inside", [True, False])
def test_the_job_exists_after_the_callers_commit(path: Path, level: Any, inside: bool) -> None:
    connection = application(path, level)
    if inside:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO orders VALUES (1)")
    job = SqliteStore(path).transactions.enqueue_in(connection, JOB)
    assert isinstance(job, Job)
    assert (job.task, job.attempts) == ("t", 0)
    assert connection.in_transaction
    assert count(path) == 0
    connection.commit()
    assert (count(path), count(path, "orders")) == (1, int(inside))
    connection.close()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("inside", [True, False])
def test_the_job_does_not_exist_after_the_callers_rollback(path: Path, level: Any, inside: bool) -> None:
    connection = application(path, level)
    if inside:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO orders VALUES (1)")
    SqliteStore(path).transactions.enqueue_in(connection, JOB)
    connection.rollback()
    assert (count(path), count(path, "orders")) == (0, 0)
    connection.close()


def test_a_refused_job_leaves_the_callers_transaction_as_it_was(path: Path) -> None:
    connection = application(path)
    connection.execute("INSERT INTO orders VALUES (1)")
    store = SqliteStore(path)
    with pytest.raises(InvalidJob):
        store.transactions.enqueue_in(connection, NewJob(task="t", max_attempts=0))
    store.transactions.enqueue_in(connection, JOB)
    connection.commit()
    assert (count(path), count(path, "orders")) == (1, 1)
    connection.close()


def test_a_refused_job_leaves_no_transaction_open_that_was_not(path: Path) -> None:
    connection = application(path)
    with pytest.raises(InvalidJob):
        SqliteStore(path).transactions.enqueue_in(connection, NewJob(task=""))
    assert not connection.in_transaction
    connection.close()


def test_a_connection_to_another_file_is_refused(path: Path, tmp_path: Path) -> None:
    other = application(tmp_path / "other.db")
    with pytest.raises(ConfigurationError, match=r"other\.db, and the queue is .*jobs\.db"):
        SqliteStore(path).transactions.enqueue_in(other, JOB)
    other.close()
    memory = application(Path(":memory:"))
    with pytest.raises(ConfigurationError, match="a database in memory"):
        SqliteStore(path).transactions.enqueue_in(memory, JOB)
    memory.close()


def test_a_value_that_is_not_a_connection_is_refused(path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"not a builtins\.str"):
        SqliteStore(path).transactions.enqueue_in("connection", JOB)


def test_another_name_of_the_same_file_is_the_same_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to(tmp_path)
    connection = application(tmp_path / "folder" / "jobs.db")
    job = SqliteStore(path).transactions.enqueue_in(connection, JOB)
    assert isinstance(job, Job)
    assert job.id == 1
    connection.close()


def test_a_file_without_our_tables_says_what_to_do(tmp_path: Path) -> None:
    connection = application(tmp_path / "app.db")
    with pytest.raises(SchemaMissing, match=r"orders.*stowhand migrate"):
        SqliteStore(tmp_path / "app.db").transactions.enqueue_in(connection, JOB)
    connection.close()


def test_the_callers_factories_are_neither_used_nor_lost(path: Path) -> None:
    connection = application(path)
    connection.row_factory, connection.text_factory = sqlite3.Row, bytes
    job = SqliteStore(path).transactions.enqueue_in(connection, JOB)
    assert isinstance(job, Job)
    assert job.payload_text == "{}"
    assert (connection.row_factory, connection.text_factory) == (sqlite3.Row, bytes)
    connection.close()


def test_a_stale_reader_is_advised_to_begin_immediate(path: Path, run: Run) -> None:
    connection = application(path, None)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM orders").fetchone()

    async def overtake() -> Job:
        store = SqliteStore(path)
        job = await store.jobs.enqueue(JOB)
        await store.close()
        return job

    run(overtake())
    with pytest.raises(StoreUnreachable, match="BEGIN IMMEDIATE"):
        SqliteStore(path).transactions.enqueue_in(connection, JOB)
    connection.rollback()
    connection.close()


@pytest.mark.parametrize("level", LEVELS)
def test_another_writer_is_waited_for_as_long_as_the_caller_waits_for_one(path: Path, level: Any) -> None:
    """Not longer: a page of the application would hang with it."""
    writer, connection = application(path), sqlite3.connect(path, isolation_level=level, timeout=0.05)
    writer.execute("BEGIN IMMEDIATE")
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    with pytest.raises(StoreUnreachable, match="did not end within this connection's timeout"):
        SqliteStore(path).transactions.enqueue_in(connection, JOB)
    assert sum("BEGIN" in one for one in statements) == 1
    assert not connection.in_transaction
    writer.rollback()
    SqliteStore(path).transactions.enqueue_in(connection, JOB)
    connection.commit()
    assert count(path) == 1
    connection.close()
    writer.close()
