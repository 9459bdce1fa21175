"""For your own tests: the jobs of an App in one test, a clock that you move, and a store in memory.

    jobs         the pytest fixture ``jobs`` (plugin.py makes it): drain, advance, assert_enqueued
    clock        time that does not move by itself
    task_list    run_task_list_once: the due jobs of plain functions

pytest loads ``plugin`` wherever this package is installed: each name is imported only when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stowhand.app.draining import Ran
    from stowhand.stores.sqlite.queue.memory import MemoryStore
    from stowhand.testing.clock import FakeClock
    from stowhand.testing.jobs import Drained, Jobs
    from stowhand.testing.task_list import run_task_list_once

_HOMES = {
    "Drained": "testing.jobs",
    "FakeClock": "testing.clock",
    "Jobs": "testing.jobs",
    "MemoryStore": "stores.sqlite.queue.memory",
    "Ran": "app.draining",
    "run_task_list_once": "testing.task_list",
}

__all__ = ["Drained", "FakeClock", "Jobs", "MemoryStore", "Ran", "run_task_list_once"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"stowhand.{home}"), name)
    globals()[name] = value
    return value
