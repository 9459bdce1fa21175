"""What the handlers of a worker say of their progress, written for all of them at once by the heartbeat thread.

Progress is for people: a note that cannot be written is dropped, and the newest of a job takes the place of those
before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from stowhand.errors import StoreError
from stowhand.jobs.lease import Pair
from stowhand.protocols.progress import Progress, ProgressKeeper

EVERY = 1.0
"""Seconds between two writes, at least."""


class ProgressBoard:
    """Noted from any thread."""

    def __init__(self, keeper: ProgressKeeper, lease: float) -> None:
        self._keeper = keeper
        self._within = lease / 10
        self._notes: dict[Pair, Progress] = {}
        self._lock = threading.Lock()
        self._written = float("-inf")

    def note(self, progress: Progress) -> None:
        """To be written within about a second."""
        with self._lock:
            self._notes[progress.lease.pair] = progress

    async def tick(self, now: float, is_beat_due: Callable[[], bool]) -> None:
        """Write what there is, if it is time and no beat is due."""
        if not self._notes or now - self._written < EVERY or is_beat_due():
            return
        with self._lock:
            notes, self._notes = self._notes, {}
        self._written = now
        with suppress(StoreError):
            await self._keeper.keep_progress(tuple(notes.values()), self._within)
