"""An App with a flow at ``FLOW_PLACE``. A job of the flow runs until the file that it names exists."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from stowhand.app.app import App
from stowhand.flows import Flow, FlowJob, Queue


def declared() -> Flow:
    return Flow("served", os.environ.get("FLOW_PLACE", "sqlite:///flow.db"), [Queue("hold")])


async def hold(job: FlowJob) -> None:
    job.ctx.log("holding")
    file = Path(job["file"])
    while not await asyncio.to_thread(file.exists):  # noqa: ASYNC110 - another process creates it
        await asyncio.sleep(0.02)


flow = declared()
flow.create_workers("hold", hold, count=2, wait_timeout=0.2)
app = App(flows=[flow])


@app.task
async def greet() -> None: ...
