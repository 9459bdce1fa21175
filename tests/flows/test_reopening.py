"""A flow may be opened, worked on and closed again and again, in one event loop after another."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stowhand.flows import Flow, FlowJob, Queue
from tests.conftest import Run
from tests.support.logs import lines_of


def test_each_time_it_works_and_every_line_is_written_once(run: Run, tmp_path: Path) -> None:
    flow = Flow("demo", f"sqlite:///{tmp_path}/flow.db", [Queue("first")])
    ends: list[str] = []

    def fail(job: FlowJob) -> None:
        ends.append(job.id)
        raise ValueError("no")

    async def story() -> None:
        before = len(ends)
        async with flow:
            await flow.create_job()
            await flow.start_all()
            while len(ends) == before:  # noqa: ASYNC110 - what is waited for is in a thread
                await asyncio.sleep(0.01)

    flow.create_workers("first", fail)

    async def look() -> None:
        async with flow:
            assert sum(count.failed or 0 for count in await flow.monitor.counts()) == 3

    with lines_of("warning", "text") as stream:
        for _ in range(3):
            run(story())
        run(look())  # its workers have ended in a loop before this
    assert stream.getvalue().count(", attempt 1/1: no") == 3
