"""Liveness and readiness, for load balancers. They require no token, so the replies reveal little."""

from __future__ import annotations

import asyncio
from typing import Any

from stowhand.clock import Clock
from stowhand.events import Events, StoreCallFailed
from stowhand.remote.server.shared_store import QUEUE, SharedStore
from stowhand.remote.server.wake_broadcast import LENDER_NAME, WakeBroadcast

CHECK_TIMEOUT_SECONDS = 5.0
MAX_ANSWER_AGE_SECONDS = 1.0
"""Time for which a reply is reused, so that frequent probes do not reach the store."""


class Health:
    """Health of one server, on its event loop."""

    def __init__(self, shared_store: SharedStore, wake_broadcast: WakeBroadcast, events: Events, clock: Clock) -> None:
        self._shared_store = shared_store
        self._wake_broadcast = wake_broadcast
        self._events = events
        self._clock = clock
        self._checked_at = float("-inf")
        self._is_ready = False
        self._lock = asyncio.Lock()
        self._resetter_task: asyncio.Task[None] | None = None

    def watch(self, resetter_task: asyncio.Task[None]) -> None:
        """Watch the task of the resetter, which must run as long as the server."""
        self._resetter_task = resetter_task

    def alive(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the background tasks run, and the page. ``heard_seconds_ago``: age of the latest answer."""
        if self._wake_broadcast.is_stopping:
            status = "stopping"
        elif self._resetter_task is None or self._resetter_task.done():
            status = "the resetter has ended"
        else:
            status = "ok"
        answer_age = round(self._clock.monotonic() - self._wake_broadcast.answered_at, 1)
        return status == "ok", {"status": status, "heard_seconds_ago": answer_age}

    async def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the store answers and its schema is suitable, and the page."""
        async with self._lock:
            if self._clock.monotonic() - self._checked_at >= MAX_ANSWER_AGE_SECONDS:
                self._is_ready = await self._check()
                self._checked_at = self._clock.monotonic()
        is_ready = self._is_ready and not self._wake_broadcast.is_stopping
        return is_ready, {"status": "ready" if is_ready else "not ready"}

    async def _check(self) -> bool:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
                if self._shared_store.kind == QUEUE:
                    status = await self._shared_store.queue("schema checks").schema.status()
                    return status.installed is not None and not status.breaking
                await self._shared_store.store.next_due(None)
                return True
        except Exception as error:  # noqa: BLE001 - boundary: any error means not ready; the log says why
            self._events.emit(
                StoreCallFailed(LENDER_NAME, "ready", str(error) or type(error).__name__, MAX_ANSWER_AGE_SECONDS)
            )
            return False
