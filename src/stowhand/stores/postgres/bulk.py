"""A thousand jobs as nine arrays. What is the same default for all of them does not travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from stowhand.job import NewJob
from stowhand.stores.postgres.rows import plain_array, quoted, text_array

T = TypeVar("T")


class Bulk:
    """Unkeyed jobs on their way to the function ``enqueue_many``."""

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self._jobs = jobs

    def values(self, now: datetime | None) -> tuple[object, ...]:
        """The values of the statement ``enqueue_many``."""
        jobs = self._jobs
        tasks = {task: quoted(task) for task in {job.task for job in jobs}}
        return (
            "{" + ",".join([tasks[job.task] for job in jobs]) + "}",
            text_array([job.payload for job in jobs]),
            _unless_default([job.queue for job in jobs], None, text_array),
            _unless_default([job.run_at for job in jobs], None, _moments),
            _unless_default([job.delay for job in jobs], None, plain_array),
            _unless_default([job.max_attempts for job in jobs], 25, plain_array),
            _unless_default([job.priority for job in jobs], 0, plain_array),
            _unless_default([job.flags for job in jobs], (), _flags),
            _unless_default([job.max_resets for job in jobs], None, plain_array),
            now,
        )


def _unless_default(values: list[T], default: T, write: Callable[[list[T]], str]) -> str | None:
    return None if values.count(default) == len(values) else write(values)


def _moments(values: Sequence[datetime | None]) -> str:
    return plain_array([None if value is None else f'"{value.astimezone(UTC).isoformat()}"' for value in values])


def _flags(values: Sequence[tuple[str, ...]]) -> str:
    # One JSON array per job: PostgreSQL has no array of arrays of different lengths.
    return text_array([msgspec.json.encode(list(dict.fromkeys(flags))).decode() if flags else None for flags in values])
