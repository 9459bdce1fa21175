"""The open stores of an App, one per event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stowhand.app.start import open_installed
from stowhand.protocols.queue_store import QueueStore


class LoopStores:
    """Makes and opens one store per event loop.

    ``traced`` wraps each store before it opens. ``make_to_read`` makes the stores of ``reader``; without it ``reader``
    is this object.
    """

    def __init__(
        self,
        make: Callable[[], QueueStore],
        traced: Callable[[QueueStore], QueueStore],
        make_to_read: Callable[[], QueueStore] | None = None,
    ) -> None:
        self._make = make
        self._traced = traced
        self.reader = self if make_to_read is None else LoopStores(make_to_read, traced)
        self._stores: dict[asyncio.AbstractEventLoop, asyncio.Task[QueueStore]] = {}
        self._unconnected: QueueStore | None = None

    async def open(self, *, install: bool = False) -> QueueStore:
        """Connect on this event loop, if not connected yet. ``install``: whether an absent schema is installed."""
        loop = asyncio.get_running_loop()
        opening = self._stores.get(loop)
        if opening is None:
            for closed_loop in [other_loop for other_loop in self._stores if other_loop.is_closed()]:
                del self._stores[closed_loop]
            opening = self._stores[loop] = loop.create_task(self._connect(install=install))
        elif opening.done() and not opening.cancelled() and opening.exception() is None:
            return opening.result()
        try:
            # Shielded: other tasks may wait for the same connection.
            return await asyncio.shield(opening)
        finally:
            if opening.done() and (opening.cancelled() or opening.exception() is not None):
                self._stores.pop(loop, None)

    def opened(self) -> QueueStore | None:
        """Return the store of this event loop; ``None`` if it is not open yet."""
        opening = self._stores.get(asyncio.get_running_loop())
        return opening.result() if opening is not None and opening.done() else None

    def any_store(self) -> QueueStore:
        """Return a store that need not be open, for calls on the caller's connection."""
        if self._unconnected is None:
            self._unconnected = self._make()
        return self._unconnected

    def forget_any_store(self) -> None:
        """Make a new store at the next call, because the factory returns other stores from now on."""
        self._unconnected = None

    async def close(self) -> None:
        """Close the connections of this event loop. Idempotent."""
        if self.reader is not self:
            await self.reader.close()
        opening = self._stores.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await (await opening).close()

    async def _connect(self, *, install: bool) -> QueueStore:
        store = self._traced(self._make())
        try:
            await (open_installed(store) if install else store.open())
        except BaseException:
            await store.close()  # some connections may be open already
            raise
        return store
