"""A store's heartbeats on a loop in a thread of its own, called from another loop: a call may block its thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from stowhand.clock import SystemClock, Ticker
from stowhand.errors import StoreUnreachable
from stowhand.protocols.store import Heartbeats

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds that a caller waits, including the calls queued before it."""
CROWD = 500
"""Calls that may wait for the thread; more are refused."""
IDLE = 3600.0
"""Seconds until the next look for calls, which a call cuts short."""


class HeartbeatThread:
    """Executes one call after the other. The thread starts with the first."""

    def __init__(self, name: str, make: Callable[[], Heartbeats]) -> None:
        self._name = name
        self._make = make
        self._heartbeats: Heartbeats | None = None
        self._calls: SimpleQueue[tuple[Callable[[Heartbeats], Awaitable[Any]], Future[Any]]] = SimpleQueue()
        self._waiting = 0
        self._ticker: Ticker | None = None

    async def call(self, action: Callable[[Heartbeats], Awaitable[T]]) -> T:
        """Execute ``action`` in the thread. Raises StoreUnreachable, also when it takes too long."""
        if self._waiting >= CROWD:
            raise StoreUnreachable("too many calls wait for the store")
        answer: Future[T] = Future()
        self._calls.put((action, answer))
        if self._ticker is None:
            self._ticker = SystemClock().ticker(self._name, self._execute, on_end=self._close)
        self._ticker.poke()
        self._waiting += 1
        try:
            async with asyncio.timeout(PATIENCE):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise StoreUnreachable("the store does not answer in time") from None
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Close the connection and end the thread; a call that hangs is cancelled after two seconds."""
        ticker, self._ticker = self._ticker, None
        if ticker is not None:
            ticker.stop()
            await ticker.ended()

    async def _execute(self) -> float:
        while not self._calls.empty():
            action, answer = self._calls.get()
            if not answer.set_running_or_notify_cancel():
                continue  # its caller waits no more
            try:
                heartbeats = self._heartbeats = self._heartbeats or self._make()
                answer.set_result(await action(heartbeats))
                heartbeats.refused()  # drop the reports: a resetter or the workers report them
            except Exception as error:  # noqa: BLE001 - boundary: raised again where the call was made
                answer.set_exception(error)
            except asyncio.CancelledError:
                answer.set_exception(StoreUnreachable("the store is being closed"))
                raise
        return IDLE

    async def _close(self) -> None:
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            await heartbeats.close()
