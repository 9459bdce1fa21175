"""Destinations of log entries: the record's execution log, or the job's logger if the store has no execution logs."""

from __future__ import annotations

import shlex
from typing import Any

from stowhand.errors import ConfigurationError
from stowhand.jobs.execution_log import MAX_OUTPUT_BYTES, ExecutionLogEntry
from stowhand.protocols.attempt import Attempt, AttemptLogger, ExecutionLog
from stowhand.tasks.program import LineSplitter

MAX_COMMAND_CHARACTERS = 1000
"""Maximum length of a command in a log line."""


def log_of(ctx: Attempt[Any]) -> ExecutionLog:
    """Return the execution log of this attempt, or a replacement that writes to the job's logger."""
    try:
        store = ctx.store
    except ConfigurationError:  # the store offers nothing to handlers
        store = None
    return store if isinstance(store, ExecutionLog) else JobLoggerLog(ctx.logger)


class JobLoggerLog:
    """Execution log that writes to the job's logger: a line at the start and the end of a step, and its output."""

    def __init__(self, logger: AttemptLogger) -> None:
        self._logger = logger
        self._lines = LineSplitter(logger.info)
        self._bytes_left = MAX_OUTPUT_BYTES
        self._dropped_lines = 0

    async def add_execution_log_entry(self, entry: ExecutionLogEntry) -> int:
        command = shlex.join(entry.command)
        if len(command) > MAX_COMMAND_CHARACTERS:
            command = command[: MAX_COMMAND_CHARACTERS - 1] + "…"
        self._logger.info(f"{entry.key} started: {command}" if command else f"{entry.key} started")
        return 1

    async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
        if entry.duration_ms is None:
            return
        if self._dropped_lines:
            self._logger.info(f"{entry.key}: {self._dropped_lines} more lines are not shown")
        self._logger.info(f"{entry.key} exited with code {entry.exit_code} after {entry.duration_ms / 1000:g} s")

    def feed(self, data: bytes) -> None:
        """Log the first bytes of the output, as many as an execution log keeps."""
        shown, rest = data[: self._bytes_left], data[self._bytes_left :]
        self._bytes_left -= len(shown)
        self._lines.feed(shown)
        self._dropped_lines += rest.count(b"\n")  # at once: counting line by line could delay all other jobs

    def end(self) -> None:
        """Log the last, unfinished line."""
        self._lines.end()
