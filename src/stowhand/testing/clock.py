"""Virtual time for tests: an hour of leases, retries and heartbeats passes in a millisecond, in a fixed order."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from stowhand.clock import (
    STOP_TIMEOUT_SECONDS,
    Clock,
    OnEnd,
    Rounds,
    SystemClock,
    Tick,
    do_nothing,
    stopwatch,
    wall_clock,
)
from stowhand.jobs.durations import Duration
from stowhand.jobs.durations import seconds as in_seconds

START = datetime(2030, 1, 1, tzinfo=UTC)
"""The initial wall time of a fake clock."""

IDLE_ROUNDS = 3
"""Rounds without a ready callback after which the loop is idle. An event of a pipe or a thread may take one round."""

MAX_ROUNDS = 20_000
"""Rounds after which a busy loop raises an error, because a test would hang otherwise."""


class FakeClock:
    """A clock that does not move until ``advance`` is called, for stores and workers in tests.

        clock = FakeClock()
        store = MemoryStore(clock)  # other stores: StoreOptions(pinned=clock.now)
        await clock.advance("5m")

    Args:
        start: The initial wall time; by default 2030-01-01 UTC.

    """

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._timer_numbers = itertools.count()
        self._timers: list[tuple[float, int, FakeTimer]] = []

    async def advance(self, seconds: Duration = 0.0) -> None:
        """Move time forward from timer to timer, and run the loop until it is idle after each timer.

        Args:
            seconds: Seconds, a timedelta or a phrase ("5m").

        Raises:
            ValueError: The duration is negative.
            RuntimeError: The event loop does not become idle.

        """
        span = in_seconds(seconds)
        if span < 0:
            raise ValueError(f"advance({seconds}): time does not go back; use 0 or more")
        target = self._elapsed + span
        await self.settle()
        while self._timers and self._timers[0][0] <= target:
            self._elapsed = max(self._elapsed, self._timers[0][0])
            self._fire_due()
            await self.settle()
        self._elapsed = target
        await self.settle()

    async def settle(self) -> None:
        """Run the loop without moving time, until no callback is ready.

        A coroutine that waits for a real thread or a socket is not ready; wait for it by other means.
        """
        ready = getattr(asyncio.get_running_loop(), "_ready", None)
        idle_rounds = 0
        for _ in range(MAX_ROUNDS):
            await asyncio.sleep(0)
            # While this task runs, everything else that the loop could run is in its ready queue.
            idle_rounds = idle_rounds + 1 if not ready else 0
            if idle_rounds >= (IDLE_ROUNDS if ready is not None else 200):
                return
        raise RuntimeError("the event loop does not become idle: a callback schedules itself without waiting")

    def monotonic(self) -> float:
        return self._elapsed

    def now(self) -> datetime:
        """Return the wall time: the start plus the elapsed time."""
        return self._start + timedelta(seconds=self._elapsed)

    def pinned(self) -> datetime:
        return self.now()

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if future.done() else future.set_result(None))
        try:
            await future
        finally:
            timer.cancel()

    def call_later(self, seconds: float, call: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(call)
        if seconds <= 0:
            asyncio.get_running_loop().call_soon(timer.fire)
        else:
            heapq.heappush(self._timers, (self._elapsed + seconds, next(self._timer_numbers), timer))
        return timer

    def ticker(self, name: str, *ticks: Tick, on_end: OnEnd = do_nothing) -> FakeTicker:
        return FakeTicker(self, ticks, on_end)

    def _fire_due(self) -> None:
        while self._timers and self._timers[0][0] <= self._elapsed:
            heapq.heappop(self._timers)[2].fire()


class ManualClock(SystemClock):
    """A clock for a store that does not move until ``move`` is called. Waits and limits of a worker are real time."""

    def __init__(self, start: datetime | None = None) -> None:
        """``start``: the initial time; ``None`` means the wall time of the machine."""
        self._started_at, self._moved = stopwatch(), timedelta(0)
        self._start = self._now = start or wall_clock()

    def now(self) -> datetime:
        """Return the current wall time of this clock."""
        return self._now

    def pinned(self) -> datetime:
        return self._now

    def real(self) -> datetime:
        """Return the time of a running clock: the start, plus all advances, plus the real elapsed time."""
        return self._start + self._moved + timedelta(seconds=stopwatch() - self._started_at)

    def move(self, until: datetime, *, is_advance: bool) -> None:
        """Move to a later time. ``is_advance``: whether a test asked for it, beyond the real time."""
        if until > self._now:
            self._moved += until - self._now if is_advance else timedelta(0)
            self._now = until

    def ticker(self, name: str, *ticks: Tick, on_end: OnEnd = do_nothing) -> FakeTicker:
        return FakeTicker(self, ticks, on_end)


class FakeTimer:
    """Timer that fires once, unless it is cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self._call = None

    def fire(self) -> None:
        """Call the function, unless the timer was cancelled."""
        call, self._call = self._call, None
        if call is not None:
            call()


class FakeTicker:
    """Ticker on the test's own loop. In virtual time ``settle`` finishes every call that waits for nothing real."""

    def __init__(self, clock: Clock, ticks: Sequence[Tick], on_end: OnEnd) -> None:
        self._rounds = Rounds(clock, ticks, on_end)
        self._loop = asyncio.get_running_loop()
        self._running = self._loop.create_task(self._rounds.run())

    @property
    def is_over(self) -> bool:
        return self._running.done()

    def poke(self) -> None:
        self._loop.call_soon_threadsafe(self._rounds.poke)

    def stop(self, timeout: float = STOP_TIMEOUT_SECONDS) -> None:
        """Stop the calls. On the test's loop."""
        self._rounds.stop(timeout)

    async def ended(self) -> None:
        await asyncio.wait((self._running,))
        if not self._running.cancelled():
            self._running.result()
