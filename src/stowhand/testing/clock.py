"""Virtual time: an hour of leases, retries and beats passes in a millisecond, always in the same order."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from stowhand.clock import LAST_TICK, Clock, OnEnd, Rounds, SystemClock, Tick, nothing, stopwatch, wall_clock
from stowhand.jobs.durations import Duration
from stowhand.jobs.durations import seconds as in_seconds

START = datetime(2030, 1, 1, tzinfo=UTC)
"""The wall time of a new fake clock."""

REST_ROUNDS = 3
"""The loop is at rest when nothing was ready in so many rounds: an event of a pipe or a thread may take one."""

MOST_ROUNDS = 20_000
"""A loop that is still busy after so many rounds is spinning: an error is better than a test that hangs."""


class FakeClock:
    """A ``Clock`` that stands still until ``advance`` moves it.

    Stores use it as their clock: ``MemoryStore(clock)``, ``StoreOptions(pinned=clock.now)``.
    """

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, FakeTimer]] = []

    async def advance(self, seconds: Duration = 0.0) -> None:
        """Move time from timer to timer; after each one let everything run to its next wait. A phrase will do: "5m"."""
        span = in_seconds(seconds)
        if span < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        target = self._elapsed + span
        await self.settle()
        while self._timers and self._timers[0][0] <= target:
            self._elapsed = max(self._elapsed, self._timers[0][0])
            self._fire_due()
            await self.settle()
        self._elapsed = target
        await self.settle()

    async def settle(self) -> None:
        """Let the loop run, without moving time, until nothing on it is ready.

        A coroutine that waits for a real thread or a socket is not ready: wait for that by other means.
        """
        ready = getattr(asyncio.get_running_loop(), "_ready", None)
        at_rest = 0
        for _ in range(MOST_ROUNDS):
            await asyncio.sleep(0)
            # While this task runs, whatever else the loop could run is in its ready queue.
            at_rest = at_rest + 1 if not ready else 0
            if at_rest >= (REST_ROUNDS if ready is not None else 200):
                return
        raise RuntimeError("the event loop does not come to rest: something calls itself without waiting")

    def monotonic(self) -> float:
        return self._elapsed

    def now(self) -> datetime:
        """The wall time: the start, plus what has passed."""
        return self._start + timedelta(seconds=self._elapsed)

    def pinned(self) -> datetime:
        return self.now()

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if awake.done() else awake.set_result(None))
        try:
            await awake
        finally:
            timer.cancel()

    def call_later(self, seconds: float, call: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(call)
        if seconds <= 0:
            asyncio.get_running_loop().call_soon(timer.fire)
        else:
            heapq.heappush(self._timers, (self._elapsed + seconds, next(self._order), timer))
        return timer

    def ticker(self, name: str, *ticks: Tick, on_end: OnEnd = nothing) -> FakeTicker:
        return FakeTicker(self, ticks, on_end)

    def _fire_due(self) -> None:
        while self._timers and self._timers[0][0] <= self._elapsed:
            heapq.heappop(self._timers)[2].fire()


class ManualClock(SystemClock):
    """A clock for a store: its time stands still until it is moved. Waits and limits of a worker are in real time."""

    def __init__(self, start: datetime | None = None) -> None:
        """``start``: ``None``: the machine's wall time."""
        self._began, self._moved = stopwatch(), timedelta(0)
        self._start = self._now = start or wall_clock()

    def now(self) -> datetime:
        """The wall time at which it stands."""
        return self._now

    def pinned(self) -> datetime:
        return self._now

    def real(self) -> datetime:
        """What it would show, had it not stood still: its start, what it was moved on purpose, and the real time."""
        return self._start + self._moved + timedelta(seconds=stopwatch() - self._began)

    def move(self, until: datetime, *, on_purpose: bool) -> None:
        """To that moment, if it is later. ``on_purpose``: beyond the real time."""
        if until > self._now:
            self._moved += until - self._now if on_purpose else timedelta(0)
            self._now = until

    def ticker(self, name: str, *ticks: Tick, on_end: OnEnd = nothing) -> FakeTicker:
        return FakeTicker(self, ticks, on_end)


class FakeTimer:
    """Fires once, unless it was cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self._call = None

    def fire(self) -> None:
        """Call it, unless it was cancelled."""
        call, self._call = self._call, None
        if call is not None:
            call()


class FakeTicker:
    """Calls on the test's own loop. In virtual time ``settle`` has ended every call that waits for nothing real."""

    def __init__(self, clock: Clock, ticks: Sequence[Tick], on_end: OnEnd) -> None:
        self._rounds = Rounds(clock, ticks, on_end)
        self._loop = asyncio.get_running_loop()
        self._running = self._loop.create_task(self._rounds.run())

    @property
    def is_over(self) -> bool:
        return self._running.done()

    def poke(self) -> None:
        self._loop.call_soon_threadsafe(self._rounds.poke)

    def stop(self, patience: float = LAST_TICK) -> None:
        """Call them no more. On the test's loop."""
        self._rounds.stop(patience)

    async def ended(self) -> None:
        await asyncio.wait((self._running,))
        if not self._running.cancelled():
            self._running.result()
