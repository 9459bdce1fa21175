"""``run``, ``run_once``, ``run_migrations``, and the life of a ``Runner``."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from stowhand.errors import ConfigurationError, SchemaMissing, StowhandError
from stowhand.jobs.job import Job, State
from stowhand.protocols.queue_store import ActionResult, QueueStore
from stowhand.runner import Runner, WorkerEvents, make_worker_utils, quick_add_job, run, run_migrations, run_once
from stowhand.runner.runner import Signals
from stowhand.stores.url import open_store
from stowhand.tasks.context import BlockingHelpers, Helpers
from stowhand.tasks.resource import resource


@asynccontextmanager
async def looking_at(url: str) -> AsyncIterator[QueueStore]:
    store = open_store(url)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


LATE = datetime(2100, 1, 1, tzinfo=UTC)


def nothing(payload: Any) -> None:
    """A task that does nothing."""


async def test_the_quickstart_runs_its_task(url: str) -> None:
    lines: list[str] = []
    hello_said = asyncio.Event()

    async def hello(payload: Any, helpers: Helpers) -> None:
        helpers.logger.info(f"Hello, {payload['name']}")
        lines.append(payload["name"])
        hello_said.set()

    runner = await run(
        connection_string=url, concurrency=5, no_handle_signals=True, poll_interval=1, task_list={"hello": hello}
    )
    await quick_add_job({"connection_string": url}, "hello", {"name": "Bobby Tables"})
    await hello_said.wait()
    await runner.stop()
    await runner.promise
    assert lines == ["Bobby Tables"]


async def test_run_once_runs_due_jobs_and_those_that_its_tasks_add(url: str) -> None:
    ran: list[Any] = []

    async def parent(payload: Any, helpers: Helpers) -> None:
        ran.append(payload["n"])
        if payload["n"] < 2:
            await helpers.add_job("parent", {"n": payload["n"] + 1}, job_key="next", priority=0)

    async with await make_worker_utils(connection_string=url) as utils:
        await utils.migrate()
        first = await utils.add_job("parent", {"n": 1})
        later = await utils.add_job("parent", {"n": 3}, delay=600)
        unknown = await utils.add_job("elsewhere", {})
    await run_once(connection_string=url, task_list={"parent": parent})
    assert ran == [1, 2]
    async with looking_at(url) as store:
        states = [job.state if (job := await store.jobs.get(one.id)) else None for one in (first, later, unknown)]
    assert states == [State.COMPLETED, State.QUEUED, State.QUEUED]


async def test_run_once_at_concurrency_one_runs_one_after_another(sqlite_url: str) -> None:
    running = most = done = 0

    async def count(payload: Any) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running, done = running - 1, done + 1

    async with await make_worker_utils(connection_string=sqlite_url) as utils:
        await utils.migrate()
        await utils.add_jobs({"identifier": "count"} for _ in range(5))
    await run_once(connection_string=sqlite_url, task_list={"count": count}, concurrency=1)
    assert (most, done) == (1, 5)


async def test_run_migrations_needs_no_tasks(empty_url: str) -> None:
    with pytest.raises(SchemaMissing, match="stowhand migrate"):
        await quick_add_job({"connection_string": empty_url}, "hello")
    await run_migrations(connection_string=empty_url, schema="jobs")
    job = await quick_add_job({"connection_string": empty_url, "schema": "jobs"}, "hello")
    assert job.id == 1


async def test_run_installs_an_absent_schema(empty_url: str) -> None:
    await run_once(connection_string=empty_url, schema="elsewhere", task_list={"x": lambda payload: None})
    async with await make_worker_utils(connection_string=empty_url, schema="elsewhere") as utils:
        assert (await utils.add_job("x")).state is State.QUEUED


async def test_a_task_directory_works_like_a_task_list(url: str, surroundings: Path) -> None:
    folder = surroundings / "tasks"
    folder.mkdir()
    (folder / "hello.py").write_text("def task(payload, helpers):\n    helpers.add_job('other', queue_name='q')\n")
    await run_migrations(connection_string=url)
    await quick_add_job({"connection_string": url}, "hello")
    await run_once(connection_string=url, task_directory=folder)
    async with looking_at(url) as store:
        other = await store.jobs.get(2)
    assert other is not None
    assert (other.task, other.serial) == ("other", "q")


async def test_stopping_waits_for_running_jobs_and_claims_no_more(url: str) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    async def slow(payload: Any, helpers: Helpers) -> None:
        ran.append(helpers.job.id)
        begun.set()
        await may_end.wait()

    runner = await run(connection_string=url, no_handle_signals=True, concurrency=1, task_list={"slow": slow})
    first = await runner.add_job("slow")
    second = await runner.add_job("slow")
    await begun.wait()
    stopping = asyncio.create_task(runner.stop())
    for _ in range(5):
        running = await runner._plan.store.jobs.get(first.id)
        assert running is not None
        assert running.state is State.PROCESSING, "it has its grace"
    assert not stopping.done()
    with pytest.raises(StowhandError, match="Runner is already stopped"):
        await runner.stop()
    may_end.set()
    await stopping
    assert ran == [first.id]
    async with looking_at(url) as store:
        done, left = await store.jobs.get(first.id), await store.jobs.get(second.id)
    assert done is not None
    assert done.state is State.COMPLETED
    assert left is not None
    assert (left.state, left.attempts) == (State.QUEUED, 0)
    with pytest.raises(StowhandError, match="Runner is already stopped"):
        await runner.stop()


async def test_a_runner_that_has_ended_enqueues_no_more(sqlite_url: str) -> None:
    runner = await run(connection_string=sqlite_url, no_handle_signals=True, task_list={"x": nothing})
    events = runner.events
    added: list[Any] = []
    events.on(
        "pool:gracefulShutdown", lambda event: added.append(asyncio.ensure_future(runner.add_job("x", run_at=LATE)))
    )
    await runner.stop()
    assert (await added[0]).id == 1, "as long as it stops"
    with pytest.raises(StowhandError, match="Runner is already stopped"):
        await runner.add_job("x")


async def test_a_crash_of_the_worker_is_raised_and_reported(sqlite_url: str) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    events = WorkerEvents()
    fatal: list[BaseException] = []
    events.on("worker:fatalError", lambda event: fatal.append(event.error))
    runner = await run(
        connection_string=sqlite_url, no_handle_signals=True, events=events, concurrency=1, task_list={"x": nothing}
    )

    async def broken(request: object) -> Any:
        raise ZeroDivisionError("a bug in the store")

    runner._plan.store.claim = broken  # type: ignore[method-assign]
    runner._worker.wake()
    with pytest.raises(ZeroDivisionError):
        await runner.promise
    assert [type(one) for one in fatal] == [ZeroDivisionError]
    assert [type(one["exception"]) for one in reported] == [ZeroDivisionError]
    with pytest.raises(StowhandError, match="already stopped"):
        await runner.stop()


async def test_giving_up_waiting_does_not_stop_the_runner(sqlite_url: str) -> None:
    ran = asyncio.Event()

    async def ring(payload: Any) -> None:
        ran.set()

    async with await run(connection_string=sqlite_url, no_handle_signals=True, task_list={"x": ring}) as runner:
        waiting = asyncio.ensure_future(runner.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await runner.add_job("x")
        await ran.wait()


async def test_cancelling_everything_ends_a_runner_in_order(sqlite_url: str) -> None:
    begun = asyncio.Event()

    async def stuck(payload: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    runner = await run(connection_string=sqlite_url, no_handle_signals=True, task_list={"stuck": stuck})
    job = await runner.add_job("stuck")
    await begun.wait()
    runner._running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await runner.promise
    async with looking_at(sqlite_url) as store:
        left = await store.jobs.get(job.id)
    assert left is not None
    assert (left.state, left.attempts) == (State.QUEUED, 0), "it went back unspent"


async def test_signals_stop_the_runner_and_their_handlers_are_restored(sqlite_url: str) -> None:
    heard: list[str] = []
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    events = WorkerEvents()
    events.on("gracefulShutdown", lambda event: heard.append(event.signal))
    events.on("pool:gracefulShutdown", lambda event: heard.append(event.message))
    runner = await run(connection_string=sqlite_url, events=events, task_list={"x": nothing})
    assert signal.getsignal(signal.SIGTERM) != before[0]
    os.kill(os.getpid(), signal.SIGTERM)
    await runner.promise
    assert heard == ["SIGTERM", "worker shutdown due to SIGTERM"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_several_runners_receive_a_signal_and_the_last_one_restores_its_handler(sqlite_url: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    runners = [await run(connection_string=sqlite_url, task_list={"x": nothing}) for _ in range(3)]
    await runners[0].stop()
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(60):
        await asyncio.gather(*[runner.promise for runner in runners])
    assert signal.getsignal(signal.SIGTERM) == before


async def test_a_signal_handler_set_by_the_program_in_the_meantime_stays(sqlite_url: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    heard: list[int] = []
    try:
        async with await run(connection_string=sqlite_url, task_list={"x": nothing}):
            signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_closed_loop_keeps_no_signal_handler() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    heard: list[str] = []

    async def begin(name: str) -> Signals:
        signals = Signals(lambda number: heard.append(f"{name} {number}"))
        signals.install()
        return signals

    try:
        with asyncio.Runner() as abandoned:
            abandoned.run(begin("first"))
        with asyncio.Runner() as runner:
            second = runner.run(begin("second"))
            signal.raise_signal(signal.SIGTERM)
            second.restore()
            assert heard == ["second SIGTERM"]
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def test_no_handle_signals_leaves_signals_unchanged(sqlite_url: str) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with await run(connection_string=sqlite_url, no_handle_signals=True, task_list={"x": nothing}):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_a_worker_lives_in_an_asgi_lifespan(url: str) -> None:
    """A lifespan as frameworks run it: entered at the start, left at the shutdown, requests in between."""
    ran = asyncio.Event()
    runners: list[Runner] = []

    async def greet(payload: Any) -> None:
        ran.set()

    @asynccontextmanager
    async def lifespan(web: object) -> AsyncIterator[None]:
        async with await run(connection_string=url, no_handle_signals=True, task_list={"greet": greet}) as runner:
            runners.append(runner)
            yield

    async with lifespan(object()):
        await runners[0].add_job("greet")
        await ran.wait()
    await runners[0].wait()
    async with looking_at(url) as store:
        assert (await store.inspect.counts())[State.COMPLETED] == 1


async def test_an_error_of_an_embedded_runner_is_raised_by_the_block(sqlite_url: str) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)

    async def broken(request: object) -> Any:
        raise ZeroDivisionError

    async def embedding() -> None:
        async with await run(connection_string=sqlite_url, no_handle_signals=True, task_list={"x": nothing}) as runner:
            runner._plan.store.claim = broken  # type: ignore[method-assign]
            runner._worker.wake()
            await asyncio.wait([runner.promise])

    with pytest.raises(ZeroDivisionError):
        await embedding()


async def test_a_synchronous_task_gets_helpers_that_wait(url: str) -> None:
    added: list[Job] = []
    payloads: list[Any] = []

    def parent(payload: Any, helpers: BlockingHelpers) -> None:
        added.append(helpers.add_job("child", [1, 2], job_key="k", max_attempts=3))

    def child(payload: Any) -> None:
        payloads.append(payload)

    await run_migrations(connection_string=url)
    await quick_add_job({"connection_string": url}, "parent")
    await run_once(connection_string=url, task_list={"parent": parent, "child": child})
    assert [(job.key, job.max_attempts) for job in added] == [("k", 3)]
    assert payloads == [[1, 2]]


async def test_threads_of_synchronous_tasks_end_with_the_runner(sqlite_url: str) -> None:
    threads: list[threading.Thread] = []

    def task(payload: Any) -> None:
        threads.append(threading.current_thread())

    async with await run(connection_string=sqlite_url, no_handle_signals=True, task_list={"task": task}) as runner:
        complete = asyncio.Event()
        runner.events.on("job:complete", lambda event: complete.set())
        await runner.add_job("task")
        await complete.wait()
    await asyncio.to_thread(threads[0].join, 10)
    assert not threads[0].is_alive()


async def later() -> list[str]:
    return ["red"]


@pytest.mark.parametrize("flags", [["red"], lambda: ["red"], later])
async def test_flags_may_be_forbidden_by_a_list_a_function_or_an_async_one(sqlite_url: str, flags: Any) -> None:
    ran: list[int] = []

    async def task(payload: Any, helpers: Helpers) -> None:
        ran.append(helpers.job.id)

    async with await make_worker_utils(connection_string=sqlite_url) as utils:
        await utils.migrate()
        await utils.add_job("task", flags=["red"])
        await utils.add_job("task", flags=["green"])
    await run_once(connection_string=sqlite_url, task_list={"task": task}, forbidden_flags=flags)
    assert ran == [2]
    await run_once(connection_string=sqlite_url, task_list={"task": task}, forbidden_flags=None)
    assert ran == [2, 1]


async def test_a_task_of_a_list_gets_what_it_asks_for(sqlite_url: str) -> None:
    lines: list[str] = []

    @contextmanager
    def model() -> Iterator[str]:
        lines.append("opens")
        yield "model"
        lines.append("closes")

    def judge(payload: Any, helpers: BlockingHelpers, *, model: str = resource(model)) -> None:
        lines.append(f"{payload['text']} by {model}")

    async with await make_worker_utils(connection_string=sqlite_url) as utils:
        await utils.migrate()
        await utils.add_job("judge", {"text": "x"})
    await run_once(connection_string=sqlite_url, task_list={"judge": judge})
    assert lines == ["opens", "x by model", "closes"]


async def test_a_task_list_passes_the_payload_by_position(url: str) -> None:
    seen: list[object] = []

    async def positional_only(payload: dict[str, int], /) -> None:
        seen.append(payload["n"])

    async def both_positional_only(payload: dict[str, int], helpers: Helpers, /) -> None:
        seen.append((payload["n"], helpers.job.task))

    async def variadic(*args: Any) -> None:
        payload, helpers = args
        seen.append((payload["n"], helpers.job.task))

    def in_a_thread(payload: dict[str, int], *rest: Any, **options: Any) -> None:
        seen.append((payload["n"], [type(one) for one in rest], options))

    mock, plain_mock = AsyncMock(return_value=None), Mock(return_value=None)
    tasks: dict[str, Any] = {
        "positional_only": positional_only,
        "both_positional_only": both_positional_only,
        "variadic": variadic,
        "in_a_thread": in_a_thread,
        "mock": mock,
        "plain_mock": plain_mock,
    }
    options: dict[str, Any] = {"connection_string": url, "concurrency": 1, "task_list": tasks}
    await run_migrations(**options)
    async with await make_worker_utils(connection_string=url) as utils:
        await utils.add_jobs([{"identifier": name, "payload": {"n": n}} for n, name in enumerate(tasks)])
    await run_once(**options)
    assert seen == [0, (1, "both_positional_only"), (2, "variadic"), (3, [BlockingHelpers], {})]
    for one, number in ((mock, 4), (plain_mock, 5)):
        ((payload, helpers), named) = one.call_args
        assert (payload, helpers.job.payload, named) == ({"n": number}, {"n": number}, {})


async def test_a_task_that_takes_only_names_is_refused(sqlite_url: str) -> None:
    async def named(**arguments: int) -> None: ...

    with pytest.raises(ConfigurationError, match="name the parameters"):
        await run_once(connection_string=sqlite_url, task_list={"named": named})


async def test_a_job_has_the_attributes_of_the_originals(url: str) -> None:
    expected: dict[str, Any] = {
        "queue_name": "q", "task_identifier": "work", "payload": {"a": 1}, "priority": 0, "attempts": 1,
        "max_attempts": 25, "last_error": None, "key": "k", "revision": 0, "locked_by": "w", "flags": ("f",),
    }  # fmt: skip
    seen: list[Job] = []

    async def work(payload: dict[str, int], helpers: Helpers) -> None:
        seen.append(helpers.job)

    options: dict[str, Any] = {"connection_string": url, "name": "w", "task_list": {"work": work}}
    await run_migrations(**options)
    async with await make_worker_utils(connection_string=url) as utils:
        added = await utils.add_job("work", {"a": 1}, queue_name="q", job_key="k", flags=["f"])
        assert (added.task_identifier, added.queue_name) == ("work", "q")
        assert (added.locked_at, added.locked_by) == (None, None)
        await run_once(**options)
        done = await utils._store.jobs.get(added.id)
    (job,) = seen
    assert {name: getattr(job, name) for name in expected} == expected
    assert (job.id, job.run_at, job.created_at) == (added.id, added.run_at, added.created_at)
    assert job.locked_at is not None
    assert job.locked_at >= job.run_at
    assert done is not None
    assert (done.state, done.locked_at, done.locked_by) == (State.COMPLETED, None, None)


async def test_a_running_job_is_cancelled_long_before_the_next_heartbeat(url: str) -> None:
    begun, heard = asyncio.Event(), asyncio.Event()

    async def work(payload: Any, helpers: Helpers) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            heard.set()

    options: dict[str, Any] = {"no_handle_signals": True, "task_list": {"work": work}}
    async with await run(connection_string=url, lease=3600.0, **options) as runner:
        job = await runner.add_job("work")
        await asyncio.wait_for(begun.wait(), 30)
        async with await make_worker_utils(connection_string=url) as utils:
            answer = await utils._store.admin.cancel(job.id)
        assert (answer.result, answer.reason) == (ActionResult.ASKED, "it is running; its worker will stop it")
        await asyncio.wait_for(heard.wait(), 30)
