"""What an App's workers have where nobody says otherwise: log lines, and an end that does not go unnoticed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from stowhand.events import Events
from stowhand.jobs.job import Job
from stowhand.protocols.queue_store import QueueStore

if TYPE_CHECKING:
    from stowhand.observe.traces import Traces

S = TypeVar("S")


def report(running: asyncio.Task[None]) -> None:
    """Tell the loop's exception handler why an embedded worker ended, if it ended by an error."""
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
    """Let the store have a connection for each slot; say so where it cannot. Raises ConfigurationError."""
    from stowhand.observe.job_logger import core_logger

    if (shortage := store.seat(slots)) is not None:
        core_logger().warning(shortage)


def traced(store: S, traces: Traces | None) -> S:
    """The store; what is enqueued through it makes spans, where somebody wants any."""
    return store if traces is None else traces.store(store)


def observed(events: Events | None, traces: Traces | None) -> Events:
    """The events, else some that log; the attempts of their workers make spans, where somebody wants any."""
    events = events or events_that_log()
    return events if traces is None else traces.of(events)
