"""Entries of an execution log: commands that an attempt ran, and their output.

In a user's table an entry is one JSON object in ``execution_logs``, with the field names of Sourcegraph's programs:
``key, command, startTime, exitCode, out, durationMs``.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from stowhand.errors import ConfigurationError, LogRefused
from stowhand.jobs.text import clean

MAX_OUTPUT_BYTES = 64 * 1024
"""Maximum bytes of one entry's output; the end of a longer output is kept."""
MAX_LOG_ENTRIES = 500
"""Maximum number of entries of one attempt."""
MAX_COMMAND_BYTES = 16 * 1024


class ExecutionLogEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One command or step of an attempt."""

    key: str
    """The step's name: ``step.docker.0``, ``setup`` …"""
    command: tuple[str, ...] = ()
    start_time: datetime
    """Aware."""
    exit_code: int | None = None
    """``None`` while it runs."""
    out: str = ""
    duration_ms: int | None = None
    """``None`` while it runs."""

    def __post_init__(self) -> None:
        command: object = self.command
        if isinstance(command, str | bytes):  # each letter would be a word
            raise ConfigurationError(f"command: got {command!r}; use its words, such as ('git', 'clone')")


def bounded(entry: ExecutionLogEntry) -> ExecutionLogEntry:
    """Return the entry, safe to store: without NUL and lone surrogates, each field cut to its limit.

    The end of ``out`` is kept. Raises LogRefused for a time without a zone.
    """
    if entry.start_time.utcoffset() is None:
        raise LogRefused(f"start_time: {entry.start_time} has no time zone; use an aware datetime")
    out = clean(entry.out, max(len(entry.out) * 4, 1))
    raw = out.encode()
    if len(raw) > MAX_OUTPUT_BYTES:
        out = "[…]\n" + raw[-MAX_OUTPUT_BYTES + 8 :].decode(errors="ignore")
    key = clean(entry.key, 255)
    command = []
    bytes_left = MAX_COMMAND_BYTES
    for word in entry.command:
        safe_word = clean(word, max(bytes_left, 16))
        bytes_left -= len(safe_word.encode()) + 1  # an empty word counts too
        command.append(safe_word)
        if bytes_left <= 0:
            break
    return msgspec.structs.replace(entry, key=key, command=tuple(command), out=out)
