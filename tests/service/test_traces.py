"""Traces across real processes on both stores: one process enqueues, and another works."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stowhand.app.app import App
from stowhand.jobs.job import NewJob, State
from stowhand.observe.propagation import bound_correlation_id
from stowhand.protocols.queue_store import QueueStore
from tests.conftest import Run
from tests.service.processes import Workers, make_suspect, with_store
from tests.support.spans import Spans, ids_of

TASKS = ("--app", "tests.service.traced_work:app")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "spans"
    monkeypatch.setenv("STOWHAND_TEST_SPANS", str(file))
    return file


@pytest.fixture
def spans() -> Spans:
    return Spans()


def spans_in(file: Path) -> dict[str, list[dict[str, Any]]]:
    result: dict[str, list[dict[str, Any]]] = {}
    for line in file.read_text().splitlines():
        span = json.loads(line)
        result.setdefault(span["name"], []).append(span)
    return result


def ids_in(context: dict[str, str]) -> tuple[int, int]:
    return int(context["trace_id"], 16), int(context["span_id"], 16)


def enqueue(url: str, spans: Spans) -> None:
    async def go(store: QueueStore) -> None:
        with bound_correlation_id("order 7"):
            await spans.traces().store(store).jobs.enqueue(NewJob(task="first"))

    with_store(url, go)


def test_spans_are_linked_across_processes_and_every_line_says_its_trace(
    url: str, workers: Workers, spans: Spans, written: Path
) -> None:
    enqueue(url, spans)
    assert workers.start(*TASKS, "--otel", "--once", "--log-format", "json").wait(60) == 0, workers.output()
    result = spans_in(written)
    (first,), (enqueued,), (second,) = result["run first"], result["enqueue second"], result["run second"]
    assert [ids_in(link["context"]) for link in first["links"]] == [ids_of(spans.one("enqueue first"))]
    assert (first["parent_id"], first["attributes"]["stowhand.outcome"]) == (None, "ok")
    assert enqueued["parent_id"] == first["context"]["span_id"]
    assert [link["context"]["span_id"] for link in second["links"]] == [enqueued["context"]["span_id"]]
    lines = [json.loads(line) for line in workers.output().splitlines() if line.startswith("{")]
    theirs = [line for line in lines if line.get("job_id") == 1]
    assert {line["message"].partition(" (")[0] for line in theirs} >= {
        "by its logger",
        "by the program's",
        "Completed task 1",
    }
    for line in theirs:
        assert f"0x{line['trace_id']}" == first["context"]["trace_id"], line
        assert f"0x{line['span_id']}" == first["context"]["span_id"], line
        assert (line["task"], line["attempt"], line["correlation_id"]) == ("first", 1, "order 7"), line
    assert not any("trace_id" in line for line in lines if "job_id" not in line)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_spans_of_a_suspect_are_within_its_attempts_span(workers: Workers, spans: Spans, written: Path) -> None:
    """The attempt is the worker's; the child's lines and spans belong to it."""

    async def enqueue_suspect(store: QueueStore) -> None:
        with bound_correlation_id("order 7"):
            await spans.traces().store(store).jobs.enqueue(NewJob(task="first"))
        await make_suspect(store)

    with_store(workers.url, enqueue_suspect)
    assert workers.start(*TASKS, "--otel", "--once", "--log-format", "json").wait(60) == 0, workers.output()
    result = spans_in(written)
    (first,), (enqueued,) = result["run first"], result["enqueue second"]
    assert enqueued["parent_id"] == first["context"]["span_id"]
    assert [link["context"]["span_id"] for link in result["run second"][0]["links"]] == [enqueued["context"]["span_id"]]
    lines = [json.loads(line) for line in workers.output().splitlines() if line.startswith("{")]
    theirs = {line["message"]: line for line in lines if line["message"].startswith("by ")}
    assert len(theirs) == 2
    for line in theirs.values():
        assert (line["job_id"], line["task"], line["attempt"], line["correlation_id"]) == (1, "first", 1, "order 7")
        assert f"0x{line['trace_id']}" == first["context"]["trace_id"]


def test_several_processes_trace_and_text_bears_the_trace_on_request(
    url: str, workers: Workers, spans: Spans, written: Path
) -> None:
    for _ in range(4):
        enqueue(url, spans)
    process = workers.start(*TASKS, "--otel", "--once", "--log-format", "traced", "--processes", "2")
    assert process.wait(60) == 0, workers.output()
    result = spans_in(written)["run first"]
    linked = {ids_in(link["context"]) for span in result for link in span["links"]}
    assert linked == {ids_of(span) for span in spans.named("enqueue first")}
    completed = [line for line in workers.output().splitlines() if "Completed task" in line and "(first)" in line]
    assert len(completed) == 4
    traces = {span["context"]["trace_id"].removeprefix("0x") for span in result}
    assert {line.rpartition("trace_id=")[2].rstrip(")") for line in completed} == traces
    assert all("correlation_id=order 7" in line for line in completed)


def test_without_the_switch_a_carried_context_is_left_alone(
    url: str, workers: Workers, spans: Spans, written: Path
) -> None:
    enqueue(url, spans)
    assert workers.start("--app", "tests.service.traced_work:app", "--once").wait(60) == 0, workers.output()
    assert not written.exists() or not spans_in(written)
    assert "Completed task 1 (first) with success" in workers.output()


def test_a_transactional_enqueue_stores_the_trace_context(run: Run, url: str, spans: Spans) -> None:
    app = App(url, traces=spans.traces())

    @app.task
    async def send(to: str) -> None: ...

    async def in_a_transaction() -> int:
        await app.open(install=True)
        async with app:
            if url.startswith("sqlite"):
                connection = sqlite3.connect(url.removeprefix("sqlite:///"))
                with connection:
                    job = send.enqueue_in(connection, "x")
                connection.close()
            else:
                async with await psycopg.AsyncConnection.connect(url) as other:
                    job = await send.enqueue_in(other, "x")
            await app.worker(once=True).run()
            return job.id

    job_id = run(in_a_transaction())
    enqueued, ran = spans.one("enqueue send"), spans.one("run send")
    assert [(link.context.trace_id, link.context.span_id) for link in ran.links] == [ids_of(enqueued)]
    assert dict(enqueued.attributes or {})["messaging.message.id"] == str(job_id)


def test_a_job_enqueued_with_sql_has_a_span_without_links(run: Run, postgres_url: str, spans: Spans) -> None:
    app = App(postgres_url, traces=spans.traces())

    @app.task
    async def send(to: str) -> None: ...

    async def go() -> None:
        store = await app.open(install=True)
        async with app:
            async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
                await connection.execute("""select stowhand.add_job('send', '{"to": "x"}')""")
            await app.worker(once=True).run()
            assert (await store.inspect.counts())[State.COMPLETED] == 1

    run(go())
    ran = spans.one("run send")
    assert (ran.parent, tuple(ran.links)) == (None, ())
