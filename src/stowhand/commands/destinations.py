"""Where the entries of a running attempt go: into its record's execution log, or, where a store keeps none, to the
job's logger."""

from __future__ import annotations

import shlex
from typing import Any

from stowhand.errors import ConfigurationError
from stowhand.jobs.execution_log import MAX_OUTPUT_BYTES, ExecutionLogEntry
from stowhand.protocols.attempt import Attempt, AttemptLogger, ExecutionLog
from stowhand.tasks.program import LineSplitter

MAX_COMMAND_CHARACTERS = 1000
"""Characters of a command in a log line."""


def log_of(ctx: Attempt[Any]) -> ExecutionLog:
    """The execution log of this attempt."""
    try:
        store = ctx.store
    except ConfigurationError:  # a store that gives a running handler nothing
        store = None
    return store if isinstance(store, ExecutionLog) else JobLoggerLog(ctx.logger)


class JobLoggerLog:
    """Lines of the job's logger: one when a step begins, one when it ends, and between them what it says."""

    def __init__(self, logger: AttemptLogger) -> None:
        self._logger = logger
        self._lines = LineSplitter(logger.info)
        self._left = MAX_OUTPUT_BYTES
        self._dropped = 0

    async def add_execution_log_entry(self, entry: ExecutionLogEntry) -> int:
        command = shlex.join(entry.command)
        if len(command) > MAX_COMMAND_CHARACTERS:
            command = command[: MAX_COMMAND_CHARACTERS - 1] + "…"
        self._logger.info(f"{entry.key} began: {command}" if command else f"{entry.key} began")
        return 1

    async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
        if entry.duration_ms is None:
            return
        if self._dropped:
            self._logger.info(f"{entry.key}: {self._dropped} more lines are not shown")
        self._logger.info(f"{entry.key} ended with code {entry.exit_code} after {entry.duration_ms / 1000:g} s")

    def feed(self, data: bytes) -> None:
        """Log the output, as much of its beginning as an execution log would keep."""
        shown, rest = data[: self._left], data[self._left :]
        self._left -= len(shown)
        self._lines.feed(shown)
        self._dropped += rest.count(b"\n")  # in one go: a line at a time, a flood would hold up every other job

    def end(self) -> None:
        """Log what is left."""
        self._lines.end()
