"""Stowhand: background jobs in Python on the store you already have. One worker, any store.

    worker.py      the life of a job: take, work, settle, beat, stop        (start reading here)
    lifecycle.py   the law: states, outcomes, settlements
    store.py       the seams to wherever jobs live; ``stores/`` are the ones we ship
    tasks/         @app.task, enqueueing, dispatch
    service/       App, settings, supervised processes, signals
    cli/           one file per command

Importing this package imports no driver, and each name only when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stowhand.budget import Budget
    from stowhand.conditions import Where, sql
    from stowhand.errors import (
        ConfigurationError,
        InvalidJob,
        NonRetryable,
        OutcomeUnknown,
        Poison,
        QueueFull,
        StoreUnreachable,
        StowhandError,
    )
    from stowhand.events import Events
    from stowhand.execution_log import ExecutionLogEntry
    from stowhand.handler import Attempt, Claimable, Handler, Policy
    from stowhand.job import Job, KeyMode, NewJob, State
    from stowhand.lifecycle import Cancel, Complete, Fail, Outcome, Retry, Snooze
    from stowhand.options import WorkerOptions
    from stowhand.resetter import Resetter, ResetterOptions
    from stowhand.service.app import App
    from stowhand.service.run_all import run_all
    from stowhand.store import Lease, Store, StoreOptions
    from stowhand.stores import open_store
    from stowhand.tasks.context import Context
    from stowhand.worker import Worker

__version__ = "0.1.0"

_ROOMS = {
    "budget": ("Budget",),
    "conditions": ("Where", "sql"),
    "errors": (
        "ConfigurationError",
        "InvalidJob",
        "NonRetryable",
        "OutcomeUnknown",
        "Poison",
        "QueueFull",
        "StoreUnreachable",
        "StowhandError",
    ),
    "events": ("Events",),
    "execution_log": ("ExecutionLogEntry",),
    "handler": ("Attempt", "Claimable", "Handler", "Policy"),
    "job": ("Job", "KeyMode", "NewJob", "State"),
    "lifecycle": ("Cancel", "Complete", "Fail", "Outcome", "Retry", "Snooze"),
    "options": ("WorkerOptions",),
    "resetter": ("Resetter", "ResetterOptions"),
    "service.app": ("App",),
    "service.run_all": ("run_all",),
    "store": ("Lease", "Store", "StoreOptions"),
    "stores": ("open_store",),
    "tasks.context": ("Context",),
    "worker": ("Worker",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "App",
    "Attempt",
    "Budget",
    "Cancel",
    "Claimable",
    "Complete",
    "ConfigurationError",
    "Context",
    "Events",
    "ExecutionLogEntry",
    "Fail",
    "Handler",
    "InvalidJob",
    "Job",
    "KeyMode",
    "Lease",
    "NewJob",
    "NonRetryable",
    "Outcome",
    "OutcomeUnknown",
    "Poison",
    "Policy",
    "QueueFull",
    "Resetter",
    "ResetterOptions",
    "Retry",
    "Snooze",
    "State",
    "Store",
    "StoreOptions",
    "StoreUnreachable",
    "StowhandError",
    "Where",
    "Worker",
    "WorkerOptions",
    "__version__",
    "open_store",
    "run_all",
    "sql",
]


def __getattr__(name: str) -> object:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{room}"), name)
    globals()[name] = value
    return value
