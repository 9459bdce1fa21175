"""For tests of your own: a clock that you move, and a store that lives in memory."""

from __future__ import annotations

from stowhand.testing.clock import FakeClock
from stowhand.testing.memory import MemoryStore

__all__ = ["FakeClock", "MemoryStore"]
