"""Counts requests to stop a process: signals that come close together are one request."""

from __future__ import annotations

from stowhand.clock import stopwatch
from stowhand.worker.host import USUAL


class StopRequests:
    """``count``: how many."""

    def __init__(self, within: float = USUAL.same_signal) -> None:
        self.count = 0
        self._within = within
        self._last = float("-inf")

    def add(self) -> bool:
        """Count one more. False when it belongs to the one before."""
        now = stopwatch()
        if now - self._last < self._within:
            return False
        self._last = now
        self.count += 1
        return True
