"""What the handler's tasks ask for is opened before the first claim, and closed after the last job."""

from __future__ import annotations

import asyncio

from stowhand.events import HookFailed
from stowhand.jobs.outcomes import describe
from stowhand.protocols.handler import Handler, Resources
from stowhand.worker.basis import Basis
from stowhand.worker.watchdog import LoopWatchdog

NEVER = float("-inf")
LEAST = 1.0
"""Seconds that each has to close, however little of the grace is left."""


def openings_for(handler: Handler, watchdog: LoopWatchdog, basis: Basis) -> Openings | None:
    """``None``: its tasks ask for nothing."""
    resources: Resources | None = getattr(handler, "resources", None)
    return None if resources is None else Openings(resources, watchdog, basis)


class Openings:
    """Of one worker."""

    def __init__(self, resources: Resources, watchdog: LoopWatchdog, basis: Basis) -> None:
        self._resources = resources
        self._watchdog = watchdog
        self.moved = NEVER
        """When it was last seen at it, by the monotonic clock."""
        self._options = basis.options
        self._changes = basis.changes
        self._duty = basis.duty
        self._supervisor = basis.supervisor
        self._events = basis.events
        self._clock = basis.clock
        self._worker = basis.worker

    async def open(self) -> None:
        """Open them. A stop does not wait for it. Raises ResourceUnavailable."""
        opening = asyncio.ensure_future(self._resources.open(self._options.tasks, self._supervisor.report))
        opening.add_done_callback(lambda _: self._changes.look_again())
        try:
            while not (opening.done() or self._duty.is_stopping):
                # It may take minutes: the loop runs all the while, though heartbeats have not begun.
                self._watchdog.alive()
                self.moved = self._clock.monotonic()
                await self._changes.until(lambda: opening.done() or self._duty.is_stopping, self._watchdog.interval)
        finally:
            if not opening.done():
                opening.cancel()
                await asyncio.wait((opening,))
        if not opening.cancelled():
            opening.result()

    async def close(self) -> None:
        """Close them, however often this is cancelled: it is bounded."""
        closing = asyncio.ensure_future(self._resources.close(self._left))
        canceled = None
        while not closing.done():
            try:
                await asyncio.wait((closing,))
            except asyncio.CancelledError as cancellation:
                canceled = cancellation
        for name, error in closing.result():
            self._events.emit(HookFailed(self._worker, f"close of resource {name}", None, describe(error)))
        if canceled is not None:
            raise canceled

    def _left(self) -> float:
        """Of the grace: seconds."""
        if self._duty.at_once:
            return LEAST
        began = self._duty.stopped_at if self._duty.is_stopping else self._clock.monotonic()
        return max(began + self._options.grace - self._clock.monotonic(), LEAST)
