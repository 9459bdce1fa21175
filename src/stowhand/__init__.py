"""Stowhand: background jobs in Python on the store you already have. One worker, any store.

    jobs/       what a job is and what may become of it
    protocols/  the seams: store, handler, options
    worker/     the life of a job; worker.py: take, work, settle, beat, stop        (start reading here)
    stores/     postgres, sqlite, memory: the queue we own, and any table of a user's;  remote/: one that is lent
    tasks/      @app.task, dispatch;  app/: declare, enqueue, embed;  cron/, commands/, flows/: what else a job can be
    service/    settings, supervised processes, signals;  runner/: the same as a library
    observe/    events become log lines, metrics, traces
    cli/        one file per command

Importing this package imports no driver, and each name only when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stowhand.app.app import App
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
    from stowhand.jobs.conditions import Where, sql
    from stowhand.jobs.execution_log import ExecutionLogEntry
    from stowhand.jobs.job import Job, KeyMode, NewJob, State
    from stowhand.jobs.lease import Lease
    from stowhand.jobs.lifecycle import Cancel, Complete, Fail, Outcome, Retry, Snooze
    from stowhand.protocols.handler import Attempt, Claimable, Handler, Policy
    from stowhand.protocols.options import WorkerOptions
    from stowhand.protocols.store import Store, StoreOptions
    from stowhand.service.run_all import run_all
    from stowhand.stores.opening import open_store
    from stowhand.stores.table.options import TableOptions
    from stowhand.stores.table.store import TableStore
    from stowhand.tasks.context import Context
    from stowhand.worker.budget import Budget
    from stowhand.worker.resetter import Resetter, ResetterOptions
    from stowhand.worker.worker import Worker

__version__ = "0.1.0"

_ROOMS = {
    "app.app": ("App",),
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
    "jobs.conditions": ("Where", "sql"),
    "jobs.execution_log": ("ExecutionLogEntry",),
    "jobs.job": ("Job", "KeyMode", "NewJob", "State"),
    "jobs.lease": ("Lease",),
    "jobs.lifecycle": ("Cancel", "Complete", "Fail", "Outcome", "Retry", "Snooze"),
    "protocols.handler": ("Attempt", "Claimable", "Handler", "Policy"),
    "protocols.options": ("WorkerOptions",),
    "protocols.store": ("Store", "StoreOptions"),
    "service.run_all": ("run_all",),
    "stores.opening": ("open_store",),
    "stores.table.options": ("TableOptions",),
    "stores.table.store": ("TableStore",),
    "tasks.context": ("Context",),
    "worker.budget": ("Budget",),
    "worker.resetter": ("Resetter", "ResetterOptions"),
    "worker.worker": ("Worker",),
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
    "TableOptions",
    "TableStore",
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
