"""What an App's workers have where nobody says otherwise: log lines, and an end that does not go unnoticed."""

from __future__ import annotations

import asyncio
from typing import Any

from stowhand.events import Events
from stowhand.job import Job


def report(running: asyncio.Task[None]) -> None:
    """Tell the loop's exception handler why an embedded worker ended, if it ended by an error."""
    if not running.cancelled() and (error := running.exception()) is not None:
        running.get_loop().call_exception_handler(
            {"message": "stowhand: the embedded worker ended by itself", "exception": error, "task": running}
        )


def log_in_the_name_of(job: Job) -> Any:
    """The logger of one job's attempt."""
    from stowhand.observe.job_logger import job_logger

    return job_logger(job.worker or "worker", job.task, job.id)


def events_that_log() -> Events:
    """Events with a listener that writes the log."""
    from stowhand.observe.listener import LogListener

    events = Events()
    LogListener(events)
    return events
