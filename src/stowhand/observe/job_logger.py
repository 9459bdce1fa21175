"""The logger of a task: scoped to its job, with four levels and fields by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from stowhand.jobs.text import clean
from stowhand.observe.logs import LOG_ENTRY_LIMIT, LOG_LEVELS, Scope, logger_of
from stowhand.observe.safe_text import redact, scrub

Facts = Mapping[str, Any] | None


class LineLogger(ABC):
    """Writer of log lines to the standard ``logging`` (below) or to a program's logger (log_factory.py).

    Messages are not %-formatted. Pass further fields by name, as a mapping, or both.
    """

    __slots__ = ()

    def debug(self, message: object, meta: Facts = None, /, **facts: Any) -> None:
        """Log details for debugging."""
        self._log("debug", message, meta, facts)

    def info(self, message: object, meta: Facts = None, /, **facts: Any) -> None:
        """Log the normal course of events."""
        self._log("info", message, meta, facts)

    def warning(self, message: object, meta: Facts = None, /, **facts: Any) -> None:
        """Log something unexpected that needs no immediate action."""
        self._log("warning", message, meta, facts)

    warn = warning

    def error(self, message: object, meta: Facts = None, /, **facts: Any) -> None:
        """Log a failure that needs action."""
        self._log("error", message, meta, facts)

    @abstractmethod
    def log_event(
        self,
        level: str,
        message: str,
        facts: Mapping[str, Any],
        traceback: str | None = None,
        values: tuple[object, ...] = (),
    ) -> None:
        """Log an event: a message, its fields, and the traceback of a failed attempt.

        ``values`` are %-formatted into the message, so that programs which group lines by message see a constant.
        """

    @abstractmethod
    def enabled(self, level: str) -> bool:
        """Return whether a message of this level (``info``, …) is written."""

    @abstractmethod
    def _log(self, level: str, message: object, meta_argument: Facts, facts: dict[str, Any]) -> None: ...


class ScopedLogger(LineLogger):
    """Logger of a scope, on the standard ``logging``."""

    __slots__ = ("_logger", "_scope")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._logger = logger_of(scope.label)

    def log_event(
        self,
        level: str,
        message: str,
        facts: Mapping[str, Any],
        traceback: str | None = None,
        values: tuple[object, ...] = (),
    ) -> None:
        """Log an event. Its fields appear in JSON lines; text lines have them in the message."""
        if self.enabled(level):
            extra = {
                "scope": self._scope,
                "meta": {},
                "facts": redact(dict(facts)),
                "traceback": traceback and scrub(traceback),
            }
            safe = (scrub(clean(value, LOG_ENTRY_LIMIT)) if isinstance(value, str) else value for value in values)
            self._logger.log(LOG_LEVELS[level], scrub(clean(message, LOG_ENTRY_LIMIT)), *safe, extra=extra)

    def enabled(self, level: str) -> bool:
        return self._logger.isEnabledFor(LOG_LEVELS[level])

    def scope(self, extra: Facts = None, /, **facts: Any) -> ScopedLogger:
        """Return the same logger with further fields on every line."""
        return ScopedLogger(msgspec.structs.replace(self._scope, extra={**self._scope.extra, **(extra or {}), **facts}))

    def _log(self, level: str, message: object, meta_argument: Facts, facts: dict[str, Any]) -> None:
        meta = {**meta_argument, **facts} if meta_argument else facts
        if self.enabled(level):
            # Cleaned here too, because a program may use its own formatters.
            text = scrub(clean(str(message), LOG_ENTRY_LIMIT))
            self._logger.log(LOG_LEVELS[level], text, extra={"scope": self._scope, "meta": redact(meta)})


def job_logger(worker: str, task: str, job_id: int, attempt: int | None = None) -> ScopedLogger:
    """Return the logger of a job: ``[job(worker-1: hello{1})]``."""
    return ScopedLogger(Scope("job", worker, task, job_id, attempt=attempt))


def core_logger() -> ScopedLogger:
    """Return the logger of everything outside workers and jobs: ``[core]``."""
    return ScopedLogger(Scope("core"))
