"""Many jobs as a few arrays. What is the same default for all of them does not travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from stowhand.jobs.job import KeyMode, NewJob
from stowhand.stores.postgres.shared.array_literals import plain_array, quoted, text_array

T = TypeVar("T")


class Bulk:
    """Jobs on their way to the functions ``enqueue_many`` (none of them has a key) or ``flow_create``."""

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self._jobs = jobs

    def values(self, now: datetime | None) -> tuple[object, ...]:
        """The values of the statements ``enqueue_many`` and ``enqueue_group``."""
        return (*self._arrays(), now)

    def values_of_each(self, now: datetime | None) -> tuple[object, ...]:
        """The last values of the statement ``flow_create``."""
        tasks, payloads, serials, run_ats, delays, max_attempts, priorities, flags, max_resets = self._arrays()
        keys = _unless_default([job.key for job in self._jobs], None, text_array)
        modes = _unless_default([job.key_mode for job in self._jobs], KeyMode.REPLACE, text_array)
        return (
            *(tasks, payloads, serials, run_ats, delays, max_attempts),
            *(keys, priorities, flags, modes, max_resets, now),
        )

    def _arrays(self) -> tuple[str | None, ...]:
        jobs = self._jobs
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
        )


def _unless_default(values: list[T], default: T, write: Callable[[list[T]], str]) -> str | None:
    return None if values.count(default) == len(values) else write(values)


def moments(values: Sequence[datetime | None]) -> str:
    """An array literal of points in time."""
    return plain_array([None if value is None else f'"{value.astimezone(UTC).isoformat()}"' for value in values])


def _flags(values: Sequence[tuple[str, ...]]) -> str:
    # One JSON array per job: PostgreSQL has no array of arrays of different lengths.
    return text_array([msgspec.json.encode(list(dict.fromkeys(flags))).decode() if flags else None for flags in values])
