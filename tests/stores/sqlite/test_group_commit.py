"""What callers enqueue at the same time shares a transaction, and nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import Job, NewJob
from stowhand.stores.database.sqlite_connection import SqliteConnection
from stowhand.stores.sqlite.queue import SqliteStore
from tests.conftest import Run


def numbered(number: int, **options: Any) -> NewJob:
    return NewJob(task="t", payload=str(number), **options)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each transaction."""
    counted: list[None] = []
    write = SqliteConnection.write

    def noted(self: SqliteConnection[Any], work: Callable[[Any], Any]) -> Any:
        counted.append(None)
        return write(self, work)

    monkeypatch.setattr(SqliteConnection, "write", noted)
    return counted


def test_calls_at_the_same_time_are_two_transactions_with_ids_in_order_of_arrival(
    path: Path, writes: list[None], run: Run
) -> None:
    async def story() -> list[Job]:
        store = SqliteStore(path)
        instance = await asyncio.gather(*(store.jobs.enqueue(numbered(n, flags=("f",))) for n in range(40)))
        assert len(writes) == 2
        await asyncio.gather(*(store.jobs.enqueue(numbered(n, key=f"k{n}")) for n in range(3)))
        assert len(writes) == 5, "one with a key goes by itself"
        assert [await store.jobs.get(job.id) for job in instance] == instance
        await store.close()
        return instance

    instance = run(story())
    assert [job.id for job in instance] == sorted(job.id for job in instance)
    assert [job.payload for job in instance] == list(range(40))


def test_only_the_caller_of_the_refused_job_gets_the_error(path: Path, run: Run) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "create trigger refuse before insert on stowhand_jobs when new.task = 'bad'"
            " begin select raise(abort, 'not for bad'); end"
        )

    async def story() -> list[Job | BaseException]:
        store = SqliteStore(path)
        jobs = [numbered(n) for n in range(10)] + [NewJob(task="bad"), numbered(11, max_attempts=-1), numbered(12)]
        result = await asyncio.gather(*map(store.jobs.enqueue, jobs), return_exceptions=True)
        await store.close()
        return result

    result = run(story())
    assert [one.payload for one in result if isinstance(one, Job)] == [*range(10), 12]
    assert "not for bad" in str(result[10])
    assert isinstance(result[11], InvalidJob)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select count(*) from stowhand_jobs").fetchone() == (11,)
