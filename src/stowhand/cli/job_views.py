"""Jobs for people (a table, a page) and for programs (one JSON object per line).

Everything that a user may have written is escaped: a task name cannot drive a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from stowhand.cli.screen import output_width
from stowhand.cli.text_table import page, table
from stowhand.errors import UndecodablePayload
from stowhand.jobs import strict_json
from stowhand.jobs.fields import ATTRIBUTES, FIELDS, Field, Kind
from stowhand.jobs.job import Job
from stowhand.jobs.moments import say
from stowhand.jobs.tries import Try
from stowhand.observe.logs import wants_color
from stowhand.observe.safe_text import escape, telling_line
from stowhand.protocols.queue_store import Failures

LISTED = tuple(field for field in FIELDS if field.heading)
HEADINGS = ("ID", "STATE", "TASK", "ATTEMPTS", *(field.heading for field in LISTED), "LAST ERROR")
TO_THE_RIGHT = {"ID", "ATTEMPTS", *(field.heading for field in LISTED if field.kind is Kind.WHOLE)}
NAMES = ("TASK", *(field.heading for field in LISTED if field.kind is Kind.TEXT), "WORKER")
WIDEST = 40
"""Columns for a name, at most."""
ERROR_LEAST = 20
COLOURS = {"failed": "red", "errored": "yellow", "processing": "cyan", "completed": "green", "canceled": "blue"}
UNLIMITED = 200
"""Width where the output is no terminal."""


def job_table(jobs: Sequence[Job]) -> list[str]:
    """A table as wide as the terminal; in a pipe as wide as it needs to be."""
    width = output_width() or UNLIMITED
    headings: tuple[str, ...] = HEADINGS
    rows = [_cells(job) for job in jobs]
    if any(job.worker is not None for job in jobs):
        headings = (*HEADINGS[:-1], "WORKER", HEADINGS[-1])
        rows = [(*row[:-1], _name(job.worker), row[-1]) for row, job in zip(rows, jobs, strict=True)]
    return table_lines(rows, width, painted=wants_color(sys.stdout), headings=headings)


def table_lines(
    rows: Sequence[Sequence[str]], width: int, *, painted: bool = False, headings: Sequence[str] = HEADINGS
) -> list[str]:
    """Aligned columns. Names are cut first where there is no room; the last column gets what is left."""

    def paint(heading: str, text: str) -> str:
        return click.style(text, fg=COLOURS[text]) if painted and heading == "STATE" and text in COLOURS else text

    names = [name for name in NAMES if name in headings]
    return table(
        headings,
        rows,
        right=TO_THE_RIGHT,
        squeezed=names,
        width=width,
        widest=WIDEST,
        rest=ERROR_LEAST,
        paint=paint,
    )


def job_page(job: Job, tries: Sequence[Try]) -> str:
    """Every field on a line of its own; payload and errors whole. Below, a line for each try."""
    fields = page(_fields(job), 18, whole=("last_error", "payload", "result"))
    return "\n".join([fields, "", *_tries_table(tries)]) if tries else fields


def _tries_table(tries: Sequence[Try]) -> list[str]:
    rows = [
        (
            *(str(one.round), str(one.number), say(one.ended_at), one.outcome.value, one.error_class or "-"),
            *(one.worker or "-", telling_line(one.error) if one.error else "-"),
        )
        for one in tries
    ]
    headings = ("ROUND", "ATTEMPT", "ENDED", "OUTCOME", "ERROR CLASS", "WORKER", "ERROR")
    return table(headings, rows, right=("ROUND", "ATTEMPT"))


def failures_table(groups: Sequence[Failures]) -> list[str]:
    """The last error of each group is that of the job that failed last; it may have begun before what was looked at."""
    rows = [
        (
            *(str(one.jobs), one.task, one.error_class or "-", f"{'before ' * one.is_cut}{say(one.since)}"),
            *(str(one.latest), say(one.latest_at)),
            telling_line(one.error) if one.error else "-",
        )
        for one in groups
    ]
    headings = ("JOBS", "TASK", "ERROR CLASS", "SINCE", "LATEST", "FAILED AT", "LAST ERROR")
    return table(headings, rows, right=("JOBS", "LATEST"))


def failures_json(group: Failures) -> str:
    """One line."""
    return json.dumps(msgspec.structs.asdict(group), default=_plain)


def job_json(job: Job, tries: Sequence[Try] | None = None) -> str:
    """One line, with its tries where they are given. ASCII only, so that it may be looked at in a terminal as well."""
    fields = _fields(job)
    if tries is not None:
        fields["tries"] = [msgspec.structs.asdict(one) for one in tries]
    fields["payload"] = _decoded(job.payload_text)
    fields["result"] = _decoded(job.result_text) if job.result_text is not None else None
    return json.dumps(fields, default=_plain)


def _fields(job: Job) -> dict[str, Any]:
    """By the names that people know. Of payload and result the texts, for what cannot be read is shown too."""
    return {field.name: getattr(job, ATTRIBUTES[field.name]) for field in FIELDS}


def _cells(job: Job) -> tuple[str, ...]:
    return (
        str(job.id),
        job.state.value,
        _name(job.task),
        f"{job.attempts}/{job.max_attempts}",
        *(_cell(field, getattr(job, field.name)) for field in LISTED),
        escape(telling_line(job.last_error)) if job.last_error else "-",
    )


def _cell(field: Field, value: Any) -> str:
    if field.kind is Kind.TEXT:
        return _name(value)
    return say(value) if field.kind is Kind.MOMENT else str(value)


def _name(text: str | None) -> str:
    return escape(text) if text else "-"


def _decoded(text: str) -> Any:
    """The value; the text itself where it is not strict JSON, so that one bad row does not spoil a list."""
    try:
        return strict_json.decode(text)
    except UndecodablePayload:
        return text


def _plain(value: object) -> str:
    assert isinstance(value, datetime)
    return value.astimezone(UTC).isoformat()
