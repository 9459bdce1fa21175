"""The lent store's heartbeats, which block, in a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from stowhand.errors import StoreUnreachable
from stowhand.protocols.store import Heartbeats, Store

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds that a client waits for its call, including those queued before it."""
CROWD = 500
"""Calls that may wait for the thread; more are refused."""


class HeartbeatThread:
    """Executes one call after the other."""

    def __init__(self, store: Store[Any]) -> None:
        self._store = store
        self._heartbeats: Heartbeats | None = None
        self._waiting = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stowhand lending heartbeats")

    async def call(self, action: Callable[[Heartbeats], T]) -> T:
        """Execute ``action`` in the thread. Raises StoreUnreachable, also when it takes too long."""
        if self._waiting >= CROWD:
            raise StoreUnreachable("too many calls wait for the store")
        self._waiting += 1
        try:
            async with asyncio.timeout(PATIENCE):
                return await asyncio.get_running_loop().run_in_executor(self._pool, self._do, action)
        except TimeoutError:
            raise StoreUnreachable("the store does not answer in time") from None
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Close the connection, without waiting for a call that hangs."""
        if self._heartbeats is not None:
            self._pool.submit(self._heartbeats.close)
        self._pool.shutdown(wait=False, cancel_futures=False)

    def _do(self, action: Callable[[Heartbeats], T]) -> T:
        if self._heartbeats is None:
            self._heartbeats = self._store.heartbeats()
        try:
            return action(self._heartbeats)
        finally:
            self._heartbeats.refused()  # drop the reports: the server's resetter reports them
