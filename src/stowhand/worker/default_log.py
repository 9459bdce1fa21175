"""A worker that was given no events of its own logs what happens."""

from __future__ import annotations

from stowhand.events import Events, WorkerStarted
from stowhand.observe.listener import LogListener
from stowhand.observe.logs import configure_unless_configured


def log_by_default(events: Events) -> None:
    """Log what happens, unless there is a listener already; to stderr, unless the program has configured logging."""
    if not events.wants(WorkerStarted):
        configure_unless_configured()
        LogListener(events)
