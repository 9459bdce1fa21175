"""What tasks ask for: opened before the first job, once; closed after the last, in reverse order, whatever happens."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from stowhand.app.app import App
from stowhand.errors import ConfigurationError, ResourceUnavailable
from stowhand.events import Events, HookFailed
from stowhand.jobs.job import Job, State
from stowhand.tasks.context import Context
from stowhand.tasks.resource import resource
from stowhand.testing import FakeClock, MemoryStore, run_task_list_once
from tests.conftest import Run


class Place:
    """Factories that note what becomes of them."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.gate = threading.Event()

    @asynccontextmanager
    async def _on_loop(self, name: str, wrong: str) -> AsyncIterator[str]:
        task = asyncio.current_task()
        self.said.append(f"{name} opens")
        if wrong == "open":
            raise ConnectionError("no route")
        if wrong == "hangs":
            await asyncio.Event().wait()
        yield name
        assert asyncio.current_task() is task, "scopes are left in the task that entered them"
        if wrong == "never":
            await asyncio.Event().wait()
        self.said.append(f"{name} closes")
        if wrong == "close":
            raise OSError("no goodbye")

    @contextmanager
    def _in_thread(self, name: str, wrong: str) -> Iterator[str]:
        thread = threading.current_thread()
        assert thread is not threading.main_thread()
        self.said.append(f"{name} opens")
        if wrong == "open":
            raise ConnectionError("no route")
        if wrong == "hangs":
            assert self.gate.wait(60)
        yield name
        assert threading.current_thread() is thread
        if wrong == "never":
            assert self.gate.wait(60)
        self.said.append(f"{name} closes")
        if wrong == "close":
            raise OSError("no goodbye")

    async def until(self, word: str) -> None:
        while True:
            if word in self.said:
                return
            await asyncio.sleep(0.005)

    def loop(self, name: str, wrong: str = "") -> Any:
        return functools.partial(self._on_loop, name, wrong)

    def thread(self, name: str, wrong: str = "") -> Any:
        return functools.partial(self._in_thread, name, wrong)


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.gate.set()


def declare(app: App, place: Place, **factories: Any) -> list[Any]:
    """A task for each, by the name of its resource."""
    jobs = []
    for name, factory in factories.items():

        def work(*, got: str = resource(factory)) -> None:
            place.said.append(f"job with {got}")

        jobs.append(app.task(name=name)(work))
    return jobs


async def all_of(app: App, enqueued: list[Any], **options: Any) -> None:
    async with app:
        for task in enqueued:
            await task.enqueue()
        await app.worker(once=True, concurrency=1, **options).run()


async def completed(app: App, job: Job) -> None:
    while True:
        result = await (await app.open()).jobs.get(job.id)
        if result is not None and result.state is State.COMPLETED:
            return
        await asyncio.sleep(0.005)


def left_behind() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "stowhand task"]


def test_they_are_opened_before_the_first_job_and_closed_after_the_last_in_reverse_order(
    place: Place, run: Run
) -> None:
    app = App(store=MemoryStore())
    tasks = declare(app, place, a=place.thread("a"), b=place.thread("b"))

    @app.task
    async def c(*, got: str = resource(place.loop("c"))) -> None:
        place.said.append(f"job with {got}")

    run(all_of(app, [*tasks, c]))
    opened, jobs, closed = place.said[:3], place.said[3:6], place.said[6:]
    assert opened == ["a opens", "b opens", "c opens"]
    assert sorted(jobs) == ["job with a", "job with b", "job with c"]
    assert closed == ["c closes", "b closes", "a closes"]
    assert left_behind() == []


def test_one_that_several_tasks_and_workers_ask_for_is_opened_once(place: Place, run: Run) -> None:
    app = App(store=MemoryStore())
    one = place.loop("one")

    @app.task
    async def first(*, got: str = resource(one)) -> None: ...

    @app.task
    async def second(*, got: str = resource(one), again: str = resource(one)) -> None: ...

    async def scenario() -> None:
        async with app:
            async with app.run_in_background() as worker, app.run_in_background():
                job = await second.enqueue()
                await completed(app, job.job)
                worker.stop()
            assert place.said == ["one opens", "one closes"]
            await first.enqueue()
            await app.worker(once=True).run()

    run(scenario())
    assert place.said == ["one opens", "one closes"] * 2


def test_a_worker_of_some_tasks_opens_only_what_these_ask_for(place: Place, run: Run) -> None:
    app = App(store=MemoryStore())
    declare(app, place, a=place.thread("a"), b=place.thread("b"))
    run(all_of(app, [], tasks=["b"]))
    assert place.said == ["b opens", "b closes"]


@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_one_that_cannot_be_opened_ends_the_worker_with_the_error_and_the_others_are_closed(
    place: Place, run: Run, kind: str
) -> None:
    app = App(store=MemoryStore())
    wrong = getattr(place, kind)("c", "open")

    @app.task
    async def work(
        *, a: str = resource(place.loop("a")), b: str = resource(place.thread("b")), c: str = resource(wrong)
    ) -> None:
        place.said.append("job")

    async def scenario() -> Job | None:
        async with app:
            job = await work.enqueue()
            with pytest.raises(ResourceUnavailable, match="could not be opened: ConnectionError: no route") as raised:
                await app.worker(once=True).run()
            assert isinstance(raised.value.__cause__, ConnectionError)
            return await (await app.open()).jobs.get(job.id)

    job = run(scenario())
    assert place.said == ["a opens", "b opens", "c opens", "b closes", "a closes"]
    assert job is not None
    assert (job.state, job.attempts) == (State.QUEUED, 0)
    assert left_behind() == []


@pytest.mark.parametrize("wrong", ["close", "never"])
def test_one_that_does_not_close_keeps_no_other_from_it_and_a_stop_is_bounded(
    place: Place, run: Run, wrong: str
) -> None:
    app = App(store=MemoryStore())
    events, troubles = Events(), list[HookFailed]()
    events.on(HookFailed, troubles.append)

    @app.task
    async def work(
        *,
        a: str = resource(place.loop("a")),
        b: str = resource(place.loop("b", wrong)),
        c: str = resource(place.thread("c")),
    ) -> None: ...

    run(all_of(app, [work], events=events, grace=0))
    assert place.said[-2:] == (["b closes", "a closes"] if wrong == "close" else ["c closes", "a closes"])
    (trouble,) = troubles
    assert trouble.hook.startswith("close of resource ")
    assert ("OSError: no goodbye" if wrong == "close" else "not closed within 1.0 s") in trouble.error


def test_a_thread_that_does_not_close_is_abandoned_and_reported(place: Place, run: Run) -> None:
    app = App(store=MemoryStore())
    events, troubles = Events(), list[HookFailed]()
    events.on(HookFailed, troubles.append)
    (task,) = declare(app, place, a=place.thread("a", "never"))
    run(all_of(app, [task], events=events, grace=0))
    assert "not closed within" in troubles[0].error
    place.gate.set()


@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_a_stop_does_not_wait_for_one_that_is_being_opened(place: Place, run: Run, kind: str) -> None:
    app = App(store=MemoryStore())
    slow = getattr(place, kind)("slow", "hangs")

    @app.task
    async def work(*, a: str = resource(place.loop("a")), slow: str = resource(slow)) -> None:
        place.said.append("job")

    async def scenario() -> None:
        async with app:
            await work.enqueue()
            worker = app.worker()
            running = asyncio.ensure_future(worker.run())
            await place.until("slow opens")
            worker.stop()
            await running

    run(scenario())
    assert place.said == ["a opens", "slow opens", "a closes"]


def test_a_worker_that_is_canceled_closes_them(place: Place, run: Run) -> None:
    app = App(store=MemoryStore())
    declare(app, place, a=place.thread("a"), b=place.thread("b"))

    async def scenario() -> None:
        async with app:
            running = asyncio.ensure_future(app.worker().run())
            await place.until("b opens")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    run(scenario())
    assert place.said == ["a opens", "b opens", "b closes", "a closes"]
    assert left_behind() == []


def test_one_that_ends_by_itself_ends_the_worker(run: Run) -> None:
    app = App(store=MemoryStore())
    broke = asyncio.Event()

    @asynccontextmanager
    async def group() -> AsyncIterator[str]:
        async def fail() -> None:
            await broke.wait()
            raise ConnectionError("cut")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            yield "group"

    @app.task
    async def work(*, got: str = resource(group)) -> None:
        broke.set()

    async def scenario() -> None:
        async with app:
            await work.enqueue()
            with pytest.raises(ResourceUnavailable, match=r"group ended: ExceptionGroup"):
                await app.worker().run()

    run(scenario())


def test_what_the_host_has_opened_is_taken_and_left_open(place: Place, run: Run) -> None:
    app = App(store=MemoryStore())
    pool = place.loop("pool")
    declare(app, place, a=place.thread("a"))

    @app.task
    async def work(*, got: str = resource(pool)) -> None:
        place.said.append(f"job with {got}")

    async def scenario() -> None:
        async with app, app.run_in_background(resources={pool: "the host's"}):
            job = await work.enqueue()
            await completed(app, job.job)

    run(scenario())
    assert place.said == ["a opens", "job with the host's", "a closes"]

    async def mistaken() -> None:
        async with app:
            app.worker(resources={place.loop("other"): "x"})

    with pytest.raises(ConfigurationError, match="no task uses resource"):
        run(mistaken())


def test_a_test_replaces_a_resource(place: Place, run: Run) -> None:
    app = App(store=MemoryStore())
    factory = place.thread("real")
    (task,) = declare(app, place, a=factory)
    with app.override(factory, "a fake"):
        with app.override(factory, "an inner fake"):
            run(all_of(app, [task]))
        run(all_of(app, [task]))
        run(run_task_list_once(app.any_store(), {"a": task}))
    assert place.said == ["job with an inner fake", "job with a fake"]
    run(all_of(app, [task]))
    assert place.said[2:] == ["real opens", "job with real", "real closes"]
    with pytest.raises(ConfigurationError, match="no task uses resource"), app.override(place.thread("x"), "y"):
        pass


@pytest.mark.parametrize("executor", ["loop", "thread"])
def test_a_task_has_them_beside_its_context_and_its_payload(place: Place, run: Run, executor: Any) -> None:
    app = App(store=MemoryStore())
    got: list[Any] = []

    @app.task(executor=executor)
    def work(ctx: Context, payload: Any, *, model: str = resource(place.thread("model"))) -> None:
        got.append((ctx.job.task, payload, model))

    async def scenario() -> None:
        async with app:
            await work.enqueue([1, 2])
            await app.worker(once=True).run()

    run(scenario())
    assert got == [("work", [1, 2], "model")]


def test_context_variables_of_a_factory_are_its_own(run: Run) -> None:
    app = App(store=MemoryStore())
    name: ContextVar[str] = ContextVar("name", default="none")
    seen: list[str] = []

    @asynccontextmanager
    async def named() -> AsyncIterator[str]:
        token = name.set("inside")
        yield "x"
        name.reset(token)  # raises where it is left in another context than it was entered in
        seen.append("reset")

    @app.task
    async def work(*, got: str = resource(named)) -> None:
        seen.append(name.get())

    run(all_of(app, [work]))
    assert seen == ["none", "reset"]


def test_a_worker_that_opens_for_minutes_is_alive(run: Run) -> None:
    clock = FakeClock()
    app = App(store=MemoryStore(clock))
    loaded = asyncio.Event()

    @asynccontextmanager
    async def large() -> AsyncIterator[str]:
        await loaded.wait()
        yield "model"

    @app.task
    async def work(*, got: str = resource(large)) -> None: ...

    async def scenario() -> None:
        async with app:
            worker = app.worker(clock=clock)
            running = asyncio.ensure_future(worker.run())
            liveness = worker.controls.liveness
            for _ in range(60):
                await clock.advance(5)
                ages = liveness.ages()
                assert max(ages.values()) <= 5, ages
                assert not liveness.has_claimed, "not ready"
            loaded.set()
            await clock.settle()
            assert max(liveness.ages().values()) <= 5
            worker.stop()
            await clock.settle()
            await running

    run(scenario())
