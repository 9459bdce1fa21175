"""Columns of jobs, failed attempts and groups of failures."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from stowhand.cli.columns import Column, fields, page, table
from stowhand.errors import UndecodablePayload
from stowhand.jobs import strict_json
from stowhand.jobs.durations import format_time
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.fields import ATTRIBUTE_NAMES, FIELDS, Field, Kind
from stowhand.jobs.job import Job
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.protocols.queue_store import Failures
from stowhand.protocols.workflows import RecordedStep

MAX_SHOWN_CHARACTERS = 80
"""Maximum length of the value of a step in a table."""
STATE_COLORS = {"failed": "red", "errored": "yellow", "processing": "cyan", "completed": "green", "canceled": "blue"}


def _column(field: Field) -> Column[Job]:
    if field.kind is Kind.JSON:
        text = attrgetter(ATTRIBUTE_NAMES[field.name])
        return Column(field.name, value=lambda job: _decoded_or_text(text(job)), text=text, is_multiline=True)
    return Column(
        field.name,
        field.name.replace("_", " ").upper(),
        is_right_aligned=field.kind is Kind.WHOLE,
        can_shrink=field.kind is Kind.TEXT,
        is_multiline=field.name == "last_error",
        colors=STATE_COLORS if field.kind is Kind.STATE else {},
    )


def _decoded_or_text(text: str | None) -> Any:
    """Return the decoded value, or the text itself if it is not valid JSON: one bad row must not break a list."""
    try:
        return None if text is None else strict_json.decode(text)
    except UndecodablePayload:
        return text


JOB_COLUMNS = {field.name: _column(field) for field in FIELDS}
ATTEMPTS_COLUMN: Column[Job] = Column(
    heading="ATTEMPTS", text=lambda job: f"{job.attempts}/{job.max_attempts}", is_right_aligned=True
)
ATTEMPT_COLUMNS: list[Column[FailedAttempt]] = [
    Column("round", "ROUND", is_right_aligned=True),
    Column("number", "ATTEMPT", is_right_aligned=True),
    Column("ended_at", "ENDED"),
    Column("outcome", "OUTCOME"),
    Column("error_class", "ERROR CLASS"),
    Column("worker", "WORKER"),
    Column("error", "ERROR", is_multiline=True),
]
FAILURE_COLUMNS: list[Column[Failures]] = [
    Column("jobs", "JOBS", is_right_aligned=True),
    Column("task", "TASK"),
    Column("error_class", "ERROR CLASS"),
    Column(
        "since",
        "SINCE",
        text=lambda group: f"before {format_time(group.since)}" if group.is_cut else format_time(group.since),
    ),
    Column("latest", "LATEST", is_right_aligned=True),
    Column("latest_at", "FAILED AT"),
    Column("error", "LAST ERROR", is_multiline=True),
    Column("is_cut"),
]


STEP_COLUMNS: list[Column[RecordedStep]] = [
    Column("name", "STEP"),
    Column("place", "PLACE", is_right_aligned=True),
    Column("at", "RECORDED"),
    Column("until", "UNTIL"),
    Column("remaining", "REMAINING", is_right_aligned=True),
    Column("value", "VALUE", value=lambda step: _decoded_or_text(step.value), text=lambda step: _shorten(step.value)),
    Column("error", "ERROR", text=lambda step: _shorten(step.error)),
]


def _shorten(text: str | None) -> str:
    shown = text or ""
    return shown if len(shown) <= MAX_SHOWN_CHARACTERS else f"{shown[:MAX_SHOWN_CHARACTERS]}…"


def list_columns(jobs: Sequence[Job]) -> list[Column[Job]]:
    """Return the columns of a table of these jobs. Workers have a column only if one has claimed a job."""
    hidden = {"queue"} if all(job.queue == DEFAULT_QUEUE for job in jobs) else set()
    options = [JOB_COLUMNS[field.name] for field in FIELDS if field.heading and field.name not in hidden]
    leading = [JOB_COLUMNS["id"], JOB_COLUMNS["state"], JOB_COLUMNS["task"], ATTEMPTS_COLUMN, *options]
    workers = [JOB_COLUMNS["worker"]] if any(job.worker is not None for job in jobs) else []
    return [*leading, *workers, JOB_COLUMNS["last_error"]]


def job_fields(job: Job) -> dict[str, Any]:
    """Return all fields for JSON."""
    return fields([*JOB_COLUMNS.values()], job)


def job_page(job: Job, tries: Sequence[FailedAttempt]) -> str:
    """Return a line for each field, with whole payloads and errors, and a line for each failed attempt."""
    lines = page([*JOB_COLUMNS.values()], job)
    return "\n".join([lines, "", *table(ATTEMPT_COLUMNS, tries)]) if tries else lines
