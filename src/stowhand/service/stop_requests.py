"""Counts requests to stop a process: signals that come close together are one request."""

from __future__ import annotations

from stowhand.clock import stopwatch

SAME_SIGNAL = 0.5
"""Signals within so many seconds count once: a terminal's Ctrl-C reaches a whole group, and people press twice."""


class StopRequests:
    """``count``: how many."""

    def __init__(self) -> None:
        self.count = 0
        self._last = float("-inf")

    def add(self) -> bool:
        """Count one more. False when it belongs to the one before."""
        now = stopwatch()
        if now - self._last < SAME_SIGNAL:
            return False
        self._last = now
        self.count += 1
        return True
