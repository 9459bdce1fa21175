"""What a job comes to, for those who wait for it: in this process, from a script, from anywhere by its id."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from stowhand import App, Cancel, Fail, JobHandle, Retry, as_completed, gather
from stowhand.errors import (
    ConfigurationError,
    InvalidJob,
    JobCanceled,
    JobFailed,
    JobNotVisible,
    JobRemoved,
    JobReplaced,
    Misuse,
    PayloadMismatch,
    ResultNotKept,
    StoreError,
    UnknownJob,
)
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.outcomes import Complete
from stowhand.protocols.store import ClaimRequest, StoreOptions
from stowhand.tasks.job_handle import JobFields
from stowhand.testing import FakeClock, MemoryStore
from tests.conftest import Run

AT_MOST = 60.0


@dataclass
class Point:
    x: int
    y: int = 0


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """Of each kind of store, with nothing installed."""
    match request.param:
        case "memory":
            app = App(store=MemoryStore())
        case "sqlite":
            app = App(f"sqlite:///{tmp_path}/jobs.db")
        case _:
            app = App(request.getfixturevalue("postgres_url"))
    yield app
    app.sync.close()


@pytest.fixture
def here() -> App:
    """In memory."""
    return App(store=MemoryStore())


@asynccontextmanager
async def at_work(app: App, jobs: int = 4) -> AsyncIterator[None]:
    async with asyncio.timeout(AT_MOST), app.run_in_background(concurrency=jobs):
        yield
    await app.close()


def test_a_repeat_within_the_period_of_a_unique_task_gives_the_result_that_there_is(app: App, run: Run) -> None:
    runs = []

    @app.task(unique="arguments", unique_period="1h")
    async def bill(customer: int) -> int:
        runs.append(customer)
        return len(runs)

    async def scenario() -> None:
        async with at_work(app):
            job = await bill.enqueue(4711)
            assert await job.result() == 1
            again = await bill.enqueue(4711)
            assert (again, again.state, await again.result()) == (job, State.COMPLETED, 1)
            assert await bill.enqueue_and_wait(4711) == 1
            assert await bill.enqueue_and_wait(4712) == 2
            assert await bill.enqueue_many([{"customer": 4711}]) == [job]

    run(scenario())


def test_the_result_of_a_repeat_whose_first_job_is_in_no_history_is_not_kept(run: Run) -> None:
    clock = FakeClock()
    app = App(store=MemoryStore(clock, StoreOptions(history=10.0)))

    @app.task(unique="arguments", unique_period="1h")
    async def bill(customer: int) -> None: ...

    async def scenario() -> None:
        store = await app.open(install=True)
        job = await bill.enqueue(4711)
        (claim,) = await store.claim(ClaimRequest(worker="w", token="t", limit=1, lease=30.0))
        await store.settle([(claim.lease, COMPLETED)])
        await clock.advance(60)
        heartbeats = store.heartbeats()
        await heartbeats.maintain()
        again = await bill.enqueue(4711)
        assert (again, again.state) == (job, State.COMPLETED)
        with pytest.raises(ResultNotKept):
            await again.result()
        await app.close()

    run(scenario())


def test_a_result_has_the_type_that_its_task_is_annotated_with(app: App, run: Run) -> None:
    @app.task
    async def mirrored(point: Point) -> Point:
        return Point(point.y, point.x)

    @app.task
    async def maybe(ok: bool) -> Point | Retry | Complete | None:
        return Complete(Point(1)) if ok else None

    @app.task
    def untyped(n: int):  # type: ignore[no-untyped-def]
        return {"n": n}

    async def scenario() -> None:
        async with at_work(app):
            job = await mirrored.enqueue(Point(1, 2))
            assert (job.state, job.task, job.attempts) == (State.QUEUED, "mirrored", 0)
            assert await job.result(timeout=AT_MOST) == Point(2, 1)
            assert (job.state, job.attempts, job.payload) == (State.COMPLETED, 1, {"point": {"x": 1, "y": 2}})
            assert await job.result() == Point(2, 1)  # once more: nobody is asked
            assert await maybe.enqueue_and_wait(True, timeout="1m") == Point(1)
            assert await maybe.enqueue_and_wait(ok=False) is None
            assert await untyped.enqueue_and_wait(3) == {"n": 3}
            assert await untyped.options(key="k", serial="q").enqueue_and_wait(4) == {"n": 4}
            elsewhere = await app.job(job.id)
            assert await elsewhere.result() == Point(2, 1)
            assert elsewhere == job
            assert await (await app.job(job.id, mirrored)).result() == Point(2, 1)
            with pytest.raises(InvalidJob, match=r"job \d+ is of task 'mirrored', not of 'maybe'"):
                await app.job(job.id, maybe)

    run(scenario())


def test_the_error_of_a_job_without_a_result_gives_the_reason(app: App, run: Run) -> None:
    attempts = []

    @app.task(max_attempts=2, backoff=lambda attempt: 0.0)
    async def breaks(n: int) -> int:
        attempts.append(n)
        raise LookupError("no such thing")

    @app.task
    async def is_canceled() -> object:
        return Cancel("not wanted")

    @app.task
    async def fails() -> object:
        return Fail("in words, not a class")

    @app.task
    async def unencodable() -> object:
        return object()

    @app.task(delay="1h")
    async def waits() -> int:
        return 1

    async def scenario() -> None:
        async with at_work(app):
            job = await breaks.enqueue(1)
            with pytest.raises(
                JobFailed, match=r"job \d+ of 'breaks' has permanently failed after 2 of 2 attempts: LookupError: no"
            ):
                await job.result()
            assert attempts == [1, 1]
            with pytest.raises(JobFailed) as failed:
                await job.result()
            assert (failed.value.error_class, failed.value.attempts, failed.value.job_id) == ("LookupError", 2, job.id)
            assert failed.value.error.startswith("LookupError: no such thing\n")
            assert (await job.wait()).state is State.FAILED
            with pytest.raises(JobFailed) as worded:
                await fails.enqueue_and_wait()
            assert (worded.value.error_class, worded.value.error) == (None, "in words, not a class")
            with pytest.raises(JobCanceled):
                await is_canceled.enqueue_and_wait()
            with pytest.raises(ResultNotKept, match="could not be kept"):
                await unencodable.enqueue_and_wait()
            later = await waits.enqueue()
            for end, error in (("cancel", JobCanceled), ("remove", JobRemoved)):
                later = await waits.enqueue()
                waiting = asyncio.create_task(later.result())
                await asyncio.sleep(0)
                await getattr((await app.open()).admin, end)(later.id)
                with pytest.raises(error):
                    await waiting
            with pytest.raises(UnknownJob, match="there never was a job 99999"):
                await app.job(99999)
            with pytest.raises(ResultNotKept):
                await app.job(later.id)
            first = await waits.options(key="k").enqueue()
            assert (await waits.options(key="k").enqueue()).id == first.id
            with pytest.raises(JobReplaced, match=r"was replaced by another job with the key 'k' \(revision 1\)"):
                await first.result()

    run(scenario())


def test_a_job_that_expired_says_so(app: App, run: Run) -> None:
    @app.task(expires=0.001)
    async def late() -> None: ...

    async def main() -> None:
        await app.open(install=True)
        job = await late.enqueue()
        await asyncio.sleep(0.01)
        async with at_work(app):
            with pytest.raises(JobCanceled, match="was canceled: it expired before its first attempt"):
                await job.result()

    run(main())


def test_a_timeout_does_not_stop_the_job(app: App, run: Run) -> None:
    @app.task
    async def add(one: int, other: int) -> int:
        return one + other

    async def scenario() -> None:
        await app.open(install=True)
        job = await add.enqueue(1, 2)
        with pytest.raises(TimeoutError, match=rf"job {job.id} of 'add' has not finished within 0.05 s; it continues"):
            await job.result(timeout=0.05)
        with pytest.raises(TimeoutError):
            await add.enqueue_and_wait(1, 2, timeout=0.05)
        assert (await job.refresh()).state is State.QUEUED
        async with at_work(app):
            assert await job.result() == 3

    run(scenario())


def test_a_handle_cancels_and_looks_again(app: App, run: Run) -> None:
    @app.task(delay=3600)
    async def later() -> None: ...

    async def scenario() -> None:
        await app.open(install=True)
        job = await later.enqueue()
        assert (await job.cancel()).result == "done"
        assert job.state is State.QUEUED
        assert (await job.refresh()).state is State.CANCELED
        assert job.finished_at is not None
        await app.close()

    run(scenario())


def test_watching_shows_each_change_until_the_end(app: App, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowhand.tasks.job_handle.WATCH_INTERVAL_SECONDS", 0.02)
    goes_on = asyncio.Event()

    @app.task
    async def works() -> str:
        await goes_on.wait()
        return "done"

    async def scenario() -> None:
        async with at_work(app):
            job = await works.enqueue()
            states = []
            async for now in job.watch():
                states.append(now.state)
                if now.state is State.PROCESSING:
                    goes_on.set()
            assert states[-2:] == [State.PROCESSING, State.COMPLETED]
            assert await job.result() == "done"

    run(scenario())


def test_many_are_gathered_in_their_order_and_seen_as_they_end(app: App, run: Run) -> None:
    @app.task(max_attempts=1)
    async def half(n: int) -> float:
        return 10 / n

    async def scenario() -> None:
        async with at_work(app):
            jobs = [await half.enqueue(n) for n in (1, 2, 4, 5)]
            assert await gather(jobs, timeout=AT_MOST) == [10.0, 5.0, 2.5, 2.0]
            jobs += [await half.enqueue(0)]
            with pytest.raises(JobFailed, match="ZeroDivisionError"):
                await gather(jobs)
            ended = {job.id: job.state async for job in as_completed(jobs)}
            assert ended == {job.id: State.COMPLETED for job in jobs[:4]} | {jobs[4].id: State.FAILED}
            stays = await half.options(delay=3600).enqueue(1)
            some = as_completed([jobs[0], stays], timeout=0.05)
            assert await anext(some) == jobs[0]
            with pytest.raises(TimeoutError, match=r"1 jobs have not finished within 0.05 s; they continue"):
                await anext(some)

    run(scenario())


def test_without_a_loop_the_same_is_waited_for(app: App) -> None:
    @app.task
    async def add(one: int, other: int) -> int:
        return one + other

    app.sync.install()
    stop, ready = threading.Event(), threading.Event()

    def work() -> None:
        async def until_told() -> None:
            async with app.run_in_background():
                ready.set()
                await asyncio.to_thread(stop.wait, AT_MOST)
            await app.close()

        asyncio.run(until_told())

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert ready.wait(AT_MOST)
        job = app.sync.enqueue(add, 1, 2)
        assert job.result(timeout=AT_MOST) == 3
        assert (job.state, job.wait().state, job.refresh().state) == (State.COMPLETED,) * 3
        assert app.sync.enqueue_and_wait(add, 3, 4, timeout=AT_MOST) == 7
        assert app.sync.job(job.id, add).result() == 3
        assert app.sync.gather([app.sync.enqueue(add, n, 1) for n in range(3)], timeout=AT_MOST) == [1, 2, 3]
        assert [now.state for now in app.sync.enqueue(add, 1, 1).watch()][-1] is State.COMPLETED
        with pytest.raises(TimeoutError):
            app.sync.enqueue(add.options(delay=3600), 1, 2).result(timeout=0.01)
        assert app.sync.enqueue(add.options(delay=3600), 1, 2).cancel().result == "done"
    finally:
        stop.set()
        worker.join(AT_MOST)


def test_waiting_inside_an_attempt_is_refused(here: App, run: Run) -> None:
    refused: list[str] = []

    @here.task
    async def other() -> None: ...

    @here.task
    async def impatient() -> None:
        job = await other.enqueue()
        calls: list[Callable[[], Any]] = [job.result, job.wait, other.enqueue_and_wait, lambda: anext(job.watch())]
        for call in calls:
            with pytest.raises(Misuse, match=r"inside an attempt.*enqueue_after.*flow") as error:
                await call()
            refused.append(str(error.value).split(" ")[0])

    @here.task
    def plain() -> None:
        with pytest.raises(Misuse, match="inside an attempt"):
            here.sync.enqueue_and_wait(other)
        refused.append("sync")

    async def scenario() -> None:
        async with at_work(here):
            await impatient.enqueue_and_wait()
            await plain.enqueue_and_wait()

    run(scenario())
    here.sync.close()
    assert refused == ["result()", "wait()", "enqueue_and_wait()", "watch()", "sync"]


def test_where_no_results_are_kept_no_job_is_made(run: Run, tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db", history=None)

    @app.task
    async def noop() -> None: ...

    async def scenario() -> None:
        await app.open(install=True)
        with pytest.raises(ConfigurationError, match=r"enqueue_and_wait of task 'noop': this store keeps no results"):
            await noop.enqueue_and_wait()
        store = await app.open()
        assert sum((await store.inspect.counts()).values()) == 0
        job = await noop.enqueue()
        async with at_work(app):
            with pytest.raises(ResultNotKept):
                await job.result()

    run(scenario())


def test_what_an_open_transaction_has_enqueued_is_not_visible(app: App, run: Run, request: Any, tmp_path: Path) -> None:
    @app.task
    async def noop() -> int:
        return 7

    async def refused(job: JobHandle[int]) -> None:
        with pytest.raises(JobNotVisible, match=r"the transaction that enqueued it is still open, or was rolled"):
            await job.result()
        with pytest.raises(JobNotVisible):
            await job.refresh()

    async def scenario() -> None:
        await app.open(install=True)
        if isinstance((await app.open()), MemoryStore):
            return
        if "sqlite" in request.node.name:
            connection: Any = sqlite3.connect(tmp_path / "jobs.db")
        else:
            connection = psycopg.connect(request.getfixturevalue("postgres_url"))
        with closing(connection):
            job: JobHandle[int] = noop.enqueue_in(connection)
            await refused(job)
            connection.commit()
        async with at_work(app):
            assert await job.result() == 7

    run(scenario())


def test_the_error_for_an_id_mentions_that_its_transaction_may_not_be_committed(postgres_url: str, run: Run) -> None:
    app = App(postgres_url)

    @app.task
    async def noop() -> None: ...

    async def scenario() -> None:
        await app.open(install=True)
        with closing(psycopg.connect(postgres_url)) as connection:
            job: JobHandle[None] = noop.enqueue_in(connection)
            not_committed = rf"job {job.id} is not in the store: .* was never committed"
            with pytest.raises(ResultNotKept, match=not_committed):
                await app.job(job.id)
            connection.rollback()
            with pytest.raises(ResultNotKept, match=not_committed):
                await app.job(job.id)
        await app.close()

    run(scenario())


def test_what_an_open_transaction_has_enqueued_is_a_job_as_any_once_it_was_seen(
    app: App, run: Run, request: Any, tmp_path: Path
) -> None:
    @app.task
    async def noop() -> int:
        return 7

    @app.task
    async def other() -> int:
        return 8

    async def scenario() -> None:
        store = await app.open(install=True)
        if isinstance(store, MemoryStore):
            return
        if "sqlite" in request.node.name:
            connection: Any = sqlite3.connect(tmp_path / "jobs.db")
        else:
            connection = psycopg.connect(request.getfixturevalue("postgres_url"))
        with closing(connection):
            job: JobHandle[int] = noop.enqueue_in(connection)
            connection.commit()
            await job.refresh()
            await store.admin.remove(job.id)
            with pytest.raises(JobRemoved):
                await job.result()
            job = noop.enqueue_in(connection)
            connection.commit()
            waiting = asyncio.create_task(job.result())
            with pytest.raises(TimeoutError):
                await job.wait(0.5)
            await store.admin.remove(job.id)
            with pytest.raises(JobRemoved):
                await waiting
            job = noop.enqueue_in(connection)
            connection.rollback()
        second = await other.enqueue()
        assert (second.id == job.id) == ("sqlite" in request.node.name)
        async with at_work(app):
            assert await second.result() == 8
            with pytest.raises(JobNotVisible):
                await job.result()

    run(scenario())


def test_an_id_that_no_job_can_have_is_unknown(app: App, run: Run) -> None:
    async def scenario() -> None:
        await app.open(install=True)
        for wrong in (0, -1, 2**63, 10**30):
            with pytest.raises(UnknownJob):
                await app.job(wrong)
        await app.close()

    run(scenario())


def test_a_result_of_another_type_than_this_version_returns_is_refused(here: App, run: Run) -> None:
    @here.task
    async def wrong() -> int:
        return "a text"  # type: ignore[return-value]

    async def scenario() -> None:
        async with at_work(here):
            with pytest.raises(PayloadMismatch, match="the result is not what this version of the task returns"):
                await wrong.enqueue_and_wait()

    run(scenario())


def test_a_store_that_is_closed_beneath_a_waiter_ends_its_wait(app: App, run: Run) -> None:
    @app.task
    async def noop() -> None: ...

    async def scenario() -> None:
        await app.open(install=True)
        job = await noop.enqueue()
        waiting = asyncio.create_task(job.result())
        await asyncio.sleep(0.05)
        await app.close()
        with pytest.raises(StoreError, match="closed while a caller waited for a job; the job continues"):
            await waiting
        async with at_work(app):
            await job.result()

    run(scenario())


def test_a_loop_that_ends_while_it_waits_takes_nothing_with_it(here: App) -> None:
    @here.task
    async def noop() -> int:
        return 1

    job: list[JobHandle[int]] = []

    async def gives_up() -> None:
        job.append(await noop.enqueue())
        waiting = asyncio.create_task(job[0].result())
        await asyncio.sleep(0.05)
        assert not waiting.done()

    async def again() -> None:
        async with at_work(here):
            assert await job[0].result() == 1

    asyncio.run(gives_up())
    asyncio.run(again())


def test_a_parameter_of_the_task_s_own_is_not_taken_for_ours(here: App, run: Run) -> None:
    @here.task
    async def slow(timeout: int = 1) -> int:
        return timeout

    async def scenario() -> None:
        async with at_work(here):
            assert await slow.enqueue_and_wait(5) == 5
            with pytest.raises(InvalidJob, match=r"has its own parameter 'timeout'; use enqueue\(…\), and wait with"):
                await slow.enqueue_and_wait(timeout=3)

    run(scenario())


def test_a_middleware_that_changes_a_job_does_not_lose_its_mark(run: Run, postgres_url: str) -> None:
    def keyed(job: NewJob) -> NewJob:
        return NewJob(task=job.task, payload=job.payload, key="k")

    app = App(postgres_url, on_enqueue=[keyed])

    @app.task
    async def noop() -> int:
        return 1

    async def scenario() -> None:
        async with at_work(app):
            assert await noop.enqueue_and_wait(timeout=9.0) == 1  # less than a wait polls

    run(scenario())


def test_a_handle_has_every_field_of_a_job_but_its_result() -> None:
    fields = {name for name in vars(JobFields) if not name.startswith("_")}
    names = {one.name for one in msgspec.structs.fields(Job)} | {"payload"}
    assert fields == names | {"job", "last_read"}


def test_two_handles_are_equal_if_they_are_of_the_same_job(here: App, run: Run) -> None:
    @here.task
    async def noop() -> None: ...

    async def scenario() -> None:
        one, other = await noop.enqueue(), await noop.enqueue()
        again = await here.job(one.id)
        assert (one == again, hash(one) == hash(again), one == other, one == one.job) == (True, True, False, False)
        assert repr(one) == f"<job {one.id} of 'noop', queued when last read>"

    run(scenario())
