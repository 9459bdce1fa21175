"""The connections of a pool that are in use, and the calls that wait for one.

The package's own statements are short, but an application may keep a connection for minutes. So one place is never
given to the application. Enqueues of tasks that hold a connection, health checks and the dashboard use that place.
"""

from __future__ import annotations

import asyncio
from collections import deque

POOL_ADVICE = (
    "; allow the pool more, or run fewer jobs at once, and let no task wait for a second connection while it holds one"
)
"""The end of the message about a pool whose connections are all in use."""


class Places:
    """The places of one pool, used on one event loop."""

    def __init__(self, size: int) -> None:
        self._size = max(size, 1)
        self._used = 0
        self._application_used = 0
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()
        """Waiting calls in order of arrival, as (for_application, admitted). None of them fits now."""

    @property
    def used(self) -> int:
        """The number of connections in use."""
        return self._used

    @property
    def size(self) -> int:
        """The number of places."""
        return self._size

    @property
    def application_size(self) -> int:
        """The number of places for the application: all but one, or the only place of a pool of one."""
        return max(self._size - 1, 1)

    def grow(self, size: int) -> None:
        """Raise the number of places to ``size``."""
        self._size = max(self._size, size)
        self._admit()

    def fits(self, *, for_application: bool) -> bool:
        """Return whether a place is free for this use."""
        return self._used < self._size and not (for_application and self._application_used >= self.application_size)

    def enter(self, *, for_application: bool) -> None:
        """Take a free place."""
        self._used += 1
        if for_application:
            self._application_used += 1

    async def wait(self, *, for_application: bool) -> None:
        """Take a place as soon as one is free. A cancelled call takes none."""
        waiter = for_application, asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            if waiter[1].cancelled():
                self._waiting.remove(waiter)
            else:
                self.leave(for_application=for_application)
            raise

    def leave(self, *, for_application: bool) -> None:
        """Free a place. The call that has waited longest and fits gets it."""
        self._used -= 1
        if for_application:
            self._application_used -= 1
        self._admit()

    def _admit(self) -> None:
        for waiter in tuple(self._waiting):
            for_application, admitted = waiter
            if self._used >= self._size:
                return
            if self.fits(for_application=for_application) and not admitted.done():
                self._waiting.remove(waiter)
                self.enter(for_application=for_application)
                admitted.set_result(None)
