"""A call that cannot work, made by a task, fails its job at once: another attempt would repeat what came before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stowhand import App, Context, gather, resource
from stowhand.errors import JobFailed, Misuse
from stowhand.jobs.lifecycle import Fail, Retry
from stowhand.jobs.outcomes import from_error
from stowhand.testing import MemoryStore

pytestmark = pytest.mark.anyio
AT_MOST = 60.0


@asynccontextmanager
async def opened() -> AsyncIterator[int]:
    yield 1


@App(store=MemoryStore()).task
async def needy(*, shared: int = resource(opened)) -> None: ...


def app_of_calls(call: Callable[[App, Context, Any], Awaitable[object]]) -> tuple[App, Any]:
    """An App with the task ``parent``, which enqueues a ``child`` and then makes this call."""
    app = App(store=MemoryStore())

    @app.task
    async def child(number: int) -> None: ...

    @app.task(max_attempts=5, backoff=lambda attempt: 0.0)
    async def parent(ctx: Context) -> None:
        await child.enqueue(1)
        await call(app, ctx, child)

    return app, parent


async def waits_for_one(app: App, ctx: Context, child: Any) -> None:
    await (await child.enqueue(2)).result()


async def waits_for_many(app: App, ctx: Context, child: Any) -> None:
    await gather([await child.enqueue(2)])


async def enqueues_and_waits(app: App, ctx: Context, child: Any) -> None:
    await child.enqueue_and_wait(2)


async def blocks_the_loop(app: App, ctx: Context, child: Any) -> None:
    app.sync.enqueue(child, 2)


async def blocks_in_a_thread(app: App, ctx: Context, child: Any) -> None:
    await asyncio.to_thread(app.sync.enqueue_and_wait, child, 2)


async def forgets_the_loop_in_a_thread(app: App, ctx: Context, child: Any) -> None:
    await asyncio.to_thread(child.enqueue, 2)


async def forgets_an_argument(app: App, ctx: Context, child: Any) -> None:
    await child.enqueue()


async def mistypes_an_option(app: App, ctx: Context, child: Any) -> None:
    await child.options(prioritty=1).enqueue(2)


async def reports_impossible_progress(app: App, ctx: Context, child: Any) -> None:
    ctx.progress(2, "of 1")


async def asks_for_a_connection(app: App, ctx: Context, child: Any) -> None:
    async with ctx.connection():
        pass


async def calls_a_task_without_its_resource(app: App, ctx: Context, child: Any) -> None:
    await needy()


async def wraps_it(app: App, ctx: Context, child: Any) -> None:
    try:
        await child.enqueue()
    except Misuse as error:
        raise ConnectionError("so it seems") from error


async def in_a_group(app: App, ctx: Context, child: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(child.enqueue())


CALLS = [
    waits_for_one, waits_for_many, enqueues_and_waits, blocks_the_loop, blocks_in_a_thread,
    forgets_the_loop_in_a_thread, forgets_an_argument,
    mistypes_an_option, reports_impossible_progress, asks_for_a_connection, calls_a_task_without_its_resource,
    wraps_it, in_a_group,
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_misuse_within_a_task_fails_its_job_at_the_first_attempt(
    call: Callable[[App, Context, Any], Awaitable[object]],
) -> None:
    app, parent = app_of_calls(call)
    async with asyncio.timeout(AT_MOST), app.run_in_background():
        job = await parent.enqueue()
        with pytest.raises(JobFailed, match="after 1 of 5 attempts"):
            await job.result()
        instance = await (await app.open()).jobs.get(job.id + 1)
        assert instance is not None
        assert instance.payload == {"number": 1}
    app.sync.close()
    await app.close()


def test_a_misuse_that_was_caught_does_not_count() -> None:
    """What fails afterwards, in the same except block, may be well the next time."""
    caught = ConnectionError("later")
    caught.__context__ = Misuse("no")
    assert isinstance(from_error(caught), Retry)
    caught.__cause__ = caught.__context__
    assert isinstance(from_error(caught), Fail)
