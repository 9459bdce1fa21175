"""The worker of a flow's queue, which runs the generic worker on the flow's store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError, SchemaError, StoreError
from stowhand.events import Events, StoreCallFailed
from stowhand.flows.engine import Engine
from stowhand.flows.step_handler import StepHandler
from stowhand.observe.propagation import bound_correlation_id
from stowhand.protocols.flow_shape import FlowQueue
from stowhand.protocols.options import OUTAGE_BACKOFF, WorkerOptions
from stowhand.protocols.store import Store
from stowhand.worker.worker import Worker, new_identity


class Status(StrEnum):
    """The state of a worker.

    ready --start()--> running --stop()--> stopping --its loop has ended--> stopped --start()--> running
    """

    READY = "ready"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class FlowWorker:
    """Worker of a queue with ``count`` slots. ``Flow.create_workers`` creates it."""

    def __init__(
        self,
        engine: Engine,
        queue: FlowQueue,
        make_handler: Callable[[], StepHandler],
        *,
        count: int,
        lock_time: float,
        wait_timeout: float,
        grace: float,
        lease: float,
        events: Events,
        clock: Clock | None = None,
    ) -> None:
        self.queue = queue.name
        """Full name of the queue: ``queue``, or ``parent:child``."""
        self.count = count
        """Number of slots: jobs that it runs at once."""
        self.grace = grace
        """Seconds that running jobs have when the worker is stopped."""
        self.status = Status.READY
        self.error: BaseException | None = None
        """Error that ended the worker; ``None`` if it runs or was stopped."""
        self._engine = engine
        self._queue = queue
        self._make_handler = make_handler
        self._lock_time = lock_time
        self._wait_timeout = wait_timeout
        self._lease = lease
        self._events, self._clock = events, clock or SystemClock()
        self._options = WorkerOptions(
            name=f"{queue.name}@{new_identity()}",
            tasks=(engine.task(queue),),
            concurrency=count,
            grace=grace,
            sweep_interval=engine.sweep_interval,
        )
        if not _may_claim_ahead(engine, queue, count):
            self._options = msgspec.structs.replace(self._options, look_ahead=0)
        self._worker: Worker | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop_requested = asyncio.Event()
        self._is_quiet = False

    @property
    def id(self) -> str:
        """Name of the worker: queue, host, process, and a random part."""
        return str(self._options.name)

    @property
    def running(self) -> int:
        """Number of running jobs."""
        return self._worker.running if self._worker is not None else 0

    def start(self) -> None:
        """Start to claim jobs on the running event loop. Does nothing while it runs; a stopped worker starts again."""
        if self._task is not None and not self._task.done():
            if self.status is Status.STOPPING:
                raise ConfigurationError(f"the worker of {self.queue!r} is stopping; start it once it has stopped")
            return
        self.status, self.error = Status.RUNNING, None
        self._stop_requested.clear()
        # It may be started in a job: its correlation id must not be bound in this task.
        with bound_correlation_id(None):
            self._task = asyncio.create_task(self._live(), name=f"flow worker {self.queue}")

    async def stop(self, *, now: bool = False) -> None:
        """Claim nothing more, wait until the running jobs have ended (within the grace), and stop.

        ``now``: return them to the queue instead, attempt not counted. May be repeated. An idle worker stops at once.
        """
        self.request_stop(now=now)
        await self.ended()

    def request_stop(self, *, now: bool = False) -> None:
        """Request a stop without waiting for it."""
        if self._task is None or self._task.done():
            if self.status is not Status.READY:
                self.status = Status.STOPPED
            return
        self.status = Status.STOPPING
        self._stop_requested.set()
        if self._worker is not None:
            self._worker.stop(now=now)

    def quiet(self, *, on: bool) -> None:
        """Pause claiming in this process, or resume it. Running jobs continue."""
        self._is_quiet = on
        if self._worker is not None:
            self._worker.controls.pause_claims(on)

    async def ended(self) -> None:
        """Wait until it has stopped."""
        if self._task is not None and not self._task.done():  # a finished task may belong to an earlier event loop
            await asyncio.wait([self._task])

    async def _live(self) -> None:
        """Work until a stop is requested. After an outage or an unexpected error, pause and start again."""
        failures = 0
        try:
            while not self._stop_requested.is_set():
                try:
                    await self._work()
                    failures = 0
                except (ConfigurationError, SchemaError) as error:
                    self.error = error
                    return
                except Exception as error:  # noqa: BLE001 - boundary: reported, and the worker is started again after a pause
                    failures += 1
                    await self._recover(error, failures)
        except asyncio.CancelledError as error:
            self.error = error
            raise
        finally:
            self.status = Status.STOPPED

    async def _work(self) -> None:
        store: Store[Any] = self._engine.store(self._queue, self._lock_time, self._wait_timeout, self._lease)
        handler = self._make_handler()
        try:
            await store.open()
            self._worker = Worker(store, handler, self._options, events=self._events, clock=self._clock)
            self._worker.controls.pause_claims(self._is_quiet)
            if not self._stop_requested.is_set():
                await self._worker.run()
        finally:
            self._worker = None
            handler.close()
            await store.close()

    async def _recover(self, error: Exception, failures: int) -> None:
        pause = OUTAGE_BACKOFF(failures)
        text = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
        self._events.emit(StoreCallFailed(self.id, "work", text, pause))
        waiting = asyncio.ensure_future(self._stop_requested.wait())
        pausing = asyncio.ensure_future(self._clock.sleep(pause))
        try:
            await asyncio.wait((waiting, pausing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            pausing.cancel()


def _may_claim_ahead(engine: Engine, queue: FlowQueue, count: int) -> bool:
    """Return whether jobs may be claimed before a slot is free.

    Not with a limiter: a claimed job counts in the window of that moment. Not in a single slot where a retry is to run
    before the jobs that wait.
    """
    declared = queue.declared
    retries_at_once = engine.retries_first and declared.max_retries > 0 and declared.backoff is None
    return declared.limiter is None and not (retries_at_once and count == 1)
