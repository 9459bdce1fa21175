"""A wake-up for many waiting callers, each with its own timeout and event loop.

A wake-up is a hint: a surplus one costs an empty claim, a lost one a poll interval. Wake-ups are counted, so a caller
that remembers the count misses none between two waits.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from stowhand.clock import Clock


class Sleepers:
    """Waiting callers. ``wakes`` counts the wake-ups."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asleep: dict[asyncio.Future[bool], asyncio.AbstractEventLoop] = {}
        self.wakes = 0

    def __len__(self) -> int:
        """Return the number of waiting callers."""
        return len(self._asleep)

    def wake(self) -> None:
        """End every wait. Thread-safe."""
        with self._lock:
            self.wakes += 1
            asleep = list(self._asleep.items())
        here = _running_loop()
        for woken, loop in asleep:
            if loop is here:
                _answer(woken, True)
            else:
                with suppress(RuntimeError):  # its loop was closed while it waited
                    loop.call_soon_threadsafe(_answer, woken, True)

    def fail(self, error: Exception) -> None:
        """Raise the error in every waiting caller. Call this on their event loop."""
        for woken in self._asleep:
            if not woken.done():
                woken.set_exception(error)
                woken.exception()  # marks it as retrieved: the waiting caller may be cancelled now

    async def wait(self, since: int, timeout: float) -> bool:
        """Return True as soon as ``wakes`` differs from ``since``, False after ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            if self.wakes != since:
                return True
            self._asleep[woken] = loop
        timer = self._clock.call_later(timeout, lambda: _answer(woken, False))
        try:
            return await woken
        finally:
            timer.cancel()
            with self._lock:
                del self._asleep[woken]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _answer(woken: asyncio.Future[bool], has_woken: bool) -> None:
    if not woken.done():
        woken.set_result(has_woken)
