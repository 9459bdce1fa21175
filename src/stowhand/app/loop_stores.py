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
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[QueueStore]] = {}
        self._open: dict[asyncio.AbstractEventLoop, QueueStore] = {}
        self._unconnected: QueueStore | None = None

    async def open(self, *, install: bool = False) -> QueueStore:
        """Connect on this event loop, if not connected yet. ``install``: whether an absent schema is installed."""
        loop = asyncio.get_running_loop()
        store = self._open.get(loop)
        return await self._open_on(loop, install=install) if store is None else store

    async def _open_on(self, loop: asyncio.AbstractEventLoop, *, install: bool) -> QueueStore:
        opening = self._opening.get(loop)
        if opening is None:
            for closed_loop in [other_loop for other_loop in {**self._open, **self._opening} if other_loop.is_closed()]:
                self._open.pop(closed_loop, None)
                self._opening.pop(closed_loop, None)
            opening = self._opening[loop] = loop.create_task(self._connect(loop, install=install))
            opening.add_done_callback(lambda _: self._opening.pop(loop, None))
        # Shielded: other tasks may wait for the same connection.
        return await asyncio.shield(opening)

    def opened(self) -> QueueStore | None:
        """Return the store of this event loop; ``None`` if it is not open yet."""
        return self._open.get(asyncio.get_running_loop())

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
        loop = asyncio.get_running_loop()
        if (opening := self._opening.get(loop)) is not None:
            await opening
        if (store := self._open.pop(loop, None)) is not None:
            await store.close()

    async def _connect(self, loop: asyncio.AbstractEventLoop, *, install: bool) -> QueueStore:
        store = self._traced(self._make())
        try:
            await (open_installed(store) if install else store.open())
        except BaseException:
            await store.close()  # some connections may be open already
            raise
        self._open[loop] = store
        return store
