"""A flow of Stowhand's, driven as an application drives it. FLOW_CONCURRENCY slots for each of FLOW_QUEUES queues."""

from __future__ import annotations

import asyncio
import os
import sys

import probe
import redis

from stowhand import run_all
from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, Queue

URL, QUEUES, SLOTS = os.environ["FLOW_URL"], int(os.environ["FLOW_QUEUES"]), int(os.environ["FLOW_CONCURRENCY"])

flow = Flow(
    "bench",
    URL,
    [Queue(f"q{number}", ("sent",), f"q{number + 1}" if number < QUEUES else None) for number in range(1, QUEUES + 1)],
    events=Events(),  # to which nobody listens: no peer writes a line of log for each job
)


async def noop(job: FlowJob) -> None:
    """Nothing, but say that it began."""
    probe.hit(job["sent"] or 0.0)


async def one(count: int) -> None:
    """Create one by one."""
    for number in range(count):
        await flow.create_job({"number": number})


async def many(count: int) -> None:
    """Create in one call."""
    await flow.create_jobs({"number": number} for number in range(count))


async def main(verb: str, count: int) -> None:
    """Do it, and say how long it took."""
    async with flow:
        if verb == "slowly":
            await probe.send_slowly(count, lambda number, sent: flow.create_job({"number": number, "sent": sent}))
        else:
            with probe.timed(count):
                await {"one": one, "many": many}[verb](count)


async def work() -> None:
    """Until a signal."""
    for queue in flow.shape.queues:
        flow.create_workers(queue.name, noop, SLOTS)
    await run_all(flow)


match sys.argv[1]:
    case "setup":
        redis.Redis.from_url(URL).flushdb()
    case "worker":
        asyncio.run(work())
    case verb:
        asyncio.run(main(verb, int(sys.argv[2])))
