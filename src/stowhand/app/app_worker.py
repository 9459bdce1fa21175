"""The worker of an App, with the App's recurring items and flows beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from stowhand.clock import stopwatch
from stowhand.cron.scheduler import Scheduler
from stowhand.cron.sources import RecurringWorker
from stowhand.errors import ConfigurationError
from stowhand.events import Events, WorkerStopped
from stowhand.observe.job_logger import core_logger

if TYPE_CHECKING:
    from stowhand.observe.traces import Traces


class AppFlow(Protocol):
    """What an App uses of a ``Flow``, which is defined on a higher floor."""

    events: Events

    @property
    def name(self) -> str:
        """Name of the flow."""

    @property
    def workers(self) -> Sequence[object]:
        """Its workers."""

    def trace(self, traces: Traces) -> None:
        """Create spans for its jobs."""

    def quiet(self, *, on: bool) -> None:
        """Pause the claims of its workers, or resume them."""

    async def open(self) -> None:
        """Connect."""

    async def run(self) -> None:
        """Run its workers until ``stop``. Raises the error that ended one."""

    def stop(self, *, now: bool = False) -> None:
        """Request the end of ``run``; with ``now``, without finishing running jobs."""

    async def close(self) -> None:
        """Close every connection."""


def read_flows(flows: object) -> tuple[AppFlow, ...]:
    """Return the flows of an App. Raises ConfigurationError."""
    items = tuple(flows) if isinstance(flows, Iterable) else (flows,)
    for item in items:
        if isinstance(item, type) or not all(hasattr(item, name) for name in ("workers", "events", "run", "stop")):
            raise ConfigurationError(f"App: flows: got {item!r}; use a list of Flow objects")
    return items


class AppWorker(RecurringWorker):
    """A worker with the flows of its App beside it: they start, pause and stop with it, within its grace."""

    def __init__(
        self, flows: tuple[AppFlow, ...], traces: Traces | None, scheduler: Scheduler | None, *args: Any, **options: Any
    ) -> None:
        super().__init__(scheduler, *args, **options)
        if flows and self.options.once:
            raise ConfigurationError("once: the App has flows, whose workers run until a stop; leave out once")
        for flow in flows:
            if not flow.workers:
                raise ConfigurationError(
                    f"the App's flow {flow.name!r} has no workers; call flow.create_workers(queue, function)"
                )
            if traces is not None:
                flow.trace(traces)
        self._flows = flows
        self._stopped_at: float | None = None
        self.flow_error: BaseException | None = None
        """The first error that ended a flow's worker. ``run`` logs it, stops in order, and raises it."""
        self.has_unfinished_flows = False
        """Whether a function of a flow did not stop, after ``run``."""

    async def run(self) -> None:
        """Run like any worker, and run the flows meanwhile. Raises the error that ended a flow's worker."""
        if not self._flows:
            await super().run()
            return
        running: list[asyncio.Task[None]] = []
        try:
            for flow in self._flows:
                flow.events.on(WorkerStopped, self._note_unfinished)
                await flow.open()
            names = ", ".join(flow.name for flow in self._flows)
            core_logger().info(f"Worker {self.id} also runs the flows of its App: {names}")
            running += [asyncio.create_task(self._run_flow(flow)) for flow in self._flows]
            await super().run()
        finally:
            await self._end_flows(running)
        if self.flow_error is not None:
            raise self.flow_error

    def stop(self, *, now: bool = False) -> None:
        """Stop the worker and the flows."""
        super().stop(now=now)
        self._stop_flows(now=now)

    def _quiet(self, is_quiet: bool) -> None:
        super()._quiet(is_quiet)
        for flow in self._flows:
            flow.quiet(on=is_quiet)

    async def _run_flow(self, flow: AppFlow) -> None:
        if self._stopped_at is not None:
            return
        try:
            await flow.run()
        except Exception as error:  # noqa: BLE001 - boundary: ``run`` raises it once everything has stopped
            self.flow_error = self.flow_error or error
            core_logger().error(f"A worker of flow {flow.name} ended: {type(error).__name__}: {error}")
            self.stop()

    def _stop_flows(self, *, now: bool) -> None:
        if self._stopped_at is None:
            self._stopped_at = stopwatch()
        for flow in self._flows:
            flow.stop(now=now)

    async def _end_flows(self, running: Sequence[asyncio.Task[None]]) -> None:
        """Stop the flows within what remains of this worker's grace, and close them."""
        self._stop_flows(now=False)
        assert self._stopped_at is not None
        if running:
            grace_left = max(0.0, self._stopped_at + self.options.grace - stopwatch())
            _, late = await asyncio.wait(running, timeout=grace_left)
            if late:
                self._stop_flows(now=True)
                await asyncio.wait(late)
        for flow in self._flows:
            await flow.close()

    def _note_unfinished(self, event: WorkerStopped) -> None:
        self.has_unfinished_flows = self.has_unfinished_flows or event.unfinished > 0
