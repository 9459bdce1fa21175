"""Spans of what is enqueued and run, on a store in memory; the stores themselves: tests/contract/test_context.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from stowhand.app.app import App
from stowhand.errors import StoreUnreachable
from stowhand.events import Events, JobEnded
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lifecycle import Fail, Outcome
from stowhand.observe.propagation import (
    bound_correlation_id,
    current_correlation_id,
    read_carried,
    with_carried,
    without_carried,
)
from stowhand.observe.traces import Traces
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.retry import constant
from stowhand.stores.sqlite.queue.producer import Producer
from stowhand.tasks.context import Context
from stowhand.tasks.executable import define_executable
from stowhand.testing import MemoryStore
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.support.memory_rows import rows_of
from tests.support.spans import Spans, facts_of, ids_of, links_of, traceparent_of, work


def test_an_attempt_is_its_own_trace_linked_to_the_enqueue_span(run: Run, spans: Spans, app: App) -> None:
    @app.task(serial="mail")
    async def send(to: str) -> None: ...

    async def go() -> None:
        async with app:
            with spans.tracer.start_as_current_span("request"):
                await send.enqueue("x")
                await app.worker(once=True, name="w").run()

    run(go())
    enqueued, ran = spans.one("enqueue send"), spans.one("run send")
    assert enqueued.parent is not None
    assert enqueued.parent.span_id == ids_of(spans.one("request"))[1]
    assert links_of(ran) == [ids_of(enqueued)]
    assert ran.parent is None, "whatever span the worker itself runs in"
    assert ids_of(ran)[0] != ids_of(enqueued)[0]
    assert (enqueued.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    message = {"messaging.system": "stowhand", "messaging.destination.name": "mail", "messaging.message.id": "1"}
    sent = {"messaging.operation.name": "enqueue", "messaging.operation.type": "send", "stowhand.task": "send"}
    done = {"messaging.operation.name": "run", "messaging.operation.type": "process", "stowhand.task": "send"}
    assert facts_of(enqueued) == message | sent
    report = {"stowhand.attempt": 1, "stowhand.outcome": "ok", "stowhand.worker": "w"}
    assert facts_of(ran) == message | done | report
    assert ran.status.status_code is StatusCode.UNSET


def test_with_parent_an_attempt_is_a_child_of_the_enqueue_span(run: Run, spans: Spans) -> None:
    app = App(store=MemoryStore(), traces=spans.traces(parent=True))

    @app.task
    async def send() -> None: ...

    run(work(app, send.new_job()))
    ran, enqueued = spans.one("run send"), spans.one("enqueue send")
    assert ran.parent is not None
    assert (ran.parent.trace_id, ran.parent.span_id) == ids_of(enqueued) == links_of(ran)[0]


def test_each_attempt_is_a_span_with_its_error_without_passwords(run: Run, spans: Spans, app: App) -> None:
    @app.task(max_attempts=2, backoff=constant(0.0))
    async def fetch() -> None:
        raise KeyError("postgresql://me:secret@host/db\x00")

    run(work(app, fetch.new_job()))
    first, second = spans.named("run fetch")
    assert links_of(first) == links_of(second) == [ids_of(spans.one("enqueue fetch"))]
    assert [facts_of(span)["stowhand.outcome"] for span in (first, second)] == ["retry", "failed"]
    assert [facts_of(span)["stowhand.attempt"] for span in (first, second)] == [1, 2]
    for span in (first, second):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description is not None
        assert span.status.description.startswith("KeyError: ")
        assert facts_of(span)["error.type"] == "KeyError"
        (event,) = span.events
        assert event.name == "exception"
        message = dict(event.attributes or {})
        assert message["exception.type"] == "KeyError"
        assert "in fetch" in str(message["exception.stacktrace"])
        assert "secret" not in f"{message}{span.status.description}"
        assert "\x00" not in f"{message}"


@pytest.mark.parametrize("raises", [False, True])
def test_a_failure_that_is_an_outcome_is_an_error_without_an_exception(
    run: Run, spans: Spans, app: App, raises: bool
) -> None:
    @app.task
    async def send() -> Outcome:
        if raises:
            raise Fail("no such address", poison=True)
        return Fail("no such address", poison=True)

    run(work(app, send.new_job()))
    ran = spans.one("run send")
    assert (ran.status.status_code, ran.status.description) == (StatusCode.ERROR, "no such address")
    assert (facts_of(ran)["stowhand.outcome"], facts_of(ran)["error.type"]) == ("poison", "poison")
    assert not ran.events


def test_an_outcome_raised_by_a_plain_handler_is_in_its_span(run: Run, spans: Spans) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        raise Fail("no such address")

    store = MemoryStore()
    worker = Worker(store, handle, WorkerOptions(once=True), events=spans.traces().of(Events()))

    async def go() -> None:
        await store.jobs.enqueue(NewJob(task="send"))
        await worker.run()

    run(go())
    ran = spans.one("run send")
    assert (facts_of(ran)["stowhand.outcome"], facts_of(ran)["error.type"], ran.events) == ("failed", "failed", ())


def test_jobs_that_a_handler_enqueues_are_in_its_span_and_jobs_after_it_are_linked(
    run: Run, spans: Spans, app: App
) -> None:
    seen: list[str | None] = []

    @app.task
    async def first(context: Context) -> None:
        await second.enqueue()
        context.enqueue_after(second.new_job())

    @app.task
    def second() -> None:  # in a thread: its context is the attempt's too
        seen.append(current_correlation_id())
        spans.tracer.start_span("inner").end()

    with bound_correlation_id("order 7"):
        run(work(app, first.new_job()))
    ran, enqueued = spans.one("run first"), spans.one("enqueue second")
    assert enqueued.parent is not None
    assert (enqueued.parent.trace_id, enqueued.parent.span_id) == ids_of(ran)
    followers = spans.named("run second")
    assert sorted(links_of(span)[0] for span in followers) == sorted([ids_of(enqueued), ids_of(ran)])
    parents = {inner.parent.span_id for inner in spans.named("inner") if inner.parent is not None}
    assert parents == {ids_of(span)[1] for span in followers}
    assert seen == ["order 7", "order 7"]
    assert facts_of(followers[0])["messaging.message.conversation_id"] == "order 7"


def test_a_job_of_a_tick_is_linked_to_it(run: Run, spans: Spans, app: App) -> None:
    @app.task
    async def rollup() -> None: ...

    app.cron("* * * * *", rollup)
    run(work(app))
    tick, ran = spans.one("enqueue rollup"), spans.one("run rollup")
    assert links_of(ran) == [ids_of(tick)]
    assert facts_of(tick)["stowhand.cron.identifier"] == "rollup"
    assert facts_of(tick)["messaging.message.id"] == facts_of(ran)["messaging.message.id"]


def test_a_context_set_in_sql_is_used(run: Run, spans: Spans, app: App) -> None:
    @app.task
    async def send() -> None: ...

    value = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    run(work(app, NewJob(task="send", flags=(f"traceparent={value}",))))
    assert links_of(spans.one("run send")) == [(int("a" * 32, 16), int("b" * 16, 16))]


def test_with_the_no_op_provider_jobs_carry_nothing_and_outer_spans_stay_visible(run: Run, spans: Spans) -> None:
    app = App(store=MemoryStore(), traces=Traces(NoOpTracerProvider()))
    seen: list[tuple[str, ...]] = []

    @app.task
    async def send(context: Context) -> None:
        seen.append(context.job.flags)
        spans.tracer.start_span("inner").end()

    async def go() -> None:
        async with app:
            await send.enqueue()
            with spans.tracer.start_as_current_span("outer"):
                await app.worker(once=True).run()

    run(go())
    assert seen == [()]
    inner = spans.one("inner").parent
    assert inner is not None
    assert inner.span_id == ids_of(spans.one("outer"))[1]


def test_a_program_receives_the_span_of_its_attempt(run: Run, spans: Spans, tmp_path: Path) -> None:
    program = tmp_path / "show"
    program.write_text(f'#!/bin/sh\nprintenv TRACEPARENT > "{tmp_path}/said"\n')
    program.chmod(0o755)
    app = App(store=MemoryStore(), traces=spans.traces())
    app.registry.add(define_executable(program, "show"))
    run(work(app, NewJob(task="show")))
    assert (tmp_path / "said").read_text().strip() == traceparent_of(spans.one("run show"))


def test_the_span_of_a_returned_job_has_that_outcome(run: Run, spans: Spans, app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def linger() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def go() -> None:
        async with app:
            await linger.enqueue()
            worker = app.worker()
            running = asyncio.create_task(worker.run())
            await begun.wait()
            worker.stop(now=True)
            await running

    run(go())
    ran = spans.one("run linger")
    assert facts_of(ran)["stowhand.outcome"] == "returned"
    assert ran.status.status_code is StatusCode.UNSET
    assert not ran.events


def test_a_refused_enqueue_is_an_error_of_its_span(run: Run, spans: Spans) -> None:
    class Unreachable(Producer):
        async def enqueue(self, job: NewJob) -> Job:
            raise StoreUnreachable("no answer from postgresql://me:secret@host")

    store = MemoryStore()
    store.jobs = Unreachable(store._connections, store._options)
    app = App(store=store, traces=spans.traces())

    async def go() -> None:
        async with app:
            with pytest.raises(StoreUnreachable):
                await app.add_job("send")

    run(go())
    span = spans.one("enqueue send")
    assert span.status.status_code is StatusCode.ERROR
    assert facts_of(span)["error.type"] == "stowhand.errors.StoreUnreachable"
    assert "secret" not in f"{span.status.description}{span.events[0].attributes}"


def test_a_worker_of_any_handler_is_traced_by_its_events(run: Run, spans: Spans) -> None:
    store = MemoryStore()

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        ctx.then.append(NewJob(task="next"))

    async def go() -> None:
        await store.jobs.enqueue(NewJob(task="t"))
        events, traces = Events(), spans.traces()
        assert traces.of(traces.of(events)) is events
        assert len(events._listeners[JobEnded]) == 1
        await Worker(store, handle, WorkerOptions(once=True, tasks=("t",)), events=events).run()

    run(go())
    assert facts_of(spans.one("run t"))["stowhand.outcome"] == "ok"
    (follower,) = [row for row in rows_of(store) if row.task == "next"]
    assert read_carried(follower.flags) == {"traceparent": traceparent_of(spans.one("run t"))}


def test_values_that_do_not_fit_into_the_flags_are_left_out() -> None:
    many = tuple(f"f{number}" for number in range(63))
    carried: dict[str, str | None] = {"traceparent": "00-a", "correlation_id": "c"}
    assert with_carried(NewJob(task="t", flags=many), carried).flags == (*many, "traceparent=00-a")
    assert with_carried(NewJob(task="t"), {"correlation_id": "x" * 200, "traceparent": None}).flags == ()
    assert with_carried(NewJob(task="t"), {"correlation_id": "a\nb"}).flags == ()
    assert with_carried(NewJob(task="t", flags=("traceparent=mine",)), carried).flags == (
        "traceparent=mine",
        "correlation_id=c",
    )
    assert without_carried(("a", "traceparent=x", "correlation_id=y", "b")) == ("a", "b")
