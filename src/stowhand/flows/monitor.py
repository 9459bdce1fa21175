"""Watching a flow: how many jobs stand where, in which order, and what dead workers have left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError, StoreError
from stowhand.flows.engine import Engine, Position, QueueCount
from stowhand.jobs.durations import seconds

INTERVAL = 1.0
POSITIONS = 100


class FlowMonitor:
    """Looks when asked; and, as a routine for ``run_all(flow.monitor)``, every second.

    A look also returns what dead workers have left, as every worker of ours does by itself: where only workers of the
    original serve a flow, run one of these.
    """

    serves = True

    def __init__(self, engine: Engine, interval: float | timedelta = INTERVAL, clock: Clock | None = None) -> None:
        self.interval = interval
        self._engine, self._clock = engine, clock or SystemClock()
        self._stopping = asyncio.Event()
        self._tick = asyncio.Event()
        self.failures = 0
        """Looks that failed, one after the other."""
        self.returned = 0
        """Jobs that it has taken back from dead workers so far."""
        self.on_look: list[Callable[[Sequence[QueueCount]], None]] = []
        """Told what each look of ``run`` has counted."""
        self.on_trouble: list[Callable[[StoreError], None]] = []
        """Told why a look of ``run`` has failed."""

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return self._interval

    @interval.setter
    def interval(self, given: float | timedelta) -> None:
        every = seconds(given)
        if not every > 0:
            raise ConfigurationError(f"monitor: an interval of {given!r}; give more than 0 s, or a timedelta")
        self._interval = every

    async def counts(self) -> Sequence[QueueCount]:
        """Waiting, processing, delayed and parked jobs of every queue, by priority."""
        return await self._engine.counts()

    async def positions(self, queue: str, limit: int = POSITIONS) -> Sequence[Position]:
        """Who is next in a queue, from 1; with those that run, and those that are delayed."""
        self._engine.shape.find_queue(queue)
        if type(limit) is not int or limit < 1:
            raise ConfigurationError(f"limit: {limit!r} given; give a whole number from 1")
        return await self._engine.positions(queue, limit)

    async def sweep(self) -> int:
        """Return what dead workers have left; how many jobs that were."""
        returned = await self._engine.sweep()
        self.returned += returned
        return returned

    async def run(self) -> None:
        """Look every ``interval`` seconds until ``stop``. An outage is waited out."""
        self._stopping.clear()
        await self._engine.open()
        while not self._stopping.is_set():
            try:
                await self.sweep()
                found = await self.counts()
                self.failures = 0
            except StoreError as error:
                self.failures += 1
                for heard in self.on_trouble:
                    heard(error)
            else:
                for told in self.on_look:
                    told(found)
            timer = self._clock.call_later(self._interval, self._tick.set)
            await self._tick.wait()
            self._tick.clear()
            timer.cancel()

    def stop(self, *, now: bool = False) -> None:
        """End soon."""
        self._stopping.set()
        self._tick.set()
