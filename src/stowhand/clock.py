"""The only door to time. Nothing else may read a clock, sleep, or start a timer.

Leases and run times are judged by the store's own clock; what this module gives is the worker's monotonic time
(local deadlines, rates, waits) and, in tests, a pinned wall time that stores accept instead of their own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Cancelable(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Do not fire. No effect after it has fired."""


class Ticker(Protocol):
    """A function called again and again, by a thread of its own in production."""

    def poke(self) -> None:
        """Call it now, before its next time. From any thread."""

    def stop(self) -> None:
        """Call it no more; returns when a running call has ended (at most two seconds)."""


class Clock(Protocol):
    """Monotonic time, sleeping and timers."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""

    def call_later(self, seconds: float, call: Callable[[], None]) -> Cancelable:
        """Call it from the running loop after so many seconds."""

    def ticker(self, name: str, tick: Callable[[], float]) -> Ticker:
        """Start calling ``tick``; it returns the seconds until the next call."""

    def pinned(self) -> datetime | None:
        """The frozen wall time of a test; ``None`` in production, where the store's own clock counts."""


class SystemClock:
    """Real time."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Cancelable:
        return asyncio.get_running_loop().call_later(seconds, call)

    def ticker(self, name: str, tick: Callable[[], float]) -> Ticker:
        return ThreadTicker(name, tick)

    def pinned(self) -> datetime | None:
        return None


class ThreadTicker:
    """A thread that calls ``tick``, sleeps for the seconds that it returned, and can be woken by ``poke``."""

    def __init__(self, name: str, tick: Callable[[], float]) -> None:
        self._tick = tick
        self._poked = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def poke(self) -> None:
        self._poked.set()

    def stop(self) -> None:
        self._stopped = True
        self._poked.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self._stopped:
            self._poked.clear()
            self._poked.wait(self._tick())


def sleep_blocking(seconds: float) -> None:
    """Sleep in a thread that is not the loop's (a store's retry after a busy file, a supervisor's poll)."""
    time.sleep(seconds)


def stopwatch() -> float:
    """Seconds for measuring how long something took; the finest clock there is."""
    return time.perf_counter()


def wall_clock() -> datetime:
    """The machine's wall time, in UTC: for run times and for what people read. Never for leases."""
    return datetime.now(UTC)


def wall_nanoseconds() -> int:
    """The wall time in nanoseconds since 1970, for traces."""
    return time.time_ns()
