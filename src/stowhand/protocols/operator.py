"""What operators do with a queue store: pause and purge; and what they see: serial keys, workers, why a job does not
run.

Operator      a part of a store (queue_store.py)
WorkerList    its heartbeats' part: workers register themselves
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs import limits
from stowhand.jobs.durations import MAX_DURATION_SECONDS, seconds
from stowhand.jobs.job import Job
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.counts import BoundedCount

PURGE_TASK = limits.PURGE_TASK
BUILT_IN_TASKS = limits.BUILT_IN_TASKS
"""Tasks that every worker has (app/built_in.py)."""
MAX_PURGE_COUNT = 1_000_000
"""Jobs of one state that a dry run counts, at most."""
WORKER_UPDATE_INTERVAL_SECONDS = 30.0
"""Seconds between two updates of a worker in the list."""
WORKER_TIMEOUT_SECONDS = 3 * WORKER_UPDATE_INTERVAL_SECONDS
"""Seconds after its last update for which a worker counts as alive."""
LOST_WORKER_RETENTION_SECONDS = 86_400.0
"""Seconds after which a worker that did not deregister is left out of the list."""
VERSION_ABSENCE_SECONDS = 900.0
"""Seconds without a worker of it after which a version of the application comes up anew."""
VERSION_RETENTION_SECONDS = 90 * 86_400.0
"""Seconds for which it is remembered that a version was there."""
MAX_SHOWN_HELD_JOBS = 10
"""Jobs that are shown of a worker, by default."""
MAX_SHOWN_WORKERS = 20
"""Workers that are named of a task."""
MAX_JOBS_AHEAD = 1000
"""Jobs ahead of another are counted up to this number."""


OVERDUE_SECONDS = 20.0
"""Two of a worker's longest polls, by default: a job that could run does not wait longer while a slot is free."""
MAX_OVERDUE_JOBS = 20
"""Overdue jobs that are looked at in one call."""


class SerialChange(msgspec.Struct, frozen=True):
    """The result of a pause or a resume."""

    serial: str
    changed: bool
    """False: it was so already."""


class TaskChange(msgspec.Struct, frozen=True):
    """The result of a pause or a resume of a task."""

    task: str
    changed: bool
    """False: it was so already."""


class QueueChange(msgspec.Struct, frozen=True):
    """The result of a pause or a resume of a queue."""

    queue: str
    changed: bool
    """False: it was so already."""


class SerialRow(msgspec.Struct, frozen=True):
    """A serial key that has live jobs, or is paused."""

    name: str
    paused_since: datetime | None
    held_by: int | None
    """The running job: the next one of the key waits for it."""
    waiting: int
    due: int
    """Of those that are waiting."""
    running: int
    failed: int
    """Of the newest 10,000 that have failed, in a store that keeps many."""
    due_since: datetime | None = None
    """Since when the first of those that are due has been so."""


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, a timedelta or a phrase after their end when jobs are purged; ``None``: those of that state are not."""

    completed: float | None = None
    failed: float | None = None
    canceled: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            duration = getattr(self, name)
            if duration is None:
                continue
            try:
                age = seconds(duration)
            except ValueError as error:
                raise ConfigurationError(f"{name}: {error}") from None
            if not 0 <= age <= MAX_DURATION_SECONDS:
                raise ConfigurationError(f"{name}: {duration!r} given; give 0 s to 100 years, or None")
            msgspec.structs.force_setattr(self, name, age)


class PurgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs were deleted, or would be: in a dry run ``PURGE_COUNTED`` + 1 means that there are more."""

    completed: int = 0
    failed: int = 0
    canceled: int = 0


def own_version() -> str:
    """The version of this package: also where it has no metadata, in a zipapp or run from its source."""
    return str(vars(sys.modules["stowhand"])["__version__"])


class WorkerDescription(msgspec.Struct, frozen=True):
    """How a worker describes itself."""

    name: str
    host: str
    pid: int
    version: str
    tasks: tuple[str, ...] | None
    """``None``: any."""
    concurrency: int
    stopping: bool = False
    """It claims nothing new."""
    forbidden_flags: tuple[str, ...] | None = ()
    """It leaves jobs with one of these alone; ``None``: a function returns them before each claim."""
    app_version: str | None = None
    """The version of the application (``STOWHAND_APP_VERSION``); ``None``: it does not say."""
    abandoned_threads: int = 0
    """Threads that still run a handler whose attempt has ended: they cannot be stopped."""
    blocked: bool = False
    """Its event loop does not run: a handler blocks it."""
    queues: Queues = ALL_QUEUES
    """The queues whose jobs it claims."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker in the list. For people: no lease and no claim depends on it."""

    card: WorkerDescription
    started_at: datetime
    seen_at: datetime
    alive: bool
    """It was seen within ``ALIVE_FOR``; one that was killed stays in the list for a day."""

    @property
    def state(self) -> str:
        """``alive``, ``blocked``, ``stopping`` or ``lost``."""
        if not self.alive:
            return "lost"
        if self.card.blocked:
            return "blocked"
        return "stopping" if self.card.stopping else "alive"


class HeldJobs(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has under its leases, jobs that it has claimed ahead included."""

    worker: str
    jobs: BoundedCount
    longest: Sequence[Job]
    """Those that it has held longest; without payload, and of the last error its first line."""


class AppVersion(msgspec.Struct, frozen=True):
    """A version of the application, and when its first worker came up; once more after it was gone for a while."""

    version: str
    since: datetime


class BacklogRow(msgspec.Struct, frozen=True, kw_only=True):
    """A known task or queue: what it holds, and the workers that take its jobs.

    A task is known that has live jobs, had some within an hour, is paused, or that a worker has; a queue that has live
    jobs, is paused, or that a task or a worker names, and ``default``.
    """

    name: str
    paused_since: datetime | None
    waiting: BoundedCount
    due: BoundedCount
    """Of those that are waiting."""
    running: BoundedCount
    failed: BoundedCount
    serving: int
    """Workers that are alive and take its jobs."""
    workers: tuple[str, ...]
    """The names of the first twenty of them."""

    @property
    def is_unserved(self) -> bool:
        """Jobs of it are due, and no worker that is alive takes them."""
        return self.due.number > 0 and not self.serving


class Reason(msgspec.Struct, frozen=True):
    """One reason why a job is not running."""

    code: str
    """``running``, ``not_due``, …: for programs."""
    what: str
    """A sentence."""
    todo: str = ""
    """What to do about it, if anything."""


class Explanation(msgspec.Struct, frozen=True):
    """A job, and every reason why it is not running; the most important first."""

    job: Job
    reasons: tuple[Reason, ...]


class Operator(Protocol):
    """Pauses, and purges."""

    async def pause_serial(self, name: str) -> SerialChange:
        """Let no further job of this serial key be claimed; a running one goes on. Raises InvalidJob for an invalid
        name."""

    async def resume_serial(self, name: str) -> SerialChange:
        """Let its jobs be claimed again; workers are woken."""

    async def pause_task(self, name: str) -> TaskChange:
        """Let no further job of this task be claimed, whatever their serial key; running ones go on. Raises InvalidJob
        for an invalid name."""

    async def resume_task(self, name: str) -> TaskChange:
        """Let its jobs be claimed again; workers are woken."""

    async def pause_queue(self, name: str) -> QueueChange:
        """Let no further job of this queue be claimed, whatever its task and serial key; running ones go on. Raises
        InvalidJob for an invalid name."""

    async def resume_queue(self, name: str) -> QueueChange:
        """Let its jobs be claimed again; workers are woken."""

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> PurgeResult:
        """Delete jobs that ended longer ago than ``ages``, page by page; ``dry_run``: only count, up to
        ``PURGE_COUNTED`` of each state. May be repeated."""


@runtime_checkable
class WorkerList(Protocol):
    """Heartbeats that keep the list of workers. Raises StoreUnreachable."""

    async def worker_seen(self, card: WorkerDescription, task_queues: Mapping[str, str]) -> None:
        """Register the worker, or update its entry: it is alive now.

        ``task_queues``: the queue that each of its tasks declares. The first call of these heartbeats declares them: of
        two versions that run beside each other, the newer one has declared them last.
        """

    async def declare_queues(self, task_queues: Mapping[str, str]) -> None:
        """Keep the queue of each task, for producers that name no queue and do not know the task."""

    async def worker_gone(self, name: str) -> None:
        """Deregister it. No error if it is not registered."""


def read_serial(name: str) -> str:
    """The name, if a serial key may have it. Raises InvalidJob."""
    return limits.check_name("serial", name, limits.SERIAL_LIMIT)


def read_task(name: str) -> str:
    """The name, if a task may have it. Raises InvalidJob."""
    return limits.check_name("task", name, limits.TASK_LIMIT)


def read_queue(name: str) -> str:
    """The name, if a queue may have it. Raises InvalidJob."""
    return limits.check_queue("queue", name)


def worker_row(card: WorkerDescription, started_at: datetime, seen_at: datetime, now: datetime) -> WorkerRow:
    """Whether it is alive is decided by the store's clock."""
    alive = now - seen_at < timedelta(seconds=WORKER_TIMEOUT_SECONDS)
    return WorkerRow(card=card, started_at=started_at, seen_at=seen_at, alive=alive)
