"""What an App lets its jobs go through before they are written: every way in, each once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowhand.app.app import App
from stowhand.errors import InvalidJob
from stowhand.events import Events, SchedulingFailed
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.operator import PURGE_TASK
from stowhand.protocols.queue_store import JobFilter
from stowhand.tasks.context import Context, Helpers
from stowhand.testing import MemoryStore
from tests.conftest import Run


def marked(job: NewJob) -> NewJob:
    """Twice would show."""
    return msgspec.structs.replace(job, priority=job.priority + 1)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path}/queue.db", on_enqueue=[marked])
    app.sync.install()
    yield app
    app.sync.close()


def declare(app: App) -> Any:
    @app.task
    async def send(to: str = "") -> None: ...

    return send


async def each(*jobs: NewJob) -> AsyncIterator[NewJob]:
    for job in jobs:
        yield job


async def _in_a_transaction(app: App, send: Any) -> None:
    file = app.own_store.url
    assert file is not None
    with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as connection:
        send.enqueue_in(connection, "x")
        connection.commit()


WAYS: dict[str, Callable[[App, Any], Awaitable[object]]] = {
    "enqueue": lambda app, send: send.enqueue("x"),
    "options": lambda app, send: send.options(serial="q").enqueue("x"),
    "app.enqueue": lambda app, send: app.enqueue(send.new_job("x")),
    "undeclared": lambda app, send: app.enqueue(NewJob(task="elsewhere")),
    "task.enqueue_many": lambda app, send: send.enqueue_many([{"to": "x"}]),
    "enqueue_many": lambda app, send: app.enqueue_many([send.new_job("x")]),
    "enqueue_many of an iterator": lambda app, send: app.enqueue_many(each(send.new_job("x"))),
    "add_job": lambda app, send: app.add_job("send", {"to": "x"}),
    "add_jobs": lambda app, send: app.add_jobs([send.new_job("x")]),
    "enqueue_in": _in_a_transaction,
    "sync.enqueue": lambda app, send: asyncio.to_thread(app.sync.enqueue, send, "x"),
    "sync.enqueue_many": lambda app, send: asyncio.to_thread(app.sync.enqueue_many, [send.new_job("x")]),
    "sync.add_job": lambda app, send: asyncio.to_thread(app.sync.add_job, "send", {"to": "x"}),
    "sync.add_jobs": lambda app, send: asyncio.to_thread(app.sync.add_jobs, [send.new_job("x")]),
}


async def made(app: App) -> list[tuple[str, int]]:
    return [(job.task, job.priority) for job in await (await app.open()).inspect.list()]


@pytest.mark.parametrize("way", WAYS)
def test_every_enqueue_passes_once(app: App, run: Run, way: str) -> None:
    send = declare(app)

    async def scenario() -> list[tuple[str, int]]:
        async with app:
            await WAYS[way](app, send)
            return await made(app)

    assert [priority for _, priority in run(scenario())] == [1]


def test_what_a_running_task_enqueues_passes_once(app: App, run: Run) -> None:
    send = declare(app)

    @app.task
    async def follows(ctx: Context) -> None:
        ctx.enqueue_after(send.new_job("x"))

    @app.task
    async def helped(payload: Any, helpers: Helpers) -> None:
        await helpers.add_job("send", {"to": "x"})

    async def scenario() -> list[tuple[str, int]]:
        async with app:
            await follows.enqueue()
            await helped.enqueue({})
            await app.worker(tasks=["follows", "helped"], once=True).run()
            return await made(app)

    assert run(scenario()) == [("send", 1), ("send", 1)]


def test_recurring_jobs_pass_on_enqueue_once(run: Run) -> None:
    app = App(store=MemoryStore(), on_enqueue=[marked])
    app.cron("* * * * *", declare(app), {"to": "x"})
    crontab = f"* * * * * send ?id=of_a_file {{to: 'y'}}\n* * * * * {PURGE_TASK}\n"

    async def scenario() -> list[tuple[str, int]]:
        async with app:
            worker = app.worker(once=True, tasks=["nothing"], crontab=crontab)
            await worker.run()
            return await made(app)

    @app.task
    async def nothing() -> None: ...

    assert sorted(run(scenario())) == [(PURGE_TASK, 0), ("send", 1), ("send", 1)]


def test_a_tick_whose_on_enqueue_raises_is_skipped(run: Run) -> None:
    def refuses(job: NewJob) -> NewJob:
        if job.task == "send":
            raise LookupError("no tenant")
        return job

    app = App(store=MemoryStore(), on_enqueue=[refuses])
    app.cron("* * * * *", declare(app))

    @app.task
    async def other() -> None: ...

    app.cron("* * * * *", other)
    events, troubles = Events(), list[SchedulingFailed]()
    events.on(SchedulingFailed, troubles.append)

    @app.task
    async def nothing() -> None: ...

    async def scenario() -> list[tuple[str, int]]:
        async with app:
            await app.worker(once=True, tasks=["nothing"], events=events).run()
            return await made(app)

    assert [task for task, _ in run(scenario())] == ["other"]
    (trouble,) = troubles
    assert "this tick is skipped: LookupError: no tenant" in trouble.error


def test_the_job_is_checked_after_it_has_passed(run: Run) -> None:
    def renames(job: NewJob) -> NewJob:
        return msgspec.structs.replace(job, payload='{"too": "x"}')

    def asks_for_too_much(job: NewJob) -> NewJob:
        return msgspec.structs.replace(job, priority="high")

    def purges(job: NewJob) -> NewJob:
        return msgspec.structs.replace(job, task=PURGE_TASK)

    async def enqueued(on_enqueue: Callable[[NewJob], NewJob]) -> object:
        app = App(store=MemoryStore(), on_enqueue=[on_enqueue])
        send = declare(app)
        async with app:
            with pytest.raises(InvalidJob) as raised:
                await send.enqueue("x")
            with pytest.raises(InvalidJob, match="job 1 of the batch"):
                await app.enqueue_many([send.new_job("x")])
            assert await made(app) == []
            return str(raised.value)

    assert "unexpected argument 'too'" in str(run(enqueued(renames)))
    assert "priority" in str(run(enqueued(asks_for_too_much)))
    assert "is built in" in str(run(enqueued(purges)))


def test_the_task_may_be_another_and_what_it_declares_is_what_is_checked(run: Run) -> None:
    def by_hand(job: NewJob) -> NewJob:
        return msgspec.structs.replace(job, task="print", payload='{"page": 1}')

    app = App(store=MemoryStore(), on_enqueue=[by_hand])
    send = declare(app)

    @app.task(name="print")
    async def in_print(page: int) -> None: ...

    async def scenario() -> Job:
        async with app:
            job = await send.enqueue("x")
            (found,) = await (await app.open()).inspect.list(JobFilter(task="print"))
            assert found.id == job.id
            return found

    assert run(scenario()).payload == {"page": 1}


def test_on_enqueue_functions_run_in_order_and_raise_in_the_caller(run: Run) -> None:
    seen: list[str] = []

    def first(job: NewJob) -> NewJob:
        seen.append("first")
        return job

    def second(job: NewJob) -> NewJob:
        seen.append("second")
        raise PermissionError("not you")

    app = App(store=MemoryStore(), on_enqueue=[first, second])

    async def scenario() -> None:
        async with app:
            with pytest.raises(PermissionError, match="not you"):
                await declare(app).enqueue("x")
            assert await made(app) == []

    run(scenario())
    assert seen == ["first", "second"]


def test_the_key_of_a_unique_job_is_made_of_what_it_became(run: Run) -> None:
    def one_for_all(job: NewJob) -> NewJob:
        return msgspec.structs.replace(job, payload='{"to":"all"}')

    def keyed(job: NewJob) -> NewJob:
        return msgspec.structs.replace(job, key="mine")

    async def made_by(on_enqueue: Callable[[NewJob], NewJob]) -> int:
        app = App(store=MemoryStore(), on_enqueue=[on_enqueue])

        @app.task(unique="arguments")
        async def send(to: str) -> None: ...

        async with app:
            await send.enqueue("x")
            await send.enqueue("y")
            return len(await made(app))

    assert run(made_by(one_for_all)) == 1
    with pytest.raises(InvalidJob, match="unique computes the keys of task"):
        run(made_by(keyed))
