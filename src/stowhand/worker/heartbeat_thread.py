"""Calls of a store's heartbeats on a loop in a separate thread, because a call may block the thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from stowhand.clock import SystemClock, Ticker
from stowhand.errors import StoreError, StoreUnreachable
from stowhand.protocols.store import Heartbeats

T = TypeVar("T")
CALL_TIMEOUT_SECONDS = 20.0
"""Time limit of a call, including its wait for the calls before it."""
MAX_WAITING_CALLS = 500
"""Number of calls that may wait for the thread; more are refused."""
IDLE_TICK_SECONDS = 3600.0
"""Interval of the thread's tick without calls; a call starts the tick at once."""

CLOSING_MESSAGE = "the store is being closed"


class HeartbeatThread:
    """Thread that executes one call after the other. It starts with the first call."""

    def __init__(self, name: str, make: Callable[[], Heartbeats]) -> None:
        self._name = name
        self._make_heartbeats = make
        self._heartbeats: Heartbeats | None = None
        self._calls: SimpleQueue[tuple[Callable[[Heartbeats], Awaitable[Any]], Future[Any]]] = SimpleQueue()
        self._waiting = 0
        self._ticker: Ticker | None = None
        self._closing = False

    async def call(self, action: Callable[[Heartbeats], Awaitable[T]]) -> T:
        """Execute ``action`` in the thread. Raises StoreUnreachable, also on timeout."""
        if self._waiting >= MAX_WAITING_CALLS:
            raise StoreUnreachable("too many calls wait for the store")
        if self._closing:
            raise StoreUnreachable(CLOSING_MESSAGE)
        reply: Future[T] = Future()
        self._calls.put((action, reply))
        if self._ticker is None or self._ticker.is_over:
            self._ticker = SystemClock().ticker(self._name, self._execute, on_end=self._close)
        self._ticker.poke()
        self._waiting += 1
        try:
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                return await asyncio.wrap_future(reply)
        except TimeoutError:
            raise StoreUnreachable("the store does not answer in time") from None
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Close the connection and end the thread. Waiting calls fail; after two seconds a hanging one does too."""
        ticker, self._ticker = self._ticker, None
        if ticker is None:
            return
        self._closing = True
        try:
            ticker.stop()
            with suppress(Empty):
                while True:
                    _, reply = self._calls.get_nowait()
                    if reply.set_running_or_notify_cancel():
                        reply.set_exception(StoreUnreachable(CLOSING_MESSAGE))
            with suppress(StoreError):  # an unreachable store has no connection to close
                await ticker.ended()
        finally:
            self._closing = False

    async def _execute(self) -> float:
        with suppress(Empty):  # ``close`` may take a call first
            while True:
                action, reply = self._calls.get_nowait()
                if reply.set_running_or_notify_cancel():  # the caller still waits
                    await self._reply(action, reply)
        return IDLE_TICK_SECONDS

    async def _reply(self, action: Callable[[Heartbeats], Awaitable[Any]], reply: Future[Any]) -> None:
        try:
            self._heartbeats = self._heartbeats or self._make_heartbeats()
            result = await action(self._heartbeats)
        except Exception as error:  # noqa: BLE001 - boundary: raised again where the call was made
            reply.set_exception(error)
        except BaseException as error:
            reply.set_exception(
                StoreUnreachable(CLOSING_MESSAGE if self._closing else "the call was interrupted inside the store")
            )
            if self._closing or not isinstance(error, asyncio.CancelledError):
                raise
        else:
            reply.set_result(result)
        if self._heartbeats is not None:
            with suppress(Exception):  # the call is answered
                self._heartbeats.refused()  # Drop the refusals: a resetter or the workers report them.

    async def _close(self) -> None:
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            await heartbeats.close()
