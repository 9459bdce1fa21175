"""A worker process of the flows' chaos test: ``URL``. Three queues, and a ledger of executions in the same Redis."""

from __future__ import annotations

import asyncio
import random
import sys

import redis.asyncio

from stowhand import run_all
from stowhand.flows import Flow, FlowJob, Queue
from stowhand.service.exit_codes import OK

NAMES = ("first", "second", "third")
LOCK_TIME = 0.8
"""Seconds: the lease is two more, and shorter than a freeze."""


def declared(url: str) -> Flow:
    """The flow under test."""
    following = (*NAMES[1:], None)
    queues = [
        Queue(name, next_queue=then, max_retries=50, max_resets=50) for name, then in zip(NAMES, following, strict=True)
    ]
    return Flow("chaos", url, queues=queues)


async def main(url: str) -> int:
    """Work until stopped; now and then, fail."""
    flow, ledger = declared(url), redis.asyncio.Redis.from_url(url)

    async def step(job: FlowJob) -> dict[str, str]:
        await asyncio.sleep(random.uniform(0, 0.01))
        if random.random() < 0.02:
            raise ValueError("bad luck")
        token = job.ctx.lease.token
        await ledger.rpush("ledger", f"{job.id} {job.queue} {token}")
        return {f"by-{job.queue}": token}

    for name in NAMES:
        flow.create_workers(name, step, count=12, lock_time=LOCK_TIME, wait_timeout=0.5, grace=10)
    try:
        await run_all(flow)
    finally:
        await ledger.aclose()
    return OK


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
