"""The options of an enqueue call, and their effect on a new job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, cast

import msgspec

from stowhand.errors import InvalidJob, suggest
from stowhand.jobs import limits
from stowhand.jobs.durations import Duration
from stowhand.jobs.job import KeyMode, NewJob


class EnqueueOptions(TypedDict, total=False):
    """Options of a job: when, where and how often it runs. An absent option has the task's value, or the default."""

    queue: str | None
    """The queue, by which workers select jobs. At most 128 characters."""
    serial: str | None
    """The serial key. Jobs with the same key run one after another. At most 128 characters."""
    delay: Duration | None
    """The job is due this much later (seconds, a timedelta, or a phrase: "5m"), by the store's clock."""
    run_at: datetime | None
    """The time at which the job is due; with a time zone."""
    priority: int
    """Jobs with a smaller number run first. 32 bits."""
    key: str | None
    """The job key. At most one waiting job has it; enqueueing it again updates that job. At most 512 characters."""
    key_mode: KeyMode | Literal["replace", "preserve_run_at", "unsafe_dedupe", "unique"]
    """Effect of enqueueing the key again: replace all fields, all but the time, or nothing (also for a failed job)."""
    max_attempts: int
    max_resets: int | None
    """Maximum number of times that its worker may die while running it."""
    expires: Duration | None
    """Cancel the job if no worker has claimed it this long after ``run_at``, by the store's clock."""
    flags: Sequence[str]
    """Flags that a worker can be configured to skip. At most 64, of 128 characters each."""


OPTION_NAMES = tuple(EnqueueOptions.__annotations__)


class TaskSpec(EnqueueOptions, total=False):
    """``EnqueueOptions``, some also under the names of ``add_job`` in SQL. ``None`` means the default."""

    queue_name: str | None
    """Alias of ``serial``."""
    work_queue: str | None
    """Alias of ``queue``."""
    job_key: str | None
    """Alias of ``key``."""
    job_key_mode: KeyMode | Literal["replace", "preserve_run_at", "unsafe_dedupe", "unique"] | None
    """Alias of ``key_mode``."""


_ALIASES = {"queue_name": "serial", "work_queue": "queue", "job_key": "key", "job_key_mode": "key_mode"}


def read_spec(spec: TaskSpec) -> EnqueueOptions:
    """Return the options of a spec. Raises InvalidJob for an unknown option, or one under two names."""
    options: dict[str, Any] = {}
    for name, value in spec.items():
        if name not in OPTION_NAMES and name not in _ALIASES:
            raise InvalidJob(f"no option {name!r}{suggest(name, (*OPTION_NAMES, *_ALIASES))}")
        field = _ALIASES.get(name, name)
        if value is None:
            continue
        if field in options:
            raise InvalidJob(f"{field} and {name}: one option under two names; use one of them")
        options[field] = value
    return cast("EnqueueOptions", options)


def apply_options(job: NewJob, options: Mapping[str, Any]) -> NewJob:
    """Return the job with these options. Raises InvalidJob for an unknown option, a wrong type, or a limit."""
    unknown = [name for name in options if name not in OPTION_NAMES]
    if unknown:
        raise InvalidJob(f"no option {unknown[0]!r}{suggest(unknown[0], OPTION_NAMES)}")
    changes = dict(options)
    # A delay replaces the run_at of the task, and vice versa. Both in one call contradict each other.
    if changes.get("delay") is not None:
        changes["delay"] = limits.read_delay(changes["delay"])
        changes.setdefault("run_at", None)
    elif changes.get("run_at") is not None:
        changes["delay"] = None
    if changes.get("expires") is not None:
        changes["expires"] = limits.read_delay(changes["expires"], "expires")
    changed = limits.check_options(msgspec.structs.replace(job, **changes))
    if changed.key is None and "key_mode" in options:
        raise InvalidJob("key_mode: has no effect without a key; use a key too")
    return changed
