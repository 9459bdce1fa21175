"""Results of many jobs: by handles, jobs and ids; errors raised or returned; what is none of these is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from stowhand import App, NewJob, as_completed, gather
from stowhand.errors import JobCanceled, JobFailed, JobRemoved, Misuse, ResultNotKept, UnknownJob
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import ClaimRequest, StoreOptions
from stowhand.testing import FakeClock, MemoryStore

pytestmark = pytest.mark.anyio
AT_MOST = 60.0
DAYS = [date(2030, 1, day) for day in range(1, 5)]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    match request.param:
        case "memory":
            app = App(store=MemoryStore())
        case "sqlite":
            app = App(f"sqlite:///{tmp_path}/jobs.db")
        case _:
            app = App(request.getfixturevalue("postgres_url"))
    yield app
    app.sync.close()


def declared(app: App) -> Any:
    """A task with a typed result, which fails for the day 3."""

    @app.task(max_attempts=1)
    async def same(day: date) -> date:
        if day.day == 3:
            raise ValueError("not this day")
        return day

    return same


@asynccontextmanager
async def at_work(app: App) -> AsyncIterator[None]:
    async with asyncio.timeout(AT_MOST), app.run_in_background():
        yield
    await app.close()


async def test_a_batch_gives_typed_handles(app: App) -> None:
    same = declared(app)
    await app.open(install=True)
    payloads = [{"day": one} for one in DAYS[:2]]

    async def arriving() -> AsyncIterator[dict[str, Any]]:
        for one in payloads:
            yield one

    handles = [*await same.enqueue_many(payloads), *await same.enqueue_many(arriving())]
    assert [handle.task for handle in handles] == ["same"] * 4
    assert len({handle.id for handle in handles}) == 4
    assert repr(handles[0]) == f"<job {handles[0].id} of 'same', not read yet>"
    with pytest.raises(Misuse, match=r"not read yet> was enqueued in a batch and not read since; call job.refresh\(\)"):
        _ = handles[0].state
    assert (await handles[0].refresh()).state is State.QUEUED
    async with at_work(app):
        assert await gather(handles) == DAYS[:2] * 2
        assert handles[1].state is State.COMPLETED
        assert [job.id async for job in as_completed(handles)] != []


async def test_the_app_takes_handles_jobs_and_ids(app: App) -> None:
    same = declared(app)
    async with at_work(app):
        ids = await app.enqueue_many(same.new_job(one) for one in DAYS[:2])
        jobs = await app.add_jobs([same.new_job(one) for one in DAYS[:2]])
        handles = await same.enqueue_many([{"day": one} for one in DAYS[:2]])
        assert await app.gather([*ids, *jobs, *handles], timeout=AT_MOST) == DAYS[:2] * 3


async def test_errors_are_returned_in_their_places(app: App) -> None:
    same = declared(app)
    async with at_work(app):
        handles = await same.enqueue_many([{"day": one} for one in DAYS])
        later = await same.options(delay="1h").enqueue(DAYS[0])
        await later.cancel()
        result = await gather([*handles, later], return_exceptions=True)
        assert [*result[:2], result[3]] == [*DAYS[:2], DAYS[3]]
        assert [type(one) for one in (result[2], result[4])] == [JobFailed, JobCanceled]
        with pytest.raises(JobFailed, match="not this day"):
            await gather(handles)
        (missing,) = await app.gather([10_000], return_exceptions=True)
        assert isinstance(missing, UnknownJob)
        slow = await same.options(delay="1h").enqueue(DAYS[0])
        (late,) = await gather([slow], timeout=0, return_exceptions=True)
        assert isinstance(late, TimeoutError)


def test_the_synchronous_twin_takes_the_same(app: App) -> None:
    same = declared(app)
    app.sync.install()
    ids = app.sync.enqueue_many(same.new_job(one) for one in DAYS[:2])
    jobs = app.sync.add_jobs([same.new_job(DAYS[3])])
    handle = app.sync.enqueue(same, DAYS[2])

    async def work() -> None:
        async with at_work(app):
            await app.gather([*ids, *jobs, handle.id], return_exceptions=True)

    asyncio.run(work())
    result = app.sync.gather([*ids, *jobs, handle], return_exceptions=True)
    assert result[:3] == [*DAYS[:2], DAYS[3]]
    assert isinstance(result[3], JobFailed)
    with pytest.raises(JobFailed):
        app.sync.gather([handle])
    with pytest.raises(
        Misuse, match=r"a list: app\.sync\.gather\(\[job\]\), app\.sync\.gather\(app\.sync\.enqueue_many"
    ):
        app.sync.gather(handle)  # type: ignore[call-overload]


async def test_anything_else_is_named() -> None:
    app = App(store=MemoryStore())
    same = declared(app)
    (job,) = await app.add_jobs([same.new_job(DAYS[0])])
    for given, what in [(job, "a Job"), (job.id, "an int"), (NewJob(task="x"), "a NewJob"), (None, "a NoneType")]:
        with pytest.raises(Misuse, match=rf"gather: {what} is not a handle; .*app\.gather\(…\) also takes jobs"):
            await gather([given])  # type: ignore[arg-type]
        with pytest.raises(Misuse, match=f"as_completed: {what} is not a handle"):
            await anext(as_completed([given]))  # type: ignore[arg-type]
    for wrong in (NewJob(task="x"), None, "1", True):
        with pytest.raises(Misuse, match=r"app\.gather: .*; use handles, jobs or ids"):
            await app.gather([wrong])  # type: ignore[arg-type]
    handle = app.handled.handle_of(job)
    with pytest.raises(Misuse, match=r"^gather: got a JobHandle; use a list: gather\(\[job\]\)"):
        await gather(handle)  # type: ignore[call-overload]
    with pytest.raises(Misuse, match=r"^app\.gather: got an int; use a list"):
        await app.gather(job.id)  # type: ignore[call-overload]
    with pytest.raises(Misuse, match=r"^as_completed: got a JobHandle; use a list"):
        await anext(as_completed(handle))  # type: ignore[arg-type]


async def test_a_job_of_a_batch_that_was_removed_before_its_first_read() -> None:
    clock = FakeClock()
    app = App(store=MemoryStore(clock, StoreOptions(history=10.0)))
    same = declared(app)
    store = await app.open(install=True)
    removed, ended = await same.enqueue_many([{"day": one} for one in DAYS[:2]])
    await store.admin.remove(removed.id)
    with pytest.raises(JobRemoved):
        await removed.result()
    (claim,) = await store.claim(ClaimRequest(worker="w", token="t", limit=1, lease=30.0))
    await store.settle([(claim.lease, COMPLETED)])
    await clock.advance(60)
    await store.heartbeats().maintain()
    with pytest.raises((ResultNotKept, JobRemoved)):
        await ended.result()
    await app.close()
