"""A worker that was given no events of its own logs what happens."""

from __future__ import annotations

from stowhand.events import Events, WorkerStarted


def log_by_default(events: Events) -> None:
    """Log what happens, unless there is a listener already; to stderr, unless the program has configured logging."""
    if not events.wants(WorkerStarted):
        # Imported here: a worker with listeners of its own needs no logging, which takes 10 ms to import.
        from stowhand.observe.listener import LogListener
        from stowhand.observe.logs import configure_unless_configured

        configure_unless_configured()
        LogListener(events)
