"""What changes inside one worker, on its loop: the one object on which its parts signal each other.

    look_again   a slot is free, something is recorded, an attempt ended: no reason to ask an empty store again
    wake         the store may have work; ``wakes`` grows, so that "woken while I asked" is seen

One event carries both. What a signal means is seen in the state of the parts, by its reader, after it wakes: the
claimer, and after the claimer's end the worker's stop; never both. On the loop only: another thread comes in by
``from_thread``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stowhand.clock import Clock

NEVER = float("inf")


class Changes:
    """Of one worker. ``asks_handler``: it has a ``pre_claim``, whose answer may change with every attempt."""

    def __init__(self, clock: Clock, *, asks_handler: bool) -> None:
        self._clock = clock
        self._asks_handler = asks_handler
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()
        self.wakes = 0
        """How often the store was said to have work."""
        self.count = 0
        """How often anything changed, wake-ups included."""

    def open(self) -> None:
        """The running loop is the worker's."""
        self._loop = asyncio.get_running_loop()

    def from_thread(self, call: Callable[..., None], *args: object) -> None:
        """Call it on the worker's loop."""
        with suppress(RuntimeError):  # a last tick may outlive the loop; nothing depends on it then
            assert self._loop is not None
            self._loop.call_soon_threadsafe(call, *args)

    def look_again(self) -> None:
        """Something changed in this worker."""
        self.count += 1
        self._event.set()

    def wake(self) -> None:
        """The store may have work."""
        self.wakes += 1
        self.look_again()

    def recount(self) -> None:
        """An attempt was prepared, has ended or has left its slot, which a ``pre_claim`` may count: ask it again."""
        if self._asks_handler:
            self.wake()

    async def since(self, count: int, within: float = NEVER) -> bool:
        """Wait until anything has changed since ``count`` was read, or for so many seconds. False: the time is over."""
        return await self.until(lambda: self.count != count, within)

    async def until(self, reached: Callable[[], bool], within: float = NEVER) -> bool:
        """Wait until it is reached, or for so many seconds. False: the time is over."""
        if reached():
            return True
        is_late = within <= 0

        def end() -> None:
            nonlocal is_late
            is_late = True
            self._event.set()

        timer = None if is_late or within == NEVER else self._clock.call_later(within, end)
        try:
            while not (is_late or reached()):
                self._event.clear()
                await self._event.wait()
        finally:
            if timer is not None:
                timer.cancel()
        return not is_late
