"""``ctx.logger``: what a handler says of its record, as events; ``observe/`` prints them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowhand.events import Event, JobSaid
from stowhand.jobs.lease import JobId


class AttemptLogger:
    """Writes lines in the name of one job: each is an event, which ``observe/`` prints."""

    __slots__ = ("_emit", "_job_id", "_task", "_worker")

    def __init__(self, emit: Callable[[Event], None] | None, worker: str, task: str, job_id: JobId | None) -> None:
        self._emit, self._worker, self._task, self._job_id = emit, worker, task, job_id

    @classmethod
    def mute(cls) -> AttemptLogger:
        """One that nobody hears."""
        return cls(None, "", "", None)

    def debug(self, message: object, /, **facts: Any) -> None:
        """For the one who looks for a mistake."""
        self._say("debug", message, facts)

    def info(self, message: object, /, **facts: Any) -> None:
        """What happens."""
        self._say("info", message, facts)

    def warning(self, message: object, /, **facts: Any) -> None:
        """Somebody may want to look."""
        self._say("warning", message, facts)

    def error(self, message: object, /, **facts: Any) -> None:
        """Somebody must look."""
        self._say("error", message, facts)

    def _say(self, level: str, message: object, facts: dict[str, Any]) -> None:
        if self._emit is not None:
            self._emit(JobSaid(self._worker, self._job_id, self._task, level, str(message), facts))
