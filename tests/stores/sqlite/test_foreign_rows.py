"""Rows that somebody else wrote by SQL: refused as they are written, or one job fails and all others go on."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stowhand import App
from stowhand.jobs.job import Job, State
from stowhand.protocols.queue_store import JobFilter

ROW: dict[str, Any] = {
    "task": "greet",
    "payload": "{}",
    "priority": 0,
    "run_at": 0,
    "max_attempts": 25,
    "created_at": 0,
    "updated_at": 0,
}


def insert(path: Path, **values: object) -> None:
    row = {**ROW, **values}
    names = ", ".join(row)
    with closing(sqlite3.connect(path)) as connection, connection:
        marks = ", ".join("?" * len(row))
        connection.execute(f"insert into stowhand_jobs ({names}) values ({marks})", list(row.values()))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("task", b"greet"),
        ("payload", b"{}"),
        ("serial", b"q"),
        ("key", b"k"),
        ("flags", "garbage"),
        ("flags", '{"a": 1}'),
        ("flags", b"\xff"),
        ("attempts", 1.5),
        ("max_attempts", 2.5),
        ("max_resets", "many"),
        ("resets", "many"),
        ("priority", 0.5),
        ("epoch", "x"),
        ("run_at", 1.5),
        ("created_at", "yesterday"),
        ("created_at", 10**18),
        ("updated_at", -(10**18)),
    ],
)
def test_a_row_that_no_read_could_convert_is_refused(path: Path, column: str, value: object) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        insert(path, **{column: value})


def test_an_invalid_row_fails_alone_and_can_be_listed(path: Path) -> None:
    insert(path)
    insert(path, flags="[nul]")
    insert(path, task="nobody's")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update stowhand_jobs set payload = cast(x'22ff22' as text) where id = 1")
        connection.execute("update stowhand_jobs set task = cast(x'67ff' as text) where id = 3")
    app = App(f"sqlite:///{path}")
    greeted: list[str] = []

    @app.task
    async def greet(name: str = "whoever") -> None:
        greeted.append(name)

    async def scenario() -> list[Job]:
        async with app:
            await greet.enqueue("Ada")
            await app.worker(once=True, forbidden_flags=["never"]).run()
            store = await app.open()
            return list(await store.inspect.list(JobFilter(states=tuple(State))))

    foreign, flagged, nobodys, ours = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert (foreign.state, foreign.attempts) == (State.FAILED, 1)
    assert (
        foreign.last_error == "payload of task 'greet': a string contains a lone surrogate, which is not valid Unicode"
    )
    assert (flagged.state, flagged.flags) == (State.COMPLETED, ("[nul]",))
    assert (nobodys.state, nobodys.task) == (State.QUEUED, "g\udcff")
    assert ours.state is State.COMPLETED
    assert sorted(greeted) == ["Ada", "whoever"]
