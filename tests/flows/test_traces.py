"""Spans of a flow: its creating, and each step linked to the one that moved it on, wherever its jobs are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, Layout, Queue
from tests.conftest import Run
from tests.flows.harness import WAIT, until
from tests.support.spans import Spans, facts_of, ids_of, links_of, traceparent_of

Function = Callable[[FlowJob], object]
STEPS = [Queue("first", next_queue="second"), Queue("second", ["n"], max_retries=1)]
FAMILY = [Queue("family", next_queue="last", children=[Queue("kid", ["n"])]), Queue("last", ["n"])]
OURS = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.fixture
def spans() -> Spans:
    return Spans()


async def pass_through(flow: Flow, functions: dict[str, Function], *jobs: dict[str, Any]) -> Sequence[str]:
    """Work until each of the jobs has ended."""
    for queue, function in functions.items():
        flow.create_workers(queue, function, wait_timeout=WAIT)

    async def ended() -> bool:
        result = await flow.get_jobs(ids)
        last = flow.shape.queues[-1].name
        return all(job is not None and (job.get("completed-queue") == last or "failed" in job) for job in result)

    async with flow:
        ids = [await flow.create_job(job, correlation_id="order 7") for job in jobs]
        await flow.start_all()
        await until(ended)
    return ids


def named(spans: Spans, queue: str, what: str = "run") -> list[Any]:
    """On a queue store the task has the flow's name before the queue's."""
    return spans.named(f"{what} {queue}") or spans.named(f"{what} demo/{queue}")


@pytest.mark.parametrize("layout", Layout)
def test_each_step_is_linked_to_the_one_before_and_each_attempt_has_its_span(
    run: Run, place: str, spans: Spans, layout: Layout
) -> None:
    seen: list[dict[str, Any]] = []

    async def step(job: FlowJob) -> dict[str, Any]:
        seen.append(dict(job))
        if job.queue == "second" and job.retries == 0:
            raise ValueError("not yet")
        return {name: value for name, value in job.items() if name in ("n", "traceparent")}

    flow = Flow("demo", place, STEPS, events=Events(), layout=layout, traces=spans.traces())
    (job_id,) = run(pass_through(flow, {"first": step, "second": step}, {"n": 1}))
    (created,), (first,), (failed, second) = (
        named(spans, "first", "enqueue"),
        named(spans, "first"),
        named(spans, "second"),
    )
    assert facts_of(created)["messaging.message.id"] == job_id
    assert links_of(first) == [ids_of(created)]
    assert links_of(failed) == links_of(second) == [ids_of(first)]
    assert [facts_of(span)["stowhand.outcome"] for span in (first, failed, second)] == ["ok", "retry", "ok"]
    assert {facts_of(span)["messaging.message.conversation_id"] for span in (first, failed, second)} == {"order 7"}
    assert not any("traceparent" in job for job in seen), "a function that gives back what it got passes on no context"


def test_children_are_linked_to_the_parents_run_and_what_it_gathers_to_the_one_before(
    run: Run, place: str, spans: Spans
) -> None:
    async def step(job: FlowJob) -> None: ...

    flow = Flow("demo", place, FAMILY, events=Events(), traces=spans.traces())
    flow.create_parent_workers("family", wait_timeout=WAIT)
    params = [{"childName": "kid", "n": number} for number in range(2)]
    run(pass_through(flow, {"family:kid": step, "last": step}, {"children:family:params": params}))
    fans_out, *looks = named(spans, "family")
    assert {link for kid in named(spans, "family:kid") for link in links_of(kid)} == {ids_of(fans_out)}
    assert {link for look in looks for link in links_of(look)} == {ids_of(fans_out)}
    (last,) = named(spans, "last")
    assert links_of(last) == [ids_of(looks[-1])]


def test_many_have_one_span(run: Run, place: str, spans: Spans) -> None:
    async def go() -> None:
        async with Flow("demo", place, STEPS, events=Events(), traces=spans.traces()) as flow:
            assert len(await flow.create_jobs([{"n": 1}, {"n": 2}])) == 2

    run(go())
    (span,) = named(spans, "first", "enqueue")
    assert facts_of(span)["messaging.batch.message_count"] == 2


def test_in_redis_it_is_a_harmless_field_that_a_program_may_set(run: Run, redis_url: str, spans: Spans) -> None:
    async def step(job: FlowJob) -> None: ...

    async def go() -> None:
        plain = Flow("demo", redis_url, STEPS, events=Events())
        ids = [await plain.create_job({"traceparent": value}) for value in (OURS, 7, "zz")]
        (kept,) = await plain.get_jobs(ids[:1])
        assert kept is not None
        assert kept["traceparent"] == OURS
        client: Any = plain.engine._server.client  # type: ignore[attr-defined]
        await client.hset(f"job:demo:{ids[1]}", "traceparent", "{no JSON")
        await plain.close()
        traced = Flow("demo", redis_url, STEPS, events=Events(), traces=spans.traces())
        (last,) = await pass_through(traced, {"first": step, "second": step}, {})
        rows = [job for job in await traced.get_jobs([*ids, last]) if job is not None]
        assert [job.get("completed-queue") for job in rows] == ["second"] * 4
        assert {job["traceparent"] for job in rows} == {traceparent_of(span) for span in named(spans, "first")}
        await traced.close()

    run(go())
    links = [links_of(span) for span in named(spans, "first")]
    value = (int("a" * 32, 16), int("b" * 16, 16))
    assert sorted(links) == sorted([[], [], [value], [ids_of(named(spans, "first", "enqueue")[0])]])


def test_with_traces_of_attempts_only_jobs_are_unchanged(run: Run, redis_url: str, spans: Spans) -> None:
    async def step(job: FlowJob) -> None:
        seen.append(dict(job))

    async def go() -> None:
        flow = Flow("demo", redis_url, [STEPS[0], Queue("second")], events=spans.traces().of(Events()))
        await pass_through(flow, {"first": step, "second": step}, {"n": 1})
        await flow.close()

    seen: list[dict[str, Any]] = []
    run(go())
    assert [set(job) - {"completed-queue"} for job in seen] == [{"id", "n", "correlationId"}] * 2
    assert len(named(spans, "second")) == 1


def test_without_traces_a_job_has_no_trace_context(run: Run, redis_url: str) -> None:
    async def step(job: FlowJob) -> None: ...

    async def go() -> None:
        flow = Flow("demo", redis_url, STEPS, events=Events())
        ids = await pass_through(flow, {"first": step, "second": step}, {"n": 1})
        assert await flow.get_jobs(ids) == [
            {"id": ids[0], "n": 1, "correlationId": "order 7", "completed-queue": "second"}
        ]
        await flow.close()

    run(go())
