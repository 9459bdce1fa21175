"""Conversion of new jobs to the values of statements, and of their rows to jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from stowhand.jobs import limits
from stowhand.jobs.job import Job, KeyMode, NewJob, State
from stowhand.jobs.limits import (
    BUILT_IN_TASKS,
    MAX_FLAG_CHARACTERS,
    MAX_FLAGS,
    MAX_QUEUE_CHARACTERS,
    MAX_SERIAL_CHARACTERS,
    MAX_TASK_CHARACTERS,
)
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.stores.database.statements import plain_array, quoted, text_array
from stowhand.stores.kernel.columns import DETAILS
from stowhand.stores.postgres.queue.rows import Row

T = TypeVar("T")
_details: Callable[[NewJob], tuple[Any, ...]] = attrgetter(*DETAILS)
_FLAGS = DETAILS.index("flags")
_QUEUE = DETAILS.index("queue")


def is_plain(job: NewJob) -> bool:
    """Whether the job needs none of the schema's checks: no key, no escape in its payload, values far from limits."""
    return (
        job.key is None
        and (not job.flags or _are_short(job.flags))
        and job.key_mode is KeyMode.REPLACE
        and job.on_failure is None
        and job.expires is None
        and 0 < len(job.task) <= MAX_TASK_CHARACTERS
        and job.task not in BUILT_IN_TASKS
        and (job.serial is None or len(job.serial) <= MAX_SERIAL_CHARACTERS)
        and (job.queue is None or 0 < len(job.queue) <= MAX_QUEUE_CHARACTERS)
        and (job.max_attempts is None or job.max_attempts > 0)
        and (job.max_resets is None or job.max_resets >= 0)
        and len(job.payload) < 8192
        and "\\u" not in job.payload
    )


def _are_short(flags: tuple[str, ...]) -> bool:
    return len(flags) <= MAX_FLAGS and all(0 < len(flag) <= MAX_FLAG_CHARACTERS for flag in flags)


def enqueue_call(job: NewJob, now: datetime | None) -> tuple[str, tuple[object, ...]]:
    """Return the name of the statement for any job, and its values."""
    if has_extended_options(job):
        job = limits.check_options(job)
    on_failure = None if job.on_failure is None else msgspec.json.encode(job.on_failure).decode()
    return "enqueue", (*built_in_values(job, now), on_failure, job.expires, job.unique_period)


def enqueue_jobs_call(jobs: Sequence[NewJob], now: datetime | None) -> tuple[str, tuple[object, ...]]:
    """Return the name of the statement for several jobs, in this order, and its values."""
    checked = [limits.check_options(job) for job in jobs]
    return "enqueue_jobs", (msgspec.json.encode(checked).decode(), now)


def has_extended_options(job: NewJob) -> bool:
    """Whether the job has options besides a key that ``enqueue_many`` does not accept."""
    return job.on_failure is not None or job.expires is not None or job.unique_period is not None


def plain_values(job: NewJob, now: datetime | None) -> tuple[object, ...]:
    """Return the values of the statement ``enqueue_plain``, for a job that names its queue."""
    details = _detail_values(job)
    if job.queue == DEFAULT_QUEUE:
        details[_QUEUE] = None
    return (job.task, job.payload, job.run_at, job.delay, now, *details)


def built_in_values(job: NewJob, now: datetime | None) -> tuple[object, ...]:
    """Return the values of the statement ``enqueue_built_in``; those of ``enqueue`` begin with them."""
    return (
        *(job.task, job.payload, job.run_at, job.delay, job.key, job.key_mode.value),
        *_detail_values(job),
        now,
    )


def _detail_values(job: NewJob) -> list[object]:
    values: list[object] = list(_details(job))
    values[_FLAGS] = list(dict.fromkeys(job.flags)) if job.flags else None
    return values


def bulk_values(jobs: Sequence[NewJob], now: datetime | None) -> tuple[object, ...]:
    """Return the values of the statements ``enqueue_many`` and ``enqueue_group``, for jobs without keys."""
    return (*_arrays(jobs), now)


def bulk_values_of_each(jobs: Sequence[NewJob], now: datetime | None) -> tuple[object, ...]:
    """Return the last values of the statement ``flow_create``."""
    tasks, payloads, serials, run_ats, delays, max_attempts, priorities, flags, max_resets, _ = _arrays(jobs)
    keys = _unless_default([job.key for job in jobs], None, text_array)
    modes = _unless_default([job.key_mode for job in jobs], KeyMode.REPLACE, text_array)
    return (
        *(tasks, payloads, serials, run_ats, delays, max_attempts),
        *(keys, priorities, flags, modes, max_resets, now),
    )


def _arrays(jobs: Sequence[NewJob]) -> tuple[str | None, ...]:
    """Return an array for each column. A column with the default for all jobs is not sent."""
    tasks = {task: quoted(task) for task in {job.task for job in jobs}}
    return (
        "{" + ",".join([tasks[job.task] for job in jobs]) + "}",
        text_array([job.payload for job in jobs]),
        _unless_default([job.serial for job in jobs], None, text_array),
        _unless_default([job.run_at for job in jobs], None, moments),
        _unless_default([job.delay for job in jobs], None, plain_array),
        _unless_default([job.max_attempts for job in jobs], None, plain_array),
        _unless_default([job.priority for job in jobs], 0, plain_array),
        _unless_default([job.flags for job in jobs], (), _flags),
        _unless_default([job.max_resets for job in jobs], None, plain_array),
        _queues([job.queue for job in jobs]),
    )


def _unless_default(values: list[T], default: T, write: Callable[[list[T]], str]) -> str | None:
    return None if values.count(default) == len(values) else write(values)


def _queues(values: list[str | None]) -> str | None:
    """Return the array of queues. It is empty if all jobs are in ``default``, which saves the server a search."""
    is_all_default = values.count(DEFAULT_QUEUE) == len(values)
    return "{}" if is_all_default else _unless_default(values, None, text_array)


def moments(values: Sequence[datetime | None]) -> str:
    """Return an array literal of times."""
    return plain_array([None if value is None else f'"{value.astimezone(UTC).isoformat()}"' for value in values])


def _flags(values: Sequence[tuple[str, ...]]) -> str:
    # One JSON array per job: PostgreSQL has no array of arrays of different lengths.
    return text_array([msgspec.json.encode(list(dict.fromkeys(flags))).decode() if flags else None for flags in values])


def new_job(job: NewJob, row: Row) -> Job:
    """Return the job from one row of ``enqueue_plain`` or ``enqueue_group``, and the new job's values.

    A run time equal to the creation time is not sent, as reading it twice would cost as much as the rest.
    The details are written out, as a call with a dictionary takes three times as long.
    """
    id_, run_at, created_at, max_attempts, queue, _ = row
    return Job(
        id=id_,
        task=job.task,
        payload_text=job.payload,
        state=State.QUEUED,
        serial=job.serial,
        priority=job.priority,
        run_at=run_at or created_at,
        attempts=0,
        max_attempts=max_attempts,
        max_resets=job.max_resets,
        flags=tuple(dict.fromkeys(job.flags)) if job.flags else (),
        created_at=created_at,
        updated_at=created_at,
        queue=queue or DEFAULT_QUEUE,
    )
