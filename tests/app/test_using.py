"""``App.using``: the App's jobs are kept in another store for a block."""

from __future__ import annotations

import asyncio
import json

import pytest

from stowhand import App
from stowhand.errors import ConfigurationError
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.support.memory_rows import rows_of


def test_jobs_go_to_the_other_store_on_every_loop_and_come_back_after_the_block(run: Run) -> None:
    app = App("memory://")
    other = MemoryStore()

    @app.task
    async def send(to: str) -> None: ...

    first = run(lambda: send.enqueue("before"))
    with app.using(other):
        inside = run(lambda: send.enqueue("inside"))
        app.sync.enqueue(send, "sync")
        assert app.any_store() is other
    app.sync.enqueue(send, "after")
    assert [json.loads(row.payload)["to"] for row in rows_of(other)] == ["inside", "sync"]
    assert app.any_store() is not other
    assert run(lambda: first.refresh()).payload == {"to": "before"}
    assert run(lambda: inside.refresh()).payload == {"to": "inside"}  # a handle asks where its job was made


def test_blocks_nest_and_end_with_an_error() -> None:
    app, one, two = App("memory://"), MemoryStore(), MemoryStore()
    with app.using(one):
        with pytest.raises(ValueError, match="no"), app.using(two):
            raise ValueError("no" if app.any_store() is two else "not the other one")
        assert app.any_store() is one


def test_a_worker_inside_works_on_the_other_store(run: Run) -> None:
    app, ran = App("sqlite:///never-made.db"), []

    @app.task
    async def note(word: str) -> None:
        ran.append(word)

    async def scenario() -> None:
        with app.using(MemoryStore()):
            async with app:
                await note.enqueue("x")
                await app.worker(once=True).run()

    run(scenario())
    assert ran == ["x"]


@pytest.mark.parametrize("wrong", ["memory://", MemoryStore, 3])
def test_an_object_that_is_not_a_store_is_refused(wrong: object) -> None:
    app = App("memory://")
    with pytest.raises(ConfigurationError, match=r"App\.using: store="), app.using(wrong):  # type: ignore[arg-type]
        raise AssertionError("it was accepted")


def test_a_loop_that_has_ended_is_forgotten() -> None:
    app = App("memory://")

    async def connect() -> None:
        await app.open()

    with app.using(MemoryStore()):
        for _ in range(3):
            asyncio.run(connect())
