"""A flow in Redis on the bench: its jobs are worked on one by one, by the real store and the real handlers."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import redis

from stowhand.flows.engine import NewFlowJob
from stowhand.flows.job import FlowJob
from stowhand.flows.new_job import new_job
from stowhand.flows.redis import RedisEngine
from stowhand.flows.step_handler import StepHandler
from stowhand.jobs import strict_json
from stowhand.jobs.lifecycle import Complete, Settlement, settle
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.flow_shape import FlowShape, Layout, Limiter, Queue
from stowhand.protocols.store import Claim, ClaimRequest, Reply, Verdict

LOCK_TIME = 30.0
_tokens = (f"token-{number}" for number in itertools.count())

SHAPES = {
    "classic": {"layout": Layout.CLASSIC},
    "priority": {"layout": Layout.PRIORITY},
    "tagged": {"layout": Layout.PRIORITY, "hash_tag": "demo"},
}
"""The layouts that there are, by the name of the test."""


def shape(queues: Sequence[Queue], layout: str = "classic", *, lookup: Sequence[str] = ()) -> FlowShape:
    """Flow ``demo``. ``layout``: one of SHAPES."""
    return FlowShape(name="demo", queues=tuple(queues), lookup_attributes=tuple(lookup), **SHAPES[layout])  # type: ignore[arg-type]


class FlowBench:
    """Works on one flow; ``look`` is a client of the test's own."""

    def __init__(self, engine: RedisEngine, look: redis.Redis) -> None:
        self.engine, self.look = engine, look
        tag = engine.shape.hash_tag
        self.prefix = "" if tag is None else f"{{{tag}}}:"
        self.ranked = engine.shape.layout is Layout.PRIORITY

    def new(self, values: Mapping[str, object] | None = None, **more: Any) -> NewFlowJob:
        """As ``Flow.create_job`` makes it."""
        return new_job(self.engine.shape, values, **{"correlation_id": "corr-1", **more})

    async def create(self, values: Mapping[str, object] | None = None, **more: Any) -> str:
        """A job in the first queue; its id."""
        return await self.engine.create(self.new(values, **more))

    async def claim(self, queue: str, limit: int = 10) -> list[Claim[Any]]:
        """Jobs of one queue, under locks."""
        flow_queue = self.engine.shape.find_queue(queue)
        store = self.engine.store(flow_queue, LOCK_TIME, 1.0)
        request = ClaimRequest(worker="bench", token=next(_tokens), limit=limit, lease=LOCK_TIME)
        try:
            return list(await store.claim(request))
        finally:
            await store.close()

    async def end(self, queue: str, claim: Claim[Any], function: Callable[[FlowJob], object] | None = None) -> Reply:
        """Execute it, and settle; a parent's queue has no function."""
        flow_queue = self.engine.shape.find_queue(queue)
        if function is None:
            handler = StepHandler(self.engine, flow_queue)
        else:
            handler = StepHandler(self.engine, flow_queue, _asynchronous(function), LOCK_TIME, lambda: 0.0)
        store = self.engine.store(flow_queue, LOCK_TIME, 1.0)
        try:
            outcome = await handler.handle(Attempt(claim, 0.0), claim.record)
            result = handler.encode(outcome.result) if isinstance(outcome, Complete) else None
            settlement = settle(
                outcome,
                attempts=claim.attempts,
                max_attempts=claim.max_attempts,
                backoff=lambda _: 0.0,
                result=result,
            )
            (verdict,) = await store.settle([(claim.lease, settlement)])
            return verdict
        finally:
            await store.close()

    async def work(self, queue: str, function: Callable[[FlowJob], object] | None = None, limit: int = 10) -> int:
        """Claim and end what is due in a queue, once; how many jobs that were."""
        claims = await self.claim(queue, limit)
        for claim in claims:
            recorded: object = await self.end(queue, claim, function)
            assert recorded is Verdict.SETTLED or isinstance(recorded, Settlement), "as asked, or turned into a failure"
        return len(claims)

    # -- what stands in Redis

    def key(self, rest: str) -> str:
        """With the hash tag."""
        return f"{self.prefix}{rest}"

    def queue(self, queue: str, kind: str, priority: int = 1) -> str:
        """The key of a queue's list or sorted set."""
        return self.key(f"queue:{queue}:{priority}:{kind}" if self.ranked else f"queue:{queue}:{kind}")

    def members(self, queue: str, kind: str, priority: int = 1) -> Any:
        """Ids there, in order."""
        key = self.queue(queue, kind, priority)
        if kind in ("waiting", "processing"):
            return self.look.lrange(key, 0, -1)
        return self.look.zrange(key, 0, -1)

    def hash_key(self, job_id: str) -> str:
        """Of a job by the id that people see."""
        return self.key(f"job:{job_id}" if self.ranked or ":" in job_id else f"job:demo:{job_id}")

    def hash(self, job_id: str) -> Any:
        """What stands there."""
        return self.look.hgetall(self.hash_key(job_id))

    def value(self, job_id: str, field: str) -> Any:
        """One field, decoded."""
        text: Any = self.look.hget(self.hash_key(job_id), field)
        return None if text is None else strict_json.decode(text)

    def all_keys(self) -> set[str]:
        """Every key that holds something of a job: not the marks of settlements and claims, nor those of queues."""
        result: Any = self.look.keys("*")
        notes = (":flow", ":renewed", ":bell")
        return {key for key in result if not key.endswith(notes) and "settled:" not in key and "lease:" not in key}

    def lives(self, key: str) -> bool:
        """As long as a job that has not ended: for good where every worker is ours, else for the flow's key life."""
        left: Any = self.look.ttl(key)
        return bool(left == -1 if self.ranked else left > 86_000)


@contextlib.asynccontextmanager
async def flow_bench(url: str, flow: FlowShape, look: redis.Redis) -> AsyncIterator[FlowBench]:
    """Open, and closed at the end. ``url``: how the engine goes there; ``look``: how the test looks."""
    engine = RedisEngine(url, flow)
    await engine.open()
    try:
        yield FlowBench(engine, look)
    finally:
        await engine.close()


def _asynchronous(function: Callable[[FlowJob], object]) -> Callable[[FlowJob], Any]:
    """No thread for what takes no time."""

    async def call(job: FlowJob) -> object:
        return function(job)

    return call


__all__ = ["SHAPES", "FlowBench", "Limiter", "Queue", "flow_bench", "shape"]
