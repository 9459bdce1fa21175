"""A worker that was given no events of its own logs what happens."""

from __future__ import annotations

from importlib import import_module

from stowhand.events import Events, WorkerStarted


def log_by_default(events: Events) -> None:
    """Log what happens, unless there is a listener already; to stderr, unless the program has configured logging."""
    if not events.wants(WorkerStarted):
        # By name: what formats lines stands above the worker, which does not import it.
        import_module("stowhand.observe.logs").configure_unless_configured()
        import_module("stowhand.observe.listener").LogListener(events)
