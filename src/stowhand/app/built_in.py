"""Built-in tasks, which every worker has and a crontab line may name.

Their names are reserved: an application cannot declare such a task. Only a crontab and an administrator enqueue one
(limits.py).

``jobs:purge_completed``  deletes finished jobs by their age. Malformed values of its payload have the default:
                          ``{"completed_older_than_days": 14, "failed_older_than_days": 30}``
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from typing import Any

import msgspec

from stowhand.jobs.durations import MAX_DURATION_SECONDS
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.operator import BUILT_IN_TASKS, PURGE_TASK, Ages
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import QueueStore, lent_connection
from stowhand.protocols.store import SECONDS_PER_DAY
from stowhand.tasks.context import LoggerFactory
from stowhand.tasks.dispatch import TaskHandler
from stowhand.tasks.registry import Registry, TaskDefinition, define
from stowhand.worker.policy import Policy

DEFAULT_COMPLETED_DAYS = 14.0
DEFAULT_FAILED_DAYS = 30.0
MIN_AGE_SECONDS = 3600.0


def with_built_in(names: Sequence[str], *, is_remote: bool) -> tuple[str, ...]:
    """Return these tasks and the built-in ones, which workers of a remote store do not run."""
    return tuple(names) if is_remote else (*names, *BUILT_IN_TASKS)


def handler_on(store: QueueStore, tasks: Registry, new_logger: LoggerFactory, options: WorkerOptions) -> TaskHandler:
    """Return the handler of these tasks and the built-in ones, for a worker of this store."""

    async def open_store() -> QueueStore:
        return store

    async def enqueue(job: NewJob) -> Job:
        return await store.jobs.enqueue(tasks.apply_on_enqueue(job))

    return TaskHandler(
        tasks,
        enqueue=enqueue,
        logger_factory=new_logger,
        default=Policy(timeout=options.timeout, backoff=options.backoff),
        connect=partial(lent_connection, store),
        built_in=built_in(open_store),
        open_store=open_store,
    )


def built_in(open_store: Callable[[], Awaitable[QueueStore]]) -> Registry:
    """Return the built-in tasks for the store that ``open_store`` returns."""

    async def purge(payload: Any) -> dict[str, int]:
        ages = payload if isinstance(payload, dict) else {}
        completed = _seconds(ages.get("completed_older_than_days"), DEFAULT_COMPLETED_DAYS)
        failed = _seconds(ages.get("failed_older_than_days"), DEFAULT_FAILED_DAYS)
        purged = await (await open_store()).operate.purge(Ages(completed=completed, failed=failed, canceled=completed))
        return {name: getattr(purged, name) for name in purged.__struct_fields__}

    registry = Registry()
    registry.add(msgspec.structs.replace(_purge(), function=purge))
    return registry


@cache
def _purge() -> TaskDefinition:
    """Return the definition. It is cached, because each drain of a test makes a handler."""

    async def purge(payload: Any) -> dict[str, int]:
        raise NotImplementedError

    return define(purge, PURGE_TASK, {}, positional=True, built_in=True)


def _seconds(days: object, default: float) -> float:
    """Return the seconds of a number of days: at least an hour (less is a mistake), at most a hundred years."""
    if isinstance(days, bool) or not isinstance(days, int | float) or math.isnan(days) or days <= 0:
        days = default
    return min(
        max(float(min(days, MAX_DURATION_SECONDS / SECONDS_PER_DAY)) * SECONDS_PER_DAY, MIN_AGE_SECONDS),
        MAX_DURATION_SECONDS,
    )
