"""A flow whose steps a test runs one by one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Protocol, Self

from stowhand.events import Events
from stowhand.flows.job import FlowJob
from stowhand.flows.new_job import new_job
from stowhand.flows.queue import QueueEngine
from stowhand.flows.step_handler import ChildHandler, StepHandler
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Outcome, Settlement
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.flow_shape import FlowShape
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import Claim, ClaimRequest, Reply, Verdict
from stowhand.testing.clock import START
from stowhand.worker.policy import HandlerPolicies, Policy

LOCK_TIME = 180.0


class MakeHarness(Protocol):
    def __call__(self, *queues: object, history: float | None = 86_400.0, **shape: object) -> Harness: ...


def recording(given: list[dict[str, Any]], result: object) -> Callable[[FlowJob], object]:
    """Return a worker function that records the attributes of its jobs."""

    def function(job: FlowJob) -> object:
        given.append(dict(job))
        return result

    return function


class ManualTime:
    """Clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self._now = START

    def now(self) -> datetime:
        return self._now

    def move(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class Run:
    """One execution of a step that has not been settled yet."""

    def __init__(
        self, harness: Harness, queue: str, claim: Claim[Any], outcome: Outcome, settlement: Settlement
    ) -> None:
        self.harness, self.queue, self.claim = harness, queue, claim
        self.outcome, self.settlement = outcome, settlement

    @property
    def lease(self) -> Lease:
        return self.claim.lease

    async def settle(self, *, repeat: bool = False) -> Reply:
        (verdict,) = await self.harness.store.settle([(self.lease, self.settlement)], repeat=repeat)
        return verdict

    async def wake_parent(self) -> None:
        """Wake the parent, as the worker of a child does after the settlement."""
        flow_queue = self.harness.engine.shape.find_queue(self.queue)
        await self.harness.engine.on_child_end(
            flow_queue, self.harness.engine.job(flow_queue, Attempt(self.claim, 0.0), self.claim.record)
        )
        for waking in list(self.harness.engine._children._waking.values()):
            await asyncio.wait([waking])


class Harness:
    """Engine, store and clock of one flow."""

    def __init__(self, store: QueueStore, time: ManualTime, queues: Sequence[Any], shape: dict[str, Any]) -> None:
        self.store, self.time = store, time
        self.engine = QueueEngine(store, FlowShape(name="demo", queues=tuple(queues), **shape))
        self.warnings: Sequence[str] = ()

    async def __aenter__(self) -> Self:
        self.warnings = await self.engine.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.engine.close()
        await self.store.close()

    async def create(self, attributes: dict[str, Any] | None = None, **details: Any) -> str:
        return await self.engine.create(new_job(self.engine.shape, attributes or {}, **details))

    async def read(self, job_id: str, *, resolve: bool = False) -> dict[str, Any] | None:
        (job,) = await self.engine.read([job_id], resolve_children=resolve)
        return job

    async def claim(self, queue: str, limit: int = 1, worker: str = "w") -> Sequence[Claim[Any]]:
        flow_queue = self.engine.shape.find_queue(queue)
        store = self.engine.store(flow_queue, LOCK_TIME, 3.0)
        return await store.claim(ClaimRequest(worker=worker, token=str(uuid.uuid4()), limit=limit, lease=30.0))

    async def begin(self, queue: str, function: Callable[[Any], object] | None = None) -> Run | None:
        """Claim the next job and execute it. Return ``None`` if none is due."""
        claims = await self.claim(queue)
        return await self.execute(queue, claims[0], function) if claims else None

    async def execute(self, queue: str, claim: Claim[Any], function: Callable[[Any], object] | None = None) -> Run:
        flow_queue = self.engine.shape.find_queue(queue)
        handler: Any = StepHandler(self.engine, flow_queue)
        if not flow_queue.is_parent:
            kind = ChildHandler if flow_queue.parent else StepHandler
            handler = kind(
                self.engine, flow_queue, function or (lambda job: {}), LOCK_TIME, lambda: self.time.now().timestamp()
            )
        ctx: Attempt[Any] = Attempt(claim, 0.0)
        outcome = await handler.handle(ctx, claim.record)
        judge = HandlerPolicies(handler, Policy(), Events())
        return Run(self, queue, claim, outcome, judge.settle(ctx, outcome))

    async def step(self, queue: str, function: Callable[[Any], object] | None = None) -> Run:
        """Claim, execute and settle the next job, and wake its parent."""
        run = await self.begin(queue, function)
        assert run is not None, f"nothing is due in {queue}"
        assert await run.settle() is Verdict.SETTLED
        if run.harness.engine.shape.find_queue(queue).parent:
            await run.wake_parent()
        return run

    async def due(self, queue: str) -> int:
        """Return the number of jobs in a queue that may run now."""
        return sum(count.waiting for count in await self.engine.counts() if count.queue == queue)

    async def states(self, queue: str) -> dict[str, int]:
        """Return the counts of a queue by state, without zeros."""
        totals = dict.fromkeys(("waiting", "processing", "delayed", "parked", "failed"), 0)
        for count in await self.engine.counts():
            if count.queue == queue:
                totals = {name: number + (getattr(count, name) or 0) for name, number in totals.items()}
        return {name: number for name, number in totals.items() if number}
