"""Wakes sleeping workers after the commits of jobs instead of in them: a NOTIFY takes a lock that all commits share.

One transaction for all jobs committed since the last one. It asks whether a worker sleeps when they are committed, so
one that falls asleep later sees them itself. A wake-up that is lost, with this process or with its connection, costs a
poll interval, as every lost notification does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context

import psycopg

from stowhand.clock import Clock
from stowhand.errors import StoreError

PAUSE = 0.02
"""Seconds from one wake-up to the next."""
LAST = 5.0
"""Seconds that closing waits for the last wake-up."""


class LateWaker:
    """Of one store. ``notify``: a transaction that wakes whoever sleeps."""

    def __init__(self, notify: Callable[[], Awaitable[object]], clock: Clock) -> None:
        self._notify = notify
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._due = False

    def wake(self) -> None:
        """Jobs have been committed."""
        self._due = True
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            # In a context of its own: it is no part of the attempt that enqueued.
            self._task = loop.create_task(self._run(), name="stowhand wake-ups", context=Context())

    async def close(self) -> None:
        """After the last wake-up, or after LAST seconds."""
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([task], timeout=LAST)
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while self._due:
            self._due = False
            with suppress(psycopg.Error, StoreError, TimeoutError):  # polls find what it was about
                await self._notify()
            await self._clock.sleep(PAUSE)
