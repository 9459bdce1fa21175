"""Traces where something is amiss: a context that is none, a child that died, a tracer that raises, or none at all."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import StatusCode

from stowhand.app.app import App
from stowhand.events import Events, JobsReturned, WorkerStopped
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import ChildCrashed, ChildUnable
from stowhand.protocols.store import Claim
from stowhand.remote import HttpStore
from stowhand.service import process
from stowhand.testing import MemoryStore
from stowhand.worker.hooks import enclosed
from tests.conftest import Run
from tests.support.memory_rows import rows_of
from tests.support.spans import Spans, facts_of, links_of, work


@pytest.mark.parametrize(
    "context",
    [
        "",
        "zz",
        "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
        "ff-" + "a" * 32 + "-" + "b" * 16 + "-01",
        "00-" + "g" * 32 + "-" + "b" * 16 + "-01",
        "00-é-\N{PILE OF POO}",
    ],
)
def test_an_invalid_context_fails_no_job_and_its_span_has_no_link(run: Run, spans: Spans, context: str) -> None:
    store = MemoryStore()
    app = App(store=store, traces=spans.traces(parent=True))

    @app.task
    async def send() -> None: ...

    async def go() -> None:
        await store.jobs.enqueue(NewJob(task="send", flags=(f"traceparent={context}", "correlation_id=")))
        await work(app)
        assert (await store.inspect.counts())[State.COMPLETED] == 1

    run(go())
    ran = spans.one("run send")
    assert (ran.parent, links_of(ran)) == (None, [])


def test_an_attempt_whose_child_died_is_lost(run: Run, spans: Spans) -> None:
    events = spans.traces().of(Events())
    claim = Claim(Lease(7, "token", 3), None, "killer", 3, 25)

    async def child(attempt: Attempt[Any]) -> object:
        raise ChildCrashed("the child process ended with -9 and no answer")

    with pytest.raises(ChildCrashed):
        run(enclosed(child, events, "w")(Attempt(claim, 0.0)))
    ran = spans.one("run killer")
    assert (facts_of(ran)["stowhand.outcome"], ran.status.status_code) == ("lost", StatusCode.ERROR)


def test_an_attempt_whose_child_could_not_start_is_returned(run: Run, spans: Spans) -> None:
    events = spans.traces().of(Events())
    claim = Claim(Lease(7, "token", 3), None, "suspect", 3, 25)

    async def child(attempt: Attempt[Any]) -> object:
        raise ChildUnable("no store")

    with pytest.raises(ChildUnable):
        run(enclosed(child, events, "w")(Attempt(claim, 0.0)))
    events.emit(JobsReturned("w", (7,), "its child process could not start"))
    ran = spans.one("run suspect")
    assert (facts_of(ran)["stowhand.outcome"], ran.status.status_code) == ("returned", StatusCode.UNSET)


def test_a_span_without_a_reported_outcome_ends_with_its_worker(run: Run, spans: Spans) -> None:
    events = spans.traces().of(Events())

    async def handle(attempt: Attempt[Any], record: object) -> None: ...

    async def attempt(number: int) -> None:
        claim = Claim(Lease(7, "token", number), None, "t", number, 25)
        await enclosed(handle, events, "w")(Attempt(claim, 0.0), None)

    run(attempt(1))
    run(attempt(2))
    assert facts_of(spans.one("run t"))["stowhand.attempt"] == 1, "the second one says that the first is over"
    events.emit(WorkerStopped("another", 0))
    assert len(spans.named("run t")) == 1
    events.emit(WorkerStopped("w", 0))
    assert [facts_of(span)["stowhand.outcome"] for span in spans.named("run t")] == ["unknown", "unknown"]


def test_an_error_of_opentelemetry_does_not_fail_a_job(
    run: Run, spans: Spans, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            if span.name.startswith("run"):
                raise ZeroDivisionError

    spans.provider.add_span_processor(Broken())

    @app.task
    async def send() -> None: ...

    run(work(app, send.new_job()))
    assert sum(row.state is State.COMPLETED for row in app_rows(app)) == 1
    assert sum("Tracing failed" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("broken", ["on_start", "on_end"])
def test_an_error_of_opentelemetry_does_not_fail_an_enqueue(run: Run, spans: Spans, app: App, broken: str) -> None:
    class Broken(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            self._raise("on_start")

        def on_end(self, span: Any) -> None:
            self._raise("on_end")

        def _raise(self, where: str) -> None:
            if where == broken:
                raise ArithmeticError

    spans.provider.add_span_processor(Broken())

    @app.task
    async def send() -> None: ...

    app.cron("* * * * *", "send", identifier="tick")

    async def go() -> None:
        assert (await send.enqueue()).id == 1, "whoever is told that it failed enqueues it again"
        assert await app.enqueue_many([send.new_job()]) == [2]
        assert [job.id for job in await app.add_jobs([send.new_job()])] == [3]
        await app.worker(once=True).run()

    async def within() -> None:
        async with app:
            await go()

    run(within())
    assert sum(row.state is State.COMPLETED for row in app_rows(app)) == 4


def test_an_error_at_the_end_of_a_span_is_logged_once(
    run: Run, spans: Spans, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SpanProcessor):
        def on_end(self, span: Any) -> None:
            raise BufferError

    @app.task
    async def send() -> None: ...

    jobs = [send.new_job() for _ in range(3)]
    spans.provider.add_span_processor(Broken())
    run(work(app, *jobs))
    messages = [record.message for record in caplog.records if "BufferError" in record.message]
    assert (len(messages), "Tracing failed" in messages[0]) == (1, True), messages


def test_listeners_of_a_traced_store_are_notified(spans: Spans) -> None:
    store = MemoryStore()
    messages: list[str] = []
    spans.traces().store(store).notices.on_listening(lambda state, error, connection: messages.append(state))
    store.notices.listening("success", None, None)
    assert messages == ["success"]


def test_a_traced_store_encloses_attempts_like_its_store(spans: Spans) -> None:
    traces, inner = spans.traces(), HttpStore("http://127.0.0.1:1")
    lent, own = traces.store(inner), traces.store(MemoryStore())
    assert lent.enclosing is inner
    assert own.enclosing is None
    assert traces.store(lent) is lent


def test_spans_of_running_attempts_are_exported_at_exit(run: Run, spans: Spans) -> None:
    traces = spans.traces()
    events = traces.of(Events())

    async def handle(attempt: Attempt[Any], record: object) -> None:
        traces.leave()
        assert facts_of(spans.one("run t"))["stowhand.outcome"] == "unknown"

    claim = Claim(Lease(7, "token", 1), None, "t", 1, 25)
    run(enclosed(handle, events, "w")(Attempt(claim, 0.0), None))
    traces.leave()
    assert len(spans.named("run t")) == 1


def test_a_hanging_exporter_does_not_block_the_exit(
    spans: Spans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Hanging(SpanProcessor):
        def force_flush(self, timeout_millis: int = 30000) -> bool:
            return released.wait(60)

    released, left = threading.Event(), list[int]()
    monkeypatch.setattr(process, "EXIT_CALLBACKS", [])
    monkeypatch.setattr(process, "_ACTIVE_TRACES", [])
    monkeypatch.setattr(process, "hard_exit", left.append)
    process.export_spans_at_exit(spans.traces())
    assert (process.export_last_spans(7), left) == (7, [])
    spans.provider.add_span_processor(Hanging())
    monkeypatch.setattr(process, "SPAN_EXPORT_SECONDS", 0.01)
    process.export_last_spans(7)
    released.set()
    assert left == [7]
    assert "The last spans were not exported" in caplog.text


def app_rows(app: App) -> Any:
    store: Any = app.any_store()
    return rows_of(store)


PROGRAM = """
import asyncio, sys
from stowhand import App
from stowhand.testing import MemoryStore

app = App(store=MemoryStore())

@app.task
async def send() -> None: ...

async def go():
    async with app:
        await send.enqueue()
        await app.worker(once=True).run()

asyncio.run(go())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""

WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from stowhand.observe.traces import Traces

try:
    Traces()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (PROGRAM, "[]"),
        (WITHOUT, "ConfigurationError: traces need opentelemetry-api: pip install 'stowhand[otel]'"),
    ],
    ids=["unless it is wanted nothing is imported", "where it is not installed the extra is named"],
)
def test_opentelemetry_is_optional(script: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said
