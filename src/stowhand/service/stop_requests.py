"""Counts requests to stop a process: signals that come close together are one request."""

from __future__ import annotations

from dataclasses import dataclass

from stowhand.clock import stopwatch
from stowhand.worker.timings import USUAL


@dataclass
class StopRequests:
    """``count``: how many."""

    within: float = USUAL.same_signal
    count: int = 0
    last: float = float("-inf")

    def add(self) -> bool:
        """Count one more. False when it belongs to the one before."""
        now = stopwatch()
        if now - self.last < self.within:
            return False
        self.last = now
        self.count += 1
        return True
