"""The only access to time. Nothing else may read a clock, sleep, or start a timer.

Leases and run times follow the store's own clock. This module provides the worker's monotonic time (local deadlines,
rates, waits) and, in tests, a pinned wall time that stores use instead of their own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

STOP_TIMEOUT_SECONDS = 1.5
"""Time for a ticker's running calls to finish when the ticker stops."""
END_TIMEOUT_SECONDS = 0.5
"""Time for cancelled calls, and then ``on_end``, to finish."""
CANCELLED_TICK_DELAY_SECONDS = 1.5
"""Delay before the next call of a function that was cancelled by its driver."""


class Cancelable(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Do not fire. No effect after it has fired."""


Tick = Callable[[], Awaitable[float]]
"""Returns the seconds until its next call."""


OnEnd = Callable[[], Awaitable[None]]


async def do_nothing() -> None:
    """Do nothing. The default of ``on_end``."""


class Ticker(Protocol):
    """A caller of repeated functions, each with its own intervals; in production on an event loop in a thread."""

    @property
    def is_over(self) -> bool:
        """True once the ticker has ended, after ``stop`` or an error. Thread-safe."""

    def poke(self) -> None:
        """Call the functions now. Thread-safe."""

    def stop(self, timeout: float = STOP_TIMEOUT_SECONDS) -> None:
        """Stop calling. A running call is cancelled after ``timeout`` seconds. Thread-safe."""

    async def ended(self) -> None:
        """Wait for the end after ``stop``, at most its timeout and a second. Call it from any loop.

        Raises the error of a function or of ``on_end`` that ended the ticker.
        """


class Clock(Protocol):
    """Monotonic time, sleeping and timers."""

    def monotonic(self) -> float:
        """Return monotonic seconds."""

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""

    def call_later(self, seconds: float, call: Callable[[], None]) -> Cancelable:
        """Call a function on the running loop after ``seconds``."""

    def ticker(self, name: str, *ticks: Tick, on_end: OnEnd = do_nothing) -> Ticker:
        """Start calling ``ticks``. ``on_end`` is called on their loop after the last call."""

    def pinned(self) -> datetime | None:
        """Return the frozen wall time of a test; ``None`` in production."""


class SystemClock:
    """The clock of the machine."""

    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Cancelable:
        return asyncio.get_running_loop().call_later(seconds, call)

    def ticker(self, name: str, *ticks: Tick, on_end: OnEnd = do_nothing) -> Ticker:
        return ThreadTicker(name, ticks, on_end)

    def pinned(self) -> datetime | None:
        return None


class Rounds:
    """The calls of a ticker, on the running loop; each function is called again after the seconds that it returned."""

    def __init__(self, clock: Clock, ticks: Sequence[Tick], on_end: OnEnd) -> None:
        self._clock = clock
        self._ticks = [(tick, asyncio.Event()) for tick in ticks]
        self._on_end = on_end
        self._stopped = asyncio.Event()
        self._timeout = STOP_TIMEOUT_SECONDS

    def poke(self) -> None:
        for _, poked in self._ticks:
            poked.set()

    def stop(self, timeout: float) -> None:
        self._timeout = timeout
        self._stopped.set()
        self.poke()

    async def run(self) -> None:
        """Call the functions until stopped. Raise a function's error after the others have ended."""
        stopped = asyncio.ensure_future(self._stopped.wait())
        rounds = [asyncio.ensure_future(self._repeat(tick, poked)) for tick, poked in self._ticks]
        try:
            await asyncio.wait((stopped, *rounds), return_when=asyncio.FIRST_COMPLETED)
            self.stop(self._timeout)
            await asyncio.wait(rounds, timeout=self._timeout)
        finally:
            self.stop(self._timeout)  # before cancelling, so that a cancelled call is not repeated
            for _ in range(2):  # a driver that is cancelled may wait for the store to cancel too
                for task in (stopped, *rounds):
                    task.cancel()
                await asyncio.wait(rounds, timeout=END_TIMEOUT_SECONDS / 2)
            try:
                with suppress(TimeoutError, asyncio.CancelledError):
                    async with asyncio.timeout(END_TIMEOUT_SECONDS / 2):
                        await self._on_end()
            finally:
                for task in rounds:
                    if task.done() and not task.cancelled():
                        task.result()

    async def _repeat(self, tick: Tick, poked: asyncio.Event) -> None:
        while not self._stopped.is_set():
            poked.clear()  # before the call: a poke during the call requests another call
            delay = CANCELLED_TICK_DELAY_SECONDS
            with suppress(asyncio.CancelledError):  # a driver may raise it although the ticker is not stopped
                delay = await tick()
            timer = self._clock.call_later(delay, poked.set)
            await poked.wait()
            timer.cancel()


class ThreadTicker:
    """A ticker on an event loop in its own thread.

    A call that blocks the thread cannot be cancelled; the thread ends after it.
    """

    def __init__(self, name: str, ticks: Sequence[Tick], on_end: OnEnd) -> None:
        self._rounds = Rounds(SystemClock(), ticks, on_end)
        self._timeout = 0.0
        self._loop = asyncio.new_event_loop()
        self._over: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return self._over.done()

    def poke(self) -> None:
        self._call(self._rounds.poke)

    def stop(self, timeout: float = STOP_TIMEOUT_SECONDS) -> None:
        self._timeout = timeout
        self._call(lambda: self._rounds.stop(timeout))

    async def ended(self) -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def on_over(_: Future[None]) -> None:
            with suppress(RuntimeError):  # the waiting loop is closed
                loop.call_soon_threadsafe(over.set)

        self._over.add_done_callback(on_over)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout + 2 * END_TIMEOUT_SECONDS):
                await over.wait()
                self._thread.join()
        if self.is_over:
            self._over.result()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._rounds.run())
        except BaseException as error:  # noqa: BLE001 - boundary: the top of the thread; ``ended`` raises it
            self._over.set_exception(error)
        else:
            self._over.set_result(None)

    def _call(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the ticker has ended: its loop is closed
            self._loop.call_soon_threadsafe(call)


sleep_blocking = time.sleep
"""Sleep in a thread that is not the loop's (a store's retry after a busy file, a supervisor's poll)."""

stopwatch = time.perf_counter
"""Seconds of the clock with the highest resolution, for measuring durations."""

wall_nanoseconds = time.time_ns
"""The wall time in nanoseconds since 1970, for traces."""


def wall_clock() -> datetime:
    """Return the machine's wall time in UTC, for run times and for people. Never use it for leases."""
    return datetime.now(UTC)
