"""The workers of a flow's queues, created one by one, started and stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from stowhand.clock import wall_clock
from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.flows.engine import Engine
from stowhand.flows.stepping import ChildHandler, ParentHandler, StepHandler, WorkerFunction
from stowhand.flows.worker import FlowWorker
from stowhand.jobs.durations import seconds
from stowhand.protocols.callables import why_no_function
from stowhand.protocols.flow_shape import KEY_LIFE, FlowQueue, FlowShape
from stowhand.protocols.options import LEASE

LOCK_TIME = 180.0
WAIT_TIMEOUT = 3.0
GRACE = 25.0
MOST_SLOTS = 10_000
SHORTEST_LEASE = 2.0
"""Seconds. A lease is no longer than the lock time, but never shorter than this: a process may be slow for a moment."""


class FlowWorkers:
    """The part of ``Flow`` that creates and stops its workers."""

    shape: FlowShape
    engine: Engine
    events: Events
    workers: list[FlowWorker]

    def create_workers(
        self,
        queue: str,
        function: WorkerFunction,
        count: int = 1,
        lock_time: float | timedelta = LOCK_TIME,
        wait_timeout: float | timedelta = WAIT_TIMEOUT,
        *,
        grace: float | timedelta = GRACE,
        lease: float | timedelta = LEASE,
    ) -> FlowWorker:
        """Create a worker with ``count`` slots for a queue; ``start_all`` or its own ``start`` starts it.

        ``function(job)``, asynchronous or not, returns the attributes to keep: a dict, in which ``next_queue`` chooses
        where the job goes, or nothing. ``lock_time``: seconds that one execution may take. ``wait_timeout``: seconds
        that an idle worker blocks before it looks again. ``grace``: seconds that running jobs have when it is stopped.
        ``lease``: seconds after which the jobs of a worker that sends no heartbeat are taken back; at most the
        ``lock_time``, but no less than 2 s.
        """
        flow_queue = self.shape.find_queue(queue)
        if flow_queue.is_parent:
            raise ConfigurationError(
                f"queue {queue!r} is a parent: use create_parent_workers, and create_child_workers"
            )
        if not callable(function):
            raise ConfigurationError(f"workers of {queue!r}: {function!r} given; give a function of (job)")
        if (why := why_no_function(function)) is not None:
            raise ConfigurationError(f"workers of {queue!r}: {why}")
        kind = ChildHandler if flow_queue.parent is not None and self.engine.handles_child_end else StepHandler
        lock = _positive("lock_time", lock_time)
        made = partial(kind, self.engine, flow_queue, function, lock, _epoch)
        return self._add(flow_queue, made, count, lock, wait_timeout, grace, lease)

    def create_parent_workers(
        self,
        queue: str,
        count: int = 1,
        lock_time: float | timedelta = LOCK_TIME,
        wait_timeout: float | timedelta = WAIT_TIMEOUT,
        *,
        grace: float | timedelta = GRACE,
        lease: float | timedelta = LEASE,
    ) -> FlowWorker:
        """Create a worker for a parent's queue, which fans out and gathers. A parent that waits occupies no slot."""
        flow_queue = self.shape.find_queue(queue)
        if not flow_queue.is_parent:
            raise ConfigurationError(f"queue {queue!r} has no children; use create_workers")
        made = partial(ParentHandler, self.engine, flow_queue)
        return self._add(flow_queue, made, count, _positive("lock_time", lock_time), wait_timeout, grace, lease)

    def create_child_workers(
        self,
        parent: str,
        child: str,
        function: WorkerFunction,
        count: int = 1,
        lock_time: float | timedelta = LOCK_TIME,
        wait_timeout: float | timedelta = WAIT_TIMEOUT,
        *,
        grace: float | timedelta = GRACE,
        lease: float | timedelta = LEASE,
    ) -> FlowWorker:
        """Create a worker for a child's queue; otherwise as ``create_workers``."""
        return self.create_workers(
            f"{parent}:{child}", function, count, lock_time, wait_timeout, grace=grace, lease=lease
        )

    def _add(
        self,
        queue: FlowQueue,
        make_handler: Callable[[], StepHandler | ParentHandler],
        count: object,
        lock_time: float,
        wait_timeout: float | timedelta,
        grace: float | timedelta,
        lease: float | timedelta,
    ) -> FlowWorker:
        if type(count) is not int or not 1 <= count <= MOST_SLOTS:
            raise ConfigurationError(f"workers of {queue.name!r}: count: {count!r} given; give 1 to {MOST_SLOTS}")
        worker = FlowWorker(
            self.engine,
            queue,
            make_handler,
            count=count,
            lock_time=lock_time,
            wait_timeout=_positive("wait_timeout", wait_timeout),
            grace=seconds(grace),
            lease=min(_positive("lease", lease), max(lock_time, SHORTEST_LEASE)),
            events=self.events,
        )
        self.workers.append(worker)
        return worker

    @property
    def grace(self) -> float:
        """Seconds that running jobs have when all workers are stopped: the longest grace of them."""
        return max((worker.grace for worker in self.workers), default=GRACE)

    async def halt(self, *, now: bool = False) -> None:
        """Stop every worker, and wait for them."""
        for worker in self.workers:
            worker.request_stop(now=now)
        await asyncio.gather(*(worker.ended() for worker in self.workers))


def _positive(field: str, given: float | timedelta) -> float:
    value: object = seconds(given) if isinstance(given, timedelta | str) else given
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= KEY_LIFE:
        raise ConfigurationError(f"{field}: {given!r} given; give more than 0 s and at most a day, or a timedelta")
    return float(value)


def _epoch() -> float:
    return wall_clock().timestamp()
