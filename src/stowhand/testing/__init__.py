"""Tools for your own tests: the jobs of an App in one test, a clock that tests move, and a store in memory.

    jobs         the pytest fixture ``jobs`` (made by plugin.py): drain, advance, assert_enqueued
    clock        clocks that do not move until a test advances them
    task_list    run_task_list_once, which runs the due jobs of plain functions

pytest loads ``plugin`` wherever this package is installed, so each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stowhand.lazy_names import lazy_names

if TYPE_CHECKING:
    from stowhand.app.drain import RecordedAttempt
    from stowhand.stores.sqlite.queue.memory import MemoryStore
    from stowhand.testing.clock import FakeClock
    from stowhand.testing.jobs import DrainResult, Jobs
    from stowhand.testing.task_list import run_task_list_once

_NAMES_BY_MODULE = {
    "app.drain": "RecordedAttempt",
    "stores.sqlite.queue.memory": "MemoryStore",
    "testing.clock": "FakeClock",
    "testing.jobs": "DrainResult Jobs",
    "testing.task_list": "run_task_list_once",
}

__all__ = ["DrainResult", "FakeClock", "Jobs", "MemoryStore", "RecordedAttempt", "run_task_list_once"]


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _NAMES_BY_MODULE)
