"""Wake-ups for all long polls, from a single call of the store's ``wait`` that is repeated while the server runs."""

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

LISTENING_WAIT_SECONDS = 10.0
"""Duration of one wait at a store that listens for wake-ups."""
POLLING_WAIT_SECONDS = 2.0
"""Duration of one wait at a store that does not listen."""
LENDER_NAME = "lending"
"""Name of the server in events and in the store."""


class WakeBroadcast:
    """Counter of the store's wake-ups."""

    def __init__(self, store: Store[Any], events: Events, clock: Clock) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._run_id = secrets.token_hex(4)
        self._sleepers = Sleepers(clock)
        self._task: asyncio.Task[None] | None = None
        self.is_stopping = False
        """Whether the server is stopping: no poll waits any longer."""
        self.answered_at = clock.monotonic()
        """Time of the store's latest answer, by the monotonic clock."""

    @property
    def count(self) -> str:
        """Text that changes at every wake-up, and at a restart, since it begins with a random id."""
        return f"{self._run_id}.{self._sleepers.wakes}"

    @property
    def wait_seconds(self) -> float:
        """Duration of one wait at the store."""
        return LISTENING_WAIT_SECONDS if self._store.is_listening else POLLING_WAIT_SECONDS

    def start(self) -> None:
        """Start listening."""
        self._task = asyncio.create_task(self._listen(), name="stowhand lending wake-ups")

    def end_polls(self) -> None:
        """End all polls. Later polls end at once."""
        self.is_stopping = True
        self._sleepers.wake()

    async def stop(self) -> None:
        """End all polls, and stop listening."""
        self.end_polls()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def until_changed(self, since: str, seconds: float) -> None:
        """Return when ``count`` differs from ``since``, when the server stops, or after ``seconds``."""
        if self.count == since and not self.is_stopping:
            await self._sleepers.wait(self._sleepers.wakes, seconds)

    async def _listen(self) -> None:
        failures = 0
        while True:
            try:
                was_woken = await self._store.wait(self.wait_seconds)
            except Exception as error:  # noqa: BLE001 - boundary of this loop: reported, and retried after a pause
                failures += 1
                pause = OUTAGE_BACKOFF(failures)
                if failures == 1:
                    self._events.emit(StoreCallFailed(LENDER_NAME, "listen", str(error) or type(error).__name__, pause))
                await self._clock.sleep(pause)
                continue
            if failures:
                self._events.emit(StoreRecovered(LENDER_NAME, "listen", failures))
            if failures or was_woken:
                self._sleepers.wake()
            failures = 0
            self.answered_at = self._clock.monotonic()
