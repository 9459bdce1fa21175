"""From a claimed job to a call: arguments, results, threads, and payloads that cannot be read."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from stowhand.app.app import App, task_handler
from stowhand.errors import ConfigurationError, InvalidJob, PayloadMismatch, UndecodablePayload
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Complete, Fail, Retry
from stowhand.jobs.outcomes import from_error
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.handler import Handler
from stowhand.protocols.store import Claim
from stowhand.retry import constant, natural
from stowhand.tasks.context import BlockingHelpers, Context, Helpers
from stowhand.tasks.dispatch import TaskHandler
from stowhand.tasks.registry import Registry, define
from stowhand.testing import MemoryStore
from stowhand.worker.policy import Policy
from tests.conftest import Run

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Lines:
    """A logger that keeps what it is told."""

    said: list[tuple[str, object, dict[str, Any]]] = field(default_factory=list)

    def debug(self, message: object, /, **facts: Any) -> None:
        self.said.append(("debug", message, facts))

    def info(self, message: object, /, **facts: Any) -> None:
        self.said.append(("info", message, facts))

    def warning(self, message: object, /, **facts: Any) -> None:
        self.said.append(("warning", message, facts))

    def error(self, message: object, /, **facts: Any) -> None:
        self.said.append(("error", message, facts))


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def app(store: MemoryStore, lines: Lines) -> App:
    return App(store=store, logger_factory=lambda job: lines)


async def ran(handler: Handler, attempt: Attempt[Job]) -> object:
    """What the handler gives for this attempt."""
    return await handler.handle(attempt, attempt.record)


def attempt_of(task: str, payload: str = "{}", attempts: int = 1) -> Attempt[Job]:
    job = Job(
        id=1, task=task, payload_text=payload, state=State.PROCESSING, serial=None, priority=0, run_at=NOON,
        attempts=attempts, max_attempts=25, created_at=NOON,
    )  # fmt: skip
    return Attempt(Claim(Lease(1, "token", 1), job, task, attempts, 25), started=0.0)


def call(app: App, task: str, payload: str = "{}") -> object:
    handler = task_handler(app)
    try:
        return asyncio.run(ran(handler, attempt_of(task, payload)))
    finally:
        handler.close()


@dataclass
class Point:
    x: int
    y: int = 0


class Shape(TypedDict):
    name: str


class Size(msgspec.Struct):
    width: float


class Person(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0)


def test_arguments_arrive_as_the_types_that_were_declared(app: App) -> None:
    @app.task
    async def draw(point: Point, shape: Shape, size: Size, person: Person, at: datetime, tags: set[str]) -> object:
        return point, shape, size, person, at, tags

    payload = (
        '{"point":{"x":1},"shape":{"name":"o"},"size":{"width":2},"person":{"age":3},'
        '"at":"2026-01-01T12:00:00Z","tags":["a","a"]}'
    )
    assert call(app, "draw", payload) == (Point(1), {"name": "o"}, Size(2.0), Person(age=3), NOON, {"a"})


@pytest.mark.parametrize("kind", [Point, Person, Any, dict, Shape])
def test_a_parameter_named_payload_takes_it_whole(app: App, kind: Any) -> None:
    async def whole(payload: Any) -> Any:
        return payload

    whole.__annotations__["payload"] = kind
    app.task(whole)
    text = {Point: '{"x":1,"y":2}', Person: '{"age":3}', Shape: '{"name":"o"}'}.get(kind, '{"any":1}')
    got = call(app, "whole", text)
    assert got == msgspec.json.decode(text) or isinstance(got, Point | Person)


def test_defaults_apply_when_the_job_runs_and_keyword_only_parameters_work(app: App) -> None:
    fresh = [1]

    @app.task
    async def work(a: int, b: list[int] = fresh, *, c: str = "c", d: str) -> object:
        return a, b, c, d

    assert call(app, "work", '{"d":"d","a":1}') == (1, fresh, "c", "d")


def test_a_synchronous_task_runs_in_a_thread_with_the_context_variables_of_its_attempt(app: App) -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    @app.task
    def where() -> tuple[str, str]:
        return threading.current_thread().name, variable.get()

    async def under_a_variable() -> object:
        variable.set("set")
        handler = task_handler(app)
        try:
            return await ran(handler, attempt_of("where"))
        finally:
            handler.close()

    assert asyncio.run(under_a_variable()) == ("stowhand task", "set")


def test_around_thread_wraps_each_threaded_attempt_only(store: MemoryStore, lines: Lines) -> None:
    messages: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        messages.append(f"before, in {threading.current_thread().name}")
        try:
            yield
        finally:
            messages.append("after")

    app = App(store=store, logger_factory=lambda job: lines, around_thread=around)

    @app.task
    def fails() -> None:
        messages.append("at work")
        raise ValueError("the connection is gone")

    app.task(name="on_loop", executor="loop")(lambda: messages.append("on the loop"))
    with pytest.raises(ValueError, match="gone"):
        call(app, "fails")
    assert messages == ["before, in stowhand task", "at work", "after"]
    call(app, "on_loop")
    assert messages[3:] == ["on the loop"]


def test_a_synchronous_task_that_never_waits_may_run_on_the_loop(app: App) -> None:
    @app.task(executor="loop")
    def where() -> str:
        return threading.current_thread().name

    assert call(app, "where") == threading.main_thread().name


def test_a_plain_wrapper_around_an_async_function_is_awaited(app: App) -> None:
    async def inner(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    @app.task
    def outer(number: int) -> Awaitable[int]:
        return inner(number)

    assert call(app, "outer", '{"number":1}') == 2


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ValueError("no"), ValueError), (SystemExit(3), SystemExit), (StopIteration(1), RuntimeError)],
)
def test_what_a_thread_raises_is_raised_by_the_handler(app: App, error: BaseException, raised: type[Exception]) -> None:
    @app.task
    def fail() -> None:
        raise error

    with pytest.raises(raised):
        call(app, "fail")


def test_threads_are_used_again_and_end_with_the_handler(app: App, run: Run) -> None:
    @app.task
    def where() -> int:
        return threading.get_ident()

    before = {thread for thread in threading.enumerate() if thread.name == "stowhand task"}

    async def twice() -> set[object]:
        handler = task_handler(app)
        result = {await ran(handler, attempt_of("where")) for _ in range(10)}
        handler.close()
        return result

    assert len(run(twice())) == 1
    assert {thread for thread in threading.enumerate() if thread.name == "stowhand task"} <= before


def test_a_thread_that_outlives_its_attempt_is_abandoned(app: App, run: Run) -> None:
    release, started = threading.Event(), threading.Event()

    @app.task
    def hang(wait: bool) -> str:
        if wait:
            started.set()
            release.wait(30)
        return "done"

    async def scenario() -> None:
        handler = task_handler(app)
        attempt = attempt_of("hang", '{"wait":true}')
        running = asyncio.ensure_future(ran(handler, attempt))
        await asyncio.to_thread(started.wait, 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert control_of(attempt).abandoned_thread is not None
        assert await ran(handler, attempt_of("hang", '{"wait":false}')) == "done"
        handler.close()

    try:
        run(scenario())
    finally:
        release.set()


def test_a_job_of_a_task_that_this_worker_lacks_is_tried_again_elsewhere(app: App) -> None:
    app.task(name="send_mail")(lambda: None)
    assert call(app, "send_mial") == Retry(
        "unsupported task 'send_mial': this worker has no such task; did you mean 'send_mail'? Available: send_mail"
    )


@pytest.mark.parametrize(
    ("payload", "complaint", "kind"),
    [
        ('{"x":1e5000}', "a number with exponent 5000, the limit is 308 in either direction", UndecodablePayload),
        ('{"x":1', "Input data was truncated", UndecodablePayload),
        ("[" * 3000, "nested deeper than the limit of 64", UndecodablePayload),
        ('{"x":"\\u0000"}', "a string contains NUL", UndecodablePayload),
        ('{"x":"1"}', "argument 'x': Expected 'int', got 'str'", PayloadMismatch),
        ("{}", "missing argument 'x'", PayloadMismatch),
        ('{"x":1,"z":2}', "unexpected argument 'z'; it takes: x, y", PayloadMismatch),
        ('{"x":1,"z":2,"_cron":{}}', "unexpected argument 'z'; it takes: x, y", PayloadMismatch),
        ("[1]", "Expected 'object', got 'array'", PayloadMismatch),
        ("null", "Expected 'object', got 'null'", PayloadMismatch),
    ],
)
def test_a_payload_that_does_not_fit_fails_with_a_readable_reason(
    app: App, payload: str, complaint: str, kind: type[Exception]
) -> None:
    ran: list[int] = []

    @app.task
    async def plot(x: int, y: int = 0) -> None:
        ran.append(x)

    with pytest.raises(kind) as caught:
        call(app, "plot", payload)
    assert str(caught.value).startswith(f"payload of task 'plot': {complaint}")
    assert not ran


def test_arguments_that_another_version_may_take_are_tried_again_unless_the_task_calls_them_poison(app: App) -> None:
    app.task(name="patient")(lambda x: None)
    app.task(name="strict", mismatch="poison")(lambda x: None)
    with pytest.raises(PayloadMismatch) as caught:
        call(app, "patient", '{"x":1,"new":2}')
    assert from_error(caught.value) == Retry(
        "payload of task 'patient': unexpected argument 'new'; it takes: x",
        error_class="stowhand.errors.PayloadMismatch",
    )
    with pytest.raises(UndecodablePayload) as refused:
        call(app, "strict", '{"x":1,"new":2}')
    assert from_error(refused.value) == Fail(
        "payload of task 'strict': unexpected argument 'new'; it takes: x",
        poison=True,
        error_class="stowhand.errors.UndecodablePayload",
    )
    with pytest.raises(ConfigurationError, match="available: poison, retry"):
        app.task(name="wrong", mismatch="ignore")(lambda x: None)  # type: ignore[call-overload]


def test_a_task_without_parameters_refuses_arguments_and_ignores_what_the_scheduler_adds(app: App) -> None:
    app.task(name="tick")(lambda: "ran")
    assert call(app, "tick") == "ran"
    assert call(app, "tick", '{ "_cron": {"ts": "2026-01-01T00:00:00Z"} }') == "ran"
    with pytest.raises(PayloadMismatch, match="unexpected argument 'a'; it takes no arguments"):
        call(app, "tick", '{"a":1}')


def test_a_declared_parameter_may_begin_with_an_underscore(app: App) -> None:
    @app.task
    async def report(_cron: dict[str, str], day: str = "") -> object:
        return _cron, day

    assert call(app, "report", '{"_cron":{"ts":"t"},"day":"d","_other":1}') == ({"ts": "t"}, "d")


def test_a_context_has_the_attempt_and_collects_jobs_to_enqueue(app: App, lines: Lines) -> None:
    @app.task
    async def send(to: str) -> None: ...

    @app.task
    def work(number: int, context: Context) -> object:
        context.log("half way", done=50)
        context.enqueue_after(send.new_job("next"))
        with pytest.raises(InvalidJob, match="serial: 129 characters"):
            context.enqueue_after(NewJob(task="x", serial="q" * 129))
        return number, context.attempt, context.max_attempts, context.lease, context.job.id, context.canceled

    attempt = attempt_of("work", '{"number":7}', attempts=3)

    async def scenario() -> object:
        handler = task_handler(app)
        try:
            return await ran(handler, attempt)
        finally:
            handler.close()

    assert asyncio.run(scenario()) == (7, 3, 25, Lease(1, "token", 1), 1, False)
    assert attempt.then == [send.new_job("next")]
    assert lines.said == [("info", "half way", {"done": 50})]


def test_a_context_reports_a_cancellation(app: App, run: Run) -> None:
    @app.task
    async def patient(context: Context) -> object:
        return await context.until_canceled(), context.canceled

    async def scenario() -> object:
        attempt = attempt_of("patient")
        running = asyncio.ensure_future(ran(task_handler(app), attempt))
        await asyncio.sleep(0)
        attempt.cancel("timeout")
        return await running

    assert run(scenario()) == ("timeout", True)


def folder_handler(store: MemoryStore, lines: Lines, name: str, function: Callable[..., Any]) -> TaskHandler:
    registry = Registry()
    registry.add(define(function, name, {}, positional=True))
    return TaskHandler(registry, enqueue=store.jobs.enqueue, logger_factory=lambda job: lines)


def test_a_folder_task_takes_any_payload_and_helpers(store: MemoryStore, lines: Lines, run: Run) -> None:
    async def asynchronous(data: Any, helpers: Helpers) -> object:
        helpers.logger.info("hi")
        return data, helpers.job.id, (await helpers.add_job("other", {"a": 1}, key="k")).key

    def synchronous(data: Any, tools: BlockingHelpers) -> object:
        return data, tools.job.id, tools.add_job("other", {"a": 1}, key="k").key

    async def scenario() -> None:
        for function in (asynchronous, synchronous):
            handler = folder_handler(store, lines, "hello", function)
            for payload, value in (("{}", {}), ("[1]", [1]), ("null", None), ('"x"', "x")):
                assert await ran(handler, attempt_of("hello", payload)) == (value, 1, "k")
            handler.close()

    run(scenario())
    assert lines.said[0] == ("info", "hi", {})


def test_a_folder_task_may_leave_out_helpers_or_everything(store: MemoryStore, lines: Lines, run: Run) -> None:
    async def scenario() -> None:
        alone = folder_handler(store, lines, "hello", lambda payload: payload)
        assert await ran(alone, attempt_of("hello", '{"a":1}')) == {"a": 1}
        alone.close()

    run(scenario())


def test_a_helpers_job_is_checked_before_it_is_written(store: MemoryStore, lines: Lines, run: Run) -> None:
    async def scenario() -> None:
        handler = folder_handler(store, lines, "hello", lambda payload, helpers: helpers.add_job("x", "\x00"))
        with pytest.raises(InvalidJob, match="NUL"):
            await ran(handler, attempt_of("hello"))
        handler.close()
        assert sum((await store.inspect.counts()).values()) == 0

    run(scenario())


def test_a_policy_is_the_tasks_and_otherwise_the_workers(app: App) -> None:
    slow = constant(9.0)
    app.task(name="own", timeout=3, backoff=slow)(lambda: None)
    app.task(name="none")(lambda: None)
    handler = task_handler(app, Policy(timeout=60.0, backoff=natural))
    assert handler.policy(attempt_of("own").claim) == Policy(timeout=3.0, backoff=slow)
    assert handler.policy(attempt_of("none").claim) == Policy(timeout=60.0, backoff=natural)
    assert handler.policy(attempt_of("unknown").claim).timeout == 60.0


def test_a_result_is_kept_as_strict_json_or_refused(app: App) -> None:
    handler = task_handler(app)
    assert handler.encode(None) is None
    assert handler.encode({"a": Point(1)}) == '{"a":{"x":1,"y":0}}'
    for bad in (object(), float("nan"), "\ud800"):
        with pytest.raises(ValueError, match="result: "):
            handler.encode(bad)


def test_outcomes_pass_through(app: App) -> None:
    app.task(name="done")(lambda: Complete({"a": 1}))
    assert call(app, "done") == Complete({"a": 1})


def test_pydantic_is_not_imported_for_those_who_do_not_use_it() -> None:
    code = (
        "import sys; from stowhand import App; app = App('sqlite:///x.db');"
        "app.task(name='s')(lambda a, b=1: a).new_job({'a': [1]}); sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
