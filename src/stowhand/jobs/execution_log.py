"""The entries of an execution log: what was run for a job, and its output.

In a user's table an entry is one JSON object of ``execution_logs``, spelled as Sourcegraph's programs spell it:
``key, command, startTime, exitCode, out, durationMs``.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from stowhand.errors import ConfigurationError, LogRefused
from stowhand.jobs.text import clean

OUT_LIMIT = 64 * 1024
"""Bytes of one entry's output; of a longer one the end is kept."""
ENTRIES_LIMIT = 500
"""Entries of one attempt."""
COMMAND_LIMIT = 16 * 1024


class ExecutionLogEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One command, or one step, of an attempt."""

    key: str
    """What it is: ``step.docker.0``, ``setup`` …"""
    command: tuple[str, ...] = ()
    start_time: datetime
    """Aware."""
    exit_code: int | None = None
    """``None`` while it runs."""
    out: str = ""
    duration_ms: int | None = None
    """``None`` while it runs."""

    def __post_init__(self) -> None:
        given: object = self.command
        if isinstance(given, str | bytes):  # every letter would be a word
            raise ConfigurationError(f"command: {given!r} given; give its words, such as ('git', 'clone')")


def bounded(entry: ExecutionLogEntry) -> ExecutionLogEntry:
    """The entry, safe to store: no NUL, no lone surrogates, nothing longer than its limit (of ``out`` the end).

    Raises LogRefused for a time without a zone.
    """
    if entry.start_time.utcoffset() is None:
        raise LogRefused(f"start_time: {entry.start_time} has no time zone; give an aware datetime")
    out = clean(entry.out, max(len(entry.out) * 4, 1))
    raw = out.encode()
    if len(raw) > OUT_LIMIT:
        out = "[…]\n" + raw[-OUT_LIMIT + 8 :].decode(errors="ignore")
    key, command, room = clean(entry.key, 255), [], COMMAND_LIMIT
    for word in entry.command:
        cut = clean(word, max(room, 16))
        room -= len(cut.encode()) + 1  # empty words take room too
        command.append(cut)
        if room <= 0:
            break
    return msgspec.structs.replace(entry, key=key, command=tuple(command), out=out)
