"""Monitor of a flow: counts and positions of jobs, and sweeps for jobs of lost workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError, StoreError
from stowhand.flows.engine import Engine, Position, QueueCount
from stowhand.jobs.durations import Duration, seconds

INTERVAL_SECONDS = 1.0
DEFAULT_POSITIONS = 100
MAX_SEARCHED_JOBS = 1_000_000
"""Maximum number of jobs of each state that ``position_of`` reads."""


class FlowMonitor:
    """Monitor of a flow. As a routine for ``run_all(flow.monitor)`` it counts and sweeps every second.

    A sweep resets the jobs of lost workers, as every Stowhand worker also does. Run a monitor if only workers of the
    original implementation serve a flow.
    """

    serves = True
    """``run_all`` stops it when the routines that it serves have ended."""

    def __init__(self, engine: Engine, interval: Duration = INTERVAL_SECONDS, clock: Clock | None = None) -> None:
        self.interval = interval
        self._engine, self._clock = engine, clock or SystemClock()
        self._stopping = asyncio.Event()
        self._tick = asyncio.Event()
        self.failures = 0
        """Number of consecutive failed rounds of ``run``."""
        self.reset_jobs = 0
        """Number of jobs of lost workers reset so far."""
        self.on_counts: list[Callable[[Sequence[QueueCount]], None]] = []
        """Functions called after each round of ``run`` with the new counts."""
        self.on_failed_round: list[Callable[[StoreError], None]] = []
        """Functions called after each failed round of ``run`` with its error."""

    @property
    def interval(self) -> float:
        """Interval of the rounds of ``run`` in seconds."""
        return self._interval

    @interval.setter
    def interval(self, value: Duration) -> None:
        try:
            interval_seconds = seconds(value)
        except ValueError as error:
            raise ConfigurationError(f"monitor: interval: {error}") from None
        if not interval_seconds > 0:
            raise ConfigurationError(
                f"monitor: interval: {value!r} is not more than 0; use a number of seconds above 0"
            )
        self._interval = interval_seconds

    async def counts(self) -> Sequence[QueueCount]:
        """Return the number of waiting, processing, delayed and parked jobs of every queue and priority."""
        return await self._engine.counts()

    async def positions(self, queue: str, limit: int = DEFAULT_POSITIONS) -> Sequence[Position]:
        """Return the next jobs of a queue from position 1, its running jobs, and its delayed jobs."""
        self._engine.shape.find_queue(queue)
        if type(limit) is not int or limit < 1:
            raise ConfigurationError(f"limit: got {limit!r}; use a whole number from 1")
        return await self._engine.positions(queue, limit)

    async def position_of(self, queue: str, job_id: str) -> tuple[Position | None, bool]:
        """Return the position of a job in its queue, and whether the whole queue was searched for it."""
        positions = await self.positions(queue, MAX_SEARCHED_JOBS)
        position = next((position for position in positions if position.job_id == job_id), None)
        largest = max(Counter(position.state for position in positions).values(), default=0)
        return position, largest < MAX_SEARCHED_JOBS

    async def sweep(self) -> int:
        """Reset the jobs of lost workers. Return their number."""
        number = await self._engine.sweep()
        self.reset_jobs += number
        return number

    async def run(self) -> None:
        """Sweep and count every ``interval`` seconds until ``stop``. A failed round does not end it."""
        self._stopping.clear()
        await self._engine.open()
        while not self._stopping.is_set():
            try:
                await self.sweep()
                counts = await self.counts()
                self.failures = 0
            except StoreError as error:
                self.failures += 1
                for callback in self.on_failed_round:
                    callback(error)
            else:
                for on_counts in self.on_counts:
                    on_counts(counts)
            timer = self._clock.call_later(self._interval, self._tick.set)
            await self._tick.wait()
            self._tick.clear()
            timer.cancel()

    def stop(self, *, now: bool = False) -> None:
        """Stop ``run`` after the round under way. ``now`` has no effect: a round is short."""
        self._stopping.set()
        self._tick.set()
