"""How many connections of a pool are in use, and the calls that wait for one.

The package's own statements are short, but an application may keep a lent connection for minutes. So one place is
never lent: enqueues of tasks that hold a connection, health checks and the dashboard use it while all others are lent.
"""

from __future__ import annotations

import asyncio
from collections import deque

POOL_ADVICE = (
    "; allow the pool more, or run fewer jobs at once, and let no task wait for a second connection while it holds one"
)
"""Ends the message about a pool whose connections are all in use."""


class Places:
    """The places of one pool, used on one event loop."""

    def __init__(self, size: int) -> None:
        self._size = max(size, 1)
        self._used = 0
        self._lent = 0
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()
        """Waiting calls in order of arrival, as (lent, admitted). No place fits any of them now."""

    @property
    def used(self) -> int:
        """The number of connections in use."""
        return self._used

    @property
    def size(self) -> int:
        """The number of places."""
        return self._size

    @property
    def lendable(self) -> int:
        """The number of places that may be lent: all but one, and the only one of a pool of one."""
        return max(self._size - 1, 1)

    def grow(self, size: int) -> None:
        """Raise the number of places to ``size``."""
        self._size = max(self._size, size)
        self._admit()

    def fits(self, *, lent: bool) -> bool:
        """Return whether there is a place now."""
        return self._used < self._size and not (lent and self._lent >= self.lendable)

    def enter(self, *, lent: bool) -> None:
        """Take a free place."""
        self._used += 1
        self._lent += lent

    async def wait(self, *, lent: bool) -> None:
        """Take a place as soon as there is one. A cancelled call takes none."""
        waiter = lent, asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            if waiter[1].cancelled():
                self._waiting.remove(waiter)
            else:
                self.leave(lent=lent)
            raise

    def leave(self, *, lent: bool) -> None:
        """Give the place to the call that has waited longest for one of its kind."""
        self._used -= 1
        self._lent -= lent
        self._admit()

    def _admit(self) -> None:
        for waiter in tuple(self._waiting):
            lent, admitted = waiter
            if self._used >= self._size:
                return
            if self.fits(lent=lent) and not admitted.done():
                self._waiting.remove(waiter)
                self.enter(lent=lent)
                admitted.set_result(None)
