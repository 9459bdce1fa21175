"""The options of an enqueue call, and how they change a job that is about to be made."""

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
    """When, where and how often a job runs. What is not given is the task's own, or the default."""

    queue: str | None
    """The class of work, by which workers choose. 128 characters."""
    serial: str | None
    """Jobs of one serial key run one after another. 128 characters."""
    delay: Duration | None
    """Not before so much later (seconds if a number, or a phrase: "5m"), by the store's clock."""
    run_at: datetime | None
    """Not before this moment; with a time zone."""
    priority: int
    """Smaller runs first. 32 bits."""
    key: str | None
    """At most one waiting job has it: a repeat updates that one. 512 characters."""
    key_mode: KeyMode | Literal["replace", "preserve_run_at", "unsafe_dedupe", "unique"]
    """What a repeat does: every detail anew, every detail but the time, or nothing (to one that failed, either)."""
    max_attempts: int
    max_resets: int | None
    """How often its worker may die under it."""
    expires: Duration | None
    """Canceled where no worker has claimed it so much later than its ``run_at``, by the store's clock."""
    flags: Sequence[str]
    """Marks that a worker can be configured to leave alone. 64 of 128 characters."""


OPTION_NAMES = tuple(EnqueueOptions.__annotations__)


class TaskSpec(EnqueueOptions, total=False):
    """``EnqueueOptions``, some also under the names of ``add_job`` in SQL. ``None``: the default."""

    queue_name: str | None
    """``serial``"""
    work_queue: str | None
    """``queue``"""
    job_key: str | None
    """``key``"""
    job_key_mode: KeyMode | Literal["replace", "preserve_run_at", "unsafe_dedupe", "unique"] | None
    """``key_mode``"""


_ALIASES = {"queue_name": "serial", "work_queue": "queue", "job_key": "key", "job_key_mode": "key_mode"}


def read_spec(spec: TaskSpec) -> EnqueueOptions:
    """Return the options of a spec. Raises InvalidJob for an unknown option, or one given under both names."""
    options: dict[str, Any] = {}
    for name, value in spec.items():
        if name not in OPTION_NAMES and name not in _ALIASES:
            raise InvalidJob(f"no option {name!r}{suggest(name, (*OPTION_NAMES, *_ALIASES))}")
        field = _ALIASES.get(name, name)
        if value is None:
            continue
        if field in options:
            raise InvalidJob(f"{field} and {name}: one option under two names; give one of them")
        options[field] = value
    return cast("EnqueueOptions", options)


def apply_options(job: NewJob, options: Mapping[str, Any]) -> NewJob:
    """Return the job with these options. Raises InvalidJob for an unknown option, a wrong type, or a limit."""
    unknown = [name for name in options if name not in OPTION_NAMES]
    if unknown:
        raise InvalidJob(f"no option {unknown[0]!r}{suggest(unknown[0], OPTION_NAMES)}")
    changes = dict(options)
    # The last word counts: a delay given to a task that has a run_at replaces it. Both in one call contradict.
    if changes.get("delay") is not None:
        changes["delay"] = limits.read_delay(changes["delay"])
        changes.setdefault("run_at", None)
    elif changes.get("run_at") is not None:
        changes["delay"] = None
    if changes.get("expires") is not None:
        changes["expires"] = limits.read_delay(changes["expires"], "expires")
    changed = limits.check_options(msgspec.structs.replace(job, **changes))
    if changed.key is None and "key_mode" in options:
        raise InvalidJob("key_mode: means nothing without a key; give key too")
    return changed
