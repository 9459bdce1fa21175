"""Looks whether the store takes what is written, for an idle worker does not meet it: only while somebody asks."""

from __future__ import annotations

from stowhand.clock import Clock
from stowhand.protocols.store import Heartbeats

EVERY = 2.0
"""Seconds between two looks."""
WANTED_FOR = 60.0
"""Seconds for which looking goes on after somebody asked: probes ask every few seconds."""


class WriteLook:
    """Used by the heart's thread; asked for from any."""

    def __init__(self, heartbeats: Heartbeats, clock: Clock) -> None:
        self._heartbeats, self._clock = heartbeats, clock
        self._wanted = self._looked = float("-inf")
        self.well = True
        """The last look met nothing wrong."""

    def want(self) -> None:
        """Somebody asks how the worker does, and may ask again."""
        self._wanted = self._clock.monotonic()

    def tick(self, now: float) -> None:
        """Look, if it is time. Raises StoreError where nothing can be written."""
        due = not self.well or now - self._wanted < WANTED_FOR
        if due and now - self._looked >= EVERY:
            self._looked, self.well = now, False
            self._heartbeats.check_writable()
            self.well = True
