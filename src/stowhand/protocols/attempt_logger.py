"""``ctx.logger``: lines that a handler writes about its record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowhand.events import Event, JobSaid
from stowhand.jobs.lease import JobId


class AttemptLogger:
    """A logger of one job: each line is a ``JobSaid`` event, which ``observe/`` prints."""

    __slots__ = ("_emit", "_job_id", "_task", "_worker")

    def __init__(self, emit: Callable[[Event], None] | None, worker: str, task: str, job_id: JobId | None) -> None:
        self._emit = emit
        self._worker = worker
        self._task = task
        self._job_id = job_id

    @classmethod
    def mute(cls) -> AttemptLogger:
        """A logger that writes nothing."""
        return cls(None, "", "", None)

    def debug(self, message: object, /, **facts: Any) -> None:
        """Write a line at level debug, with further facts by name."""
        self._say("debug", message, facts)

    def info(self, message: object, /, **facts: Any) -> None:
        """At level info: what happens."""
        self._say("info", message, facts)

    def warning(self, message: object, /, **facts: Any) -> None:
        """At level warning: a person may want to look."""
        self._say("warning", message, facts)

    def error(self, message: object, /, **facts: Any) -> None:
        """At level error: a person must look."""
        self._say("error", message, facts)

    def _say(self, level: str, message: object, facts: dict[str, Any]) -> None:
        if self._emit is not None:
            self._emit(JobSaid(self._worker, self._job_id, self._task, level, str(message), facts))
