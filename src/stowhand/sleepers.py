"""Wake-ups for many waiting callers, each with its own timeout and event loop.

A wake-up is a hint: a surplus one costs an empty claim, a lost one delays a claim by a poll interval. Wake-ups are
counted, so a caller that remembers the count misses none between two waits.
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
        current_loop = _running_loop()
        for future, loop in asleep:
            if loop is current_loop:
                _resolve(future, True)
            else:
                with suppress(RuntimeError):  # the loop was closed while its caller waited
                    loop.call_soon_threadsafe(_resolve, future, True)

    def fail(self, error: Exception) -> None:
        """Raise the error in every waiting caller. Call this on their event loop."""
        for future in self._asleep:
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved: the waiting caller may be cancelled now

    async def wait(self, since: int, timeout: float) -> bool:
        """Return True as soon as ``wakes`` differs from ``since``, False after ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            if self.wakes != since:
                return True
            self._asleep[future] = loop
        timer = self._clock.call_later(timeout, lambda: _resolve(future, False))
        try:
            return await future
        finally:
            timer.cancel()
            with self._lock:
                del self._asleep[future]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _resolve(future: asyncio.Future[bool], was_woken: bool) -> None:
    if not future.done():
        future.set_result(was_woken)
