"""Traces where something is amiss: a context that is none, a child that died, a tracer that raises, or none at all."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import StatusCode

from stowhand.events import Events, WorkerStopped
from stowhand.handler import Attempt
from stowhand.hooks import enclosed
from stowhand.job import NewJob, State
from stowhand.lane import ChildCrashed
from stowhand.service.app import App
from stowhand.store import Claim, Lease
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.support.spans import Spans, facts_of, links_of


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def app(spans: Spans) -> App:
    return App(store=MemoryStore(), traces=spans.traces())


async def work(app: App, *jobs: NewJob) -> None:
    async with app:
        for job in jobs:
            await app.enqueue(job)
        await app.worker(once=True).run()


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
def test_a_context_that_is_none_fails_no_job_and_its_span_stands_alone(run: Run, spans: Spans, context: str) -> None:
    store = MemoryStore()
    app = App(store=store, traces=spans.traces(parent=True))

    @app.task
    async def send() -> None: ...

    async def go() -> None:
        await store.enqueue(NewJob(task="send", flags=(f"traceparent={context}", "correlation_id=")))
        await work(app)
        assert (await store.counts())[State.COMPLETED] == 1

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


def test_what_is_never_heard_of_again_ends_with_its_worker(run: Run, spans: Spans) -> None:
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


def test_a_part_of_opentelemetry_that_raises_is_no_jobs_trouble(
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


def app_rows(app: App) -> Any:
    return app._given.rows()  # type: ignore[union-attr]


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
