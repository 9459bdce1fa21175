"""Liveness and readiness, for load balancers: they need no token, so the answers reveal little."""

from __future__ import annotations

import asyncio
from typing import Any

from stowhand.clock import Clock
from stowhand.events import Events, StoreCallFailed
from stowhand.remote.server.shared_store import QUEUE, SharedStore
from stowhand.remote.server.wake_broadcast import NAME, WakeBroadcast

CHECK_TIMEOUT_SECONDS = 5.0
MAX_ANSWER_AGE_SECONDS = 1.0
"""How long an answer is reused, so that frequent probes do not reach the store."""


class Health:
    """Answers probes, on the event loop."""

    def __init__(self, shared_store: SharedStore, wake_broadcast: WakeBroadcast, events: Events, clock: Clock) -> None:
        self._shared_store = shared_store
        self._wake_broadcast = wake_broadcast
        self._events = events
        self._clock = clock
        self._checked_at = float("-inf")
        self._is_ready = False
        self._lock = asyncio.Lock()
        self._resetting: asyncio.Task[None] | None = None

    def watch(self, resetting: asyncio.Task[None]) -> None:
        """Watch the task of the resetter, which must run as long as the server."""
        self._resetting = resetting

    def alive(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the background tasks run. ``heard_seconds_ago``: when the store last answered."""
        is_resetting = self._resetting is not None and not self._resetting.done()
        status = "stopping" if self._wake_broadcast.stopped else "ok" if is_resetting else "the resetter has ended"
        heard = round(self._clock.monotonic() - self._wake_broadcast.answered_at, 1)
        return status == "ok", {"status": status, "heard_seconds_ago": heard}

    async def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the store answers and its schema fits."""
        async with self._lock:
            if self._clock.monotonic() - self._checked_at >= MAX_ANSWER_AGE_SECONDS:
                self._is_ready = await self._check()
                self._checked_at = self._clock.monotonic()
        is_ready = self._is_ready and not self._wake_broadcast.stopped
        return is_ready, {"status": "ready" if is_ready else "not ready"}

    async def _check(self) -> bool:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
                if self._shared_store.kind == QUEUE:
                    status = await self._shared_store.queue("asked").schema.status()
                    return status.installed is not None and not status.breaking
                await self._shared_store.store.next_due(None)
                return True
        except Exception as error:  # noqa: BLE001 - boundary: any error means not ready; the log says why
            self._events.emit(
                StoreCallFailed(NAME, "ready", str(error) or type(error).__name__, MAX_ANSWER_AGE_SECONDS)
            )
            return False
