"""Views of findings and execution logs, as text and JSON. Text is escaped, so that it cannot control the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from shlex import join
from typing import Any

import click
import msgspec

from stowhand.jobs.durations import format_time
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.observe.logs import wants_color
from stowhand.observe.safe_text import columns, escape, escape_lines, fit
from stowhand.stores.table.backend import Finding

MIN_KEY_WIDTH = 20
MAX_KEY_WIDTH = 40


def finding_text(finding: Finding) -> str:
    """Return a finding as SQL: the problem as a comment, then the statement that fixes it."""
    level = "FAIL" if finding.fatal else "advice"
    if wants_color(sys.stdout):
        level = click.style(level, fg="red" if finding.fatal else "yellow")
    lines = [f"-- {level}: {escape(finding.problem)}"]
    if finding.fix:
        # A terminal gets escaped names; a file or a pipe gets the statement that works.
        lines.append(escape_lines(finding.fix, "") if sys.stdout.isatty() else finding.fix)
    return "\n".join(lines)


def sql_lines(findings: Sequence[Finding], *, only_sql: bool) -> Iterator[str]:
    """Yield the statements in the order in which they must run."""
    for finding in findings:
        if not only_sql:
            yield finding_text(finding)
        elif finding.fix:
            yield finding.fix


def log_page(entries: Sequence[ExecutionLogEntry]) -> str:
    """Return each entry with its outcome, command and output."""
    return "\n\n".join(_entry(number, entry) for number, entry in enumerate(entries, 1))


def entry_object(number: int, entry: ExecutionLogEntry) -> dict[str, Any]:
    """Return an entry for JSON, in the spelling of the table."""
    return {"number": number, **msgspec.to_builtins(entry)}


def _entry(number: int, entry: ExecutionLogEntry) -> str:
    key = fit(escape(entry.key), MAX_KEY_WIDTH)
    padding = " " * max(MIN_KEY_WIDTH - columns(key), 0)
    lines = [f"{number:>3}  {key}{padding}  {format_time(entry.start_time)}  {_outcome_text(entry)}"]
    if entry.command:
        lines.append(f"     $ {escape(join(entry.command))}")
    if entry.out:
        lines.append(f"     {escape_lines(entry.out.rstrip(), '     ')}")
    return "\n".join(line.rstrip() for line in "\n".join(lines).split("\n"))


def _outcome_text(entry: ExecutionLogEntry) -> str:
    duration = "" if entry.duration_ms is None else f" in {_duration(entry.duration_ms)}"
    if entry.exit_code is None:
        return f"done{duration}" if duration else "running"
    word = f"exit {entry.exit_code}"
    if wants_color(sys.stdout):
        word = click.style(word, fg="red" if entry.exit_code else "green")
    return f"{word}{duration}"


def _duration(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"
