"""``on_failure``: the job that is enqueued when another has failed for good, and the limits of what is handed on to it.

In SQL: functions/on_failure.sql; on SQLite: the trigger stowhand_failed. All three cut the same.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stowhand.jobs import strict_json
from stowhand.jobs.job import NewJob

MAX_PAYLOAD_BYTES_WITH_FULL_ERROR = 900_000
"""Bytes of arguments, up to which the whole text is handed on; beyond it the first ``CUT_ERROR`` characters."""
SHORT_ERROR_CHARACTERS = 1000
MAX_ARGUMENTS_BYTES = 1_040_000
"""Bytes of arguments that are handed on; larger ones, and those that are nested too deep, are ``null``."""
NOT_ENQUEUED_PREFIX = "on_failure could not be enqueued: "
"""Prefix of the reason in the error of the failed job."""


class Failure(msgspec.Struct, frozen=True):
    """Argument of a task that ``on_failure`` names: one ``payload``, or parameters of these names."""

    job_id: int
    """Of the job that has failed."""
    task: str
    arguments: Any
    """Its payload; ``None`` where it leaves no room for the rest in 1 MiB, or is nested 64 deep: look at the job."""
    error_class: str | None
    """As ``Try.error_class``: of its exception, or ``WorkerDied``, ``by hand``; ``None`` where it is not known."""
    error: str
    """The text, which may be cut; empty where there is none."""


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
"""Payloads that such a task must take."""
