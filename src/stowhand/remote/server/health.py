"""Is the server alive, and can it lend? Asked by balancers, without a token: the answers say little."""

from __future__ import annotations

import asyncio
from typing import Any

from stowhand.clock import Clock
from stowhand.events import Events, StoreTrouble
from stowhand.remote.server.shared_store import QUEUE, SharedStore
from stowhand.remote.server.wake_broadcast import NAME, WakeBroadcast

PATIENCE = 5.0
FRESH = 1.0
"""Seconds for which an answer stands: however often one asks, the store is asked once."""


class Health:
    """Used on the loop."""

    def __init__(self, shared_store: SharedStore, wake_broadcast: WakeBroadcast, events: Events, clock: Clock) -> None:
        self._shared_store, self._wake_broadcast, self._events, self._clock = (
            shared_store,
            wake_broadcast,
            events,
            clock,
        )
        self._asked = float("-inf")
        self._well = False
        self._turn = asyncio.Lock()
        self._resetting: asyncio.Task[None] | None = None

    def watch(self, resetting: asyncio.Task[None]) -> None:
        """This is the resetter."""
        self._resetting = resetting

    def alive(self) -> tuple[bool, dict[str, Any]]:
        """The loops of this process. How long ago the store was heard says whether it answers."""
        resets = self._resetting is not None and not self._resetting.done()
        status = "stopping" if self._wake_broadcast.stopped else "ok" if resets else "the resetter has ended"
        heard = round(self._clock.monotonic() - self._wake_broadcast.looked, 1)
        return status == "ok", {"status": status, "heard_seconds_ago": heard}

    async def ready(self) -> tuple[bool, dict[str, Any]]:
        """The store answers, and its schema fits."""
        async with self._turn:
            if self._clock.monotonic() - self._asked >= FRESH:
                self._well = await self._ask()
                self._asked = self._clock.monotonic()
        well = self._well and not self._wake_broadcast.stopped
        return well, {"status": "ready" if well else "not ready"}

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                if self._shared_store.kind == QUEUE:
                    status = await self._shared_store.queue("asked").status()
                    return status.installed is not None and not status.breaking
                await self._shared_store.store.next_due(None)
                return True
        except Exception as error:  # noqa: BLE001 - boundary: whatever it is, we are not ready; the log says why
            self._events.emit(StoreTrouble(NAME, "ready", str(error) or type(error).__name__, FRESH))
            return False
