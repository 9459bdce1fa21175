"""One listener for all long polls: a single call of the store's ``wait``, repeated as long as the server runs."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import Any

from stowhand.clock import Clock
from stowhand.events import Events, StoreCallFailed, StoreRecovered
from stowhand.protocols.options import OUTAGE_BACKOFF
from stowhand.protocols.store import Store
from stowhand.sleepers import Sleepers

LISTENING = 10.0
POLLING = 2.0
"""Seconds of one wait at the store, where it is listening for wake-ups or not."""
NAME = "lending"


class WakeBroadcast:
    """Counts the store's wake-ups. ``count`` begins with a random id, so that it changes at a restart."""

    def __init__(self, store: Store[Any], events: Events, clock: Clock) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._boot = secrets.token_hex(4)
        self._sleepers = Sleepers(clock)
        self._task: asyncio.Task[None] | None = None
        self.stopping = asyncio.Event()
        self.answered_at = clock.monotonic()
        """When the store last answered, by the monotonic clock."""

    @property
    def stopped(self) -> bool:
        """The server is stopping: no request waits any more."""
        return self.stopping.is_set()

    @property
    def count(self) -> str:
        """A text that differs after every wake-up."""
        return f"{self._boot}.{self._sleepers.wakes}"

    @property
    def poll(self) -> float:
        """Seconds of one wait at the store."""
        return LISTENING if self._store.is_listening else POLLING

    def start(self) -> None:
        """Start listening."""
        self._task = asyncio.create_task(self._listen(), name="stowhand lending wake-ups")

    def end_polls(self) -> None:
        """End every poll, now and from now on."""
        self.stopping.set()
        self._sleepers.wake()

    async def stop(self) -> None:
        """End every poll, and stop listening."""
        self.end_polls()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def until_changed(self, since: str, seconds: float) -> None:
        """Return when ``count`` differs from ``since``, when the server stops, or after ``seconds``."""
        if self.count == since and not self.stopped:
            await self._sleepers.wait(self._sleepers.wakes, seconds)

    async def _listen(self) -> None:
        failures = 0
        while True:
            try:
                woken = await self._store.wait(self.poll)
            except Exception as error:  # noqa: BLE001 - boundary of this loop: reported, and tried again after a pause
                failures += 1
                pause = OUTAGE_BACKOFF(failures)
                if failures == 1:
                    self._events.emit(StoreCallFailed(NAME, "listen", str(error) or type(error).__name__, pause))
                await self._clock.sleep(pause)
                continue
            if failures:
                self._events.emit(StoreRecovered(NAME, "listen", failures))
            if failures or woken:
                self._sleepers.wake()
            failures = 0
            self.answered_at = self._clock.monotonic()
