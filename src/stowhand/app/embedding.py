"""Defaults of an embedded worker: log lines, connections for its slots, and an error that is reported."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from stowhand.events import Events
from stowhand.jobs.job import Job
from stowhand.protocols.queue_store import QueueStore

if TYPE_CHECKING:
    from stowhand.observe.traces import Traces


def report(running: asyncio.Task[None]) -> None:
    """Call the loop's exception handler if an embedded worker ended by an error."""
    if not running.cancelled() and (error := running.exception()) is not None:
        running.get_loop().call_exception_handler(
            {"message": "stowhand: the embedded worker ended by itself", "exception": error, "task": running}
        )


def log_in_the_name_of(job: Job) -> Any:
    """The logger of one job's attempt."""
    from stowhand.observe.job_logger import job_logger

    return job_logger(job.worker or "worker", job.task, job.id, job.attempts)


def events_that_log() -> Events:
    """Events with a listener that writes the log."""
    from stowhand.observe.listener import LogListener

    events = Events()
    LogListener(events)
    return events


def seated(store: QueueStore, slots: int) -> None:
    """Let the store have a connection for each slot; warn where it cannot. Raises ConfigurationError."""
    from stowhand.observe.job_logger import core_logger

    if store.connections is not None and (shortage := store.connections.seat(slots)) is not None:
        core_logger().warning(shortage)


def traced(store: QueueStore, traces: Traces | None) -> QueueStore:
    """The store; what is enqueued through it makes spans, if ``traces`` is given."""
    return store if traces is None else traces.store(store)


def observed(events: Events | None, traces: Traces | None) -> Events:
    """The events, else new ones that log; the attempts of their workers make spans, if ``traces`` is given."""
    events = events or events_that_log()
    return events if traces is None else traces.of(events)
