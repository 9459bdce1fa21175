"""A step in a transaction of the user, on SQLite: from a ``def`` task, and from an ``async def`` one."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stowhand import App, Context, SyncContext
from stowhand.events import Events
from stowhand.jobs.job import NewJob, State
from stowhand.retry import constant


@pytest.mark.parametrize("is_sync", [True, False])
def test_a_step_takes_effect_if_and_only_if_its_transaction_commits(tmp_path: Path, is_sync: bool) -> None:
    asyncio.run(_run(tmp_path / "jobs.db", "threaded" if is_sync else "looped"))


async def _run(file: Path, task: str) -> None:
    app = App(f"sqlite:///{file}")
    runs: list[bool] = []

    def insert(connection: sqlite3.Connection) -> int:
        connection.execute("insert into effects values (1)")
        runs.append(True)
        return len(runs)

    @app.task(name="threaded", backoff=constant(0), max_attempts=3)
    def threaded(ctx: SyncContext) -> int:
        with closing(sqlite3.connect(file)) as connection, connection:
            value = ctx.step("row", insert, connection, connection=connection)
            if len(runs) == 1:
                raise OSError("the transaction is rolled back")
        return value

    @app.task(name="looped", backoff=constant(0), max_attempts=3)
    async def looped(ctx: Context) -> int:
        with closing(sqlite3.connect(file)) as connection, connection:
            value = await ctx.step("row", insert, connection, connection=connection)
            if len(runs) == 1:
                raise OSError("the transaction is rolled back")
        return value

    store = await app.open(install=True)
    async with app:
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("create table effects (number)")
        job = await store.jobs.enqueue(NewJob(task=task, max_attempts=3))
        await app.worker(once=True, events=Events(), poll_interval=0.05).run()
        ended = await app.get(job.id)
    assert ended is not None
    assert (ended.state, ended.attempts, ended.result) == (State.COMPLETED, 2, 2)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select count(*) from effects").fetchall() == [(1,)]
