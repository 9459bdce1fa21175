"""Jobs, their tries and groups of failures, as columns."""

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

STATE_COLORS = {"failed": "red", "errored": "yellow", "processing": "cyan", "completed": "green", "canceled": "blue"}


def _column(field: Field) -> Column[Job]:
    if field.kind is Kind.JSON:
        text = attrgetter(ATTRIBUTE_NAMES[field.name])
        return Column(field.name, value=lambda job: _decoded(text(job)), text=text, lines=True)
    return Column(
        field.name,
        field.name.replace("_", " ").upper(),
        right=field.kind is Kind.WHOLE,
        squeezed=field.kind is Kind.TEXT,
        lines=field.name == "last_error",
        colors=STATE_COLORS if field.kind is Kind.STATE else {},
    )


def _decoded(text: str | None) -> Any:
    """The value; the text itself where it is not strict JSON, so that one bad row does not spoil a list."""
    try:
        return None if text is None else strict_json.decode(text)
    except UndecodablePayload:
        return text


JOB = {field.name: _column(field) for field in FIELDS}
ATTEMPTS: Column[Job] = Column(heading="ATTEMPTS", text=lambda job: f"{job.attempts}/{job.max_attempts}", right=True)
TRY: list[Column[FailedAttempt]] = [
    Column("round", "ROUND", right=True),
    Column("number", "ATTEMPT", right=True),
    Column("ended_at", "ENDED"),
    Column("outcome", "OUTCOME"),
    Column("error_class", "ERROR CLASS"),
    Column("worker", "WORKER"),
    Column("error", "ERROR", lines=True),
]
FAILURES: list[Column[Failures]] = [
    Column("jobs", "JOBS", right=True),
    Column("task", "TASK"),
    Column("error_class", "ERROR CLASS"),
    Column(
        "since",
        "SINCE",
        text=lambda group: f"before {format_time(group.since)}" if group.is_cut else format_time(group.since),
    ),
    Column("latest", "LATEST", right=True),
    Column("latest_at", "FAILED AT"),
    Column("error", "LAST ERROR", lines=True),
    Column("is_cut"),
]


def listed(jobs: Sequence[Job]) -> list[Column[Job]]:
    """The columns of a table of these jobs; that of workers only where one has a job."""
    left_out = {"queue"} if all(job.queue == DEFAULT_QUEUE for job in jobs) else set()
    options = [JOB[field.name] for field in FIELDS if field.heading and field.name not in left_out]
    before = [JOB["id"], JOB["state"], JOB["task"], ATTEMPTS, *options]
    workers = [JOB["worker"]] if any(job.worker is not None for job in jobs) else []
    return [*before, *workers, JOB["last_error"]]


def job_fields(job: Job) -> dict[str, Any]:
    """Return all fields for JSON."""
    return fields([*JOB.values()], job)


def job_page(job: Job, tries: Sequence[FailedAttempt]) -> str:
    """Every field on a line of its own; payload and errors whole. Below, a line for each try."""
    lines = page([*JOB.values()], job)
    return "\n".join([lines, "", *table(TRY, tries)]) if tries else lines
