"""For your own tests: a clock that you move, a store in memory, and a way to run the jobs that are due."""

from __future__ import annotations

from stowhand.stores.memory.store import MemoryStore
from stowhand.testing.clock import FakeClock
from stowhand.testing.task_list import Ran, run_task_list_once

__all__ = ["FakeClock", "MemoryStore", "Ran", "run_task_list_once"]
