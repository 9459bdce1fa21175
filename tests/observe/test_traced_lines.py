"""Log lines of an attempt that is traced: from its hooks, its threads, and the tasks that it starts."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from stowhand.events import Events
from stowhand.jobs.job import NewJob
from stowhand.observe.listener import LogListener
from stowhand.observe.propagation import bound_correlation_id
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.testing import MemoryStore
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.support.logs import lines_of
from tests.support.spans import Spans, ids_of

shop = logging.getLogger("shop")


def test_every_line_of_an_attempt_names_its_job(run: Run) -> None:
    spans = Spans()
    store = spans.traces().store(MemoryStore())
    outlived = asyncio.Event()

    async def outlives() -> None:
        await outlived.wait()
        shop.info("outlives")

    class Handler:
        def __init__(self) -> None:
            self.kept: list[asyncio.Task[None]] = []

        async def pre_handle(self, ctx: Attempt[Any], record: Any) -> None:
            shop.info("before")

        async def handle(self, ctx: Attempt[Any], record: Any) -> None:
            await asyncio.gather(asyncio.to_thread(shop.info, "thread"), self.task())
            self.kept.append(asyncio.create_task(outlives()))

        async def task(self) -> None:
            shop.info("task")

        async def post_handle(self, ctx: Attempt[Any], record: Any) -> None:
            shop.info("after")
            if record.task == "t":
                await store.jobs.enqueue(NewJob(task="later"))

    events = spans.traces().of(Events())
    LogListener(events)

    async def go() -> None:
        with bound_correlation_id("order 7"):
            await store.jobs.enqueue(NewJob(task="t"))
        handler = Handler()
        options = WorkerOptions(once=True, tasks=("t",))
        with spans.tracer.start_as_current_span("program"):  # whatever span the worker itself runs in
            await Worker(store, handler, options, events=events).run()
        outlived.set()
        await asyncio.gather(*handler.kept)

    with lines_of("info", "json") as stream:
        run(go())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    of_it = {line["message"].partition(" (")[0]: line for line in lines if "job_id" in line}
    assert of_it.keys() == {"before", "thread", "task", "after", "outlives", "Completed task 1"}
    trace, span = ids_of(spans.one("run t"))
    whose = {"job_id": 1, "task": "t", "attempt": 1, "correlation_id": "order 7"}
    for words, line in of_it.items():
        assert line.items() >= (whose | {"trace_id": f"{trace:032x}", "span_id": f"{span:016x}"}).items(), words
    (later,) = spans.named("enqueue later")
    assert later.parent is not None
    assert later.parent.span_id == span
