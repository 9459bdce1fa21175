"""Case 235: every line that is written while a job is executed bears the job's correlation id, and no other line."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, Queue
from stowhand.observe.listener import LogListener
from stowhand.observe.propagation import current_correlation_id
from tests.conftest import Run
from tests.support.logs import lines_of

shop = logging.getLogger("shop")


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the flow's jobs are."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/flow.db"
    url: str = request.getfixturevalue("redis_url")
    return url


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where log lines go: JSON, from debug on."""
    with lines_of("debug", "json") as stream:
        yield stream


def test_each_line_bears_its_own_job_s_id_and_only_those_of_a_job(run: Run, place: str, stream: io.StringIO) -> None:
    meeting = asyncio.Barrier(2)

    async def first(job: FlowJob) -> dict[str, Any]:
        name = job["name"]
        await meeting.wait()  # both are being executed from here to their last line
        job.ctx.logger.info(f"{name}: by its logger")
        shop.info("%s: by the program's", name)
        await asyncio.to_thread(shop.info, f"{name}: in a thread")
        await asyncio.create_task(later(f"{name}: in a task"))
        await meeting.wait()
        shop.info("%s: at last", name)
        return {}

    async def later(words: str) -> None:
        await asyncio.sleep(0)
        shop.info(words)

    def second(job: FlowJob) -> None:
        shop.info("%s: in the second queue, which is not asynchronous", job["name"])
        if job["name"] == "b":
            raise ValueError("b: fails")

    async def story() -> None:
        events = Events()
        LogListener(events)
        flow = Flow("demo", place, [Queue("first", next_queue="second"), Queue("second")], events=events)
        for _ in "ab":
            flow.create_workers("first", first)
        flow.create_workers("second", second)
        async with flow:
            for name in "ab":
                await flow.create_job({"name": name}, correlation_id=f"id-of-{name}")
            await flow.start_all()
            while stream.getvalue().count("second queue") < 2 or any(worker.running for worker in flow.workers):
                assert current_correlation_id() is None
                shop.info("nobody's")
                await asyncio.sleep(0.01)

    run(story())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    for name, number in (("a", 6), ("b", 7)):
        of_it = [line for line in lines if line["message"].removeprefix("ValueError: ").startswith(f"{name}: ")]
        assert len(of_it) == number, [line["message"] for line in of_it]
        assert {line.get("correlation_id") for line in of_it} == {f"id-of-{name}"}
    others = [line for line in lines if line["message"][:3] not in ("a: ", "b: ") and "b: fails" not in line["message"]]
    assert any("nobody" in line["message"] for line in others)
    assert any("Completed task" in line["message"] for line in others), "what the worker says later is not the job's"
    assert [line for line in others if "correlation_id" in line] == []


def test_a_flow_started_in_a_job_does_not_keep_its_correlation_id(run: Run, place: str, stream: io.StringIO) -> None:
    events = Events()
    LogListener(events)
    other = Flow("other", place, [Queue("only")], events=events)

    async def open_another(job: FlowJob) -> None:
        shop.info("it starts another")
        await other.start_all()
        await other.create_job({}, correlation_id=None)

    def at_work(job: FlowJob) -> None:
        shop.info("at work: %s", job.correlation_id)

    async def story() -> None:
        other.create_workers("only", at_work)
        flow = Flow("demo", place, [Queue("first")], events=events)
        flow.create_workers("first", open_another)
        async with flow:
            await flow.create_job({}, correlation_id="abc-1")
            await flow.start_all()
            while stream.getvalue().count("Completed task") < 2:  # noqa: ASYNC110 - what is asked is the log
                await asyncio.sleep(0.01)
            await other.close()

    run(story())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    # What the store warns of when the job connects is said while the job is executed.
    with_it = {line["message"] for line in lines if "correlation_id" in line and line["level"] != "warning"}
    assert with_it == {"it starts another", "at work: abc-1"}, (
        "what it creates inherits the id, what it starts does not"
    )
    assert sum("Worker connected" in line["message"] for line in lines) == 2
