"""``on_failure``: the job that is enqueued when another one has permanently failed, and the limits of its payload.

The same rules are in SQL: functions/on_failure.sql (PostgreSQL) and the trigger stowhand_failed (SQLite).
"""

from __future__ import annotations

from typing import Any

import msgspec

from stowhand.jobs import strict_json
from stowhand.jobs.job import NewJob

MAX_PAYLOAD_BYTES_WITH_FULL_ERROR = 900_000
"""Maximum size of the failed job's payload with the whole error; above it ``SHORT_ERROR_CHARACTERS`` are passed on."""
SHORT_ERROR_CHARACTERS = 1000
MAX_ARGUMENTS_BYTES = 1_040_000
"""Maximum bytes of arguments that are passed on. Larger or too deeply nested ones become ``null``."""
NOT_ENQUEUED_PREFIX = "on_failure could not be enqueued: "
"""Prefix of the reason, in the error of the failed job."""


class Failure(msgspec.Struct, frozen=True):
    """The argument of an ``on_failure`` task: its ``payload`` parameter, or parameters with these names."""

    job_id: int
    """The id of the failed job."""
    task: str
    arguments: Any
    """The failed job's payload; ``None`` if it is too large to pass on, or nested 64 deep: read the job instead."""
    error_class: str | None
    """As ``FailedAttempt.error_class``: the exception's class, ``WorkerDied``, ``by hand``, or ``None`` if unknown."""
    error: str
    """The error text, which may be shortened; empty if there is none."""


def failure_job(
    handler: NewJob, *, job_id: int, task: str, payload: str, error_class: str | None, error: str
) -> NewJob:
    """Return the job that reports a failure: ``handler`` with a payload."""
    size = len(payload.encode())
    arguments = "null" if size > MAX_ARGUMENTS_BYTES or strict_json.is_deepest(payload) else payload
    text = error if size <= MAX_PAYLOAD_BYTES_WITH_FULL_ERROR else error[:SHORT_ERROR_CHARACTERS]
    failure = Failure(job_id, task, msgspec.Raw(arguments.encode()), error_class, text)
    return msgspec.structs.replace(handler, payload=msgspec.json.encode(failure).decode())


SAMPLE_PAYLOADS = tuple(
    msgspec.json.encode(Failure(1, "a_task", {}, error_class, "text")).decode() for error_class in ("ValueError", None)
)
"""Payloads that an ``on_failure`` task must accept."""
