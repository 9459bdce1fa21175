"""Operations on a queue store (pause, purge), and its reports: serial keys, workers, reasons why a job does not run.

Operator      a part of a store (queue_store.py)
WorkerList    a part of its heartbeats: workers register themselves
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs import limits
from stowhand.jobs.durations import MAX_DURATION_SECONDS, seconds
from stowhand.jobs.job import Job
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.jobs.task_limits import LimitValues, TaskDeclarations
from stowhand.protocols.counts import BoundedCount

PURGE_TASK = limits.PURGE_TASK
BUILT_IN_TASKS = limits.BUILT_IN_TASKS
"""Tasks that every worker has (app/built_in.py)."""
MAX_PURGE_COUNT = 1_000_000
"""Maximum number of jobs of one state that a dry run counts."""
WORKER_UPDATE_INTERVAL_SECONDS = 30.0
"""Time between two updates of a worker in the list."""
WORKER_TIMEOUT_SECONDS = 3 * WORKER_UPDATE_INTERVAL_SECONDS
"""Time after its last update for which a worker counts as alive."""
LOST_WORKER_RETENTION_SECONDS = 86_400.0
"""Time for which a lost worker stays in the list."""
VERSION_ABSENCE_SECONDS = 900.0
"""Time without a worker after which an application version counts as started again."""
VERSION_RETENTION_SECONDS = 90 * 86_400.0
"""Time for which application versions are kept."""
MAX_SHOWN_HELD_JOBS = 10
"""Default number of listed jobs per worker."""
MAX_SHOWN_SLOTS = 10
"""Maximum number of listed jobs per limit."""
MAX_SHOWN_WORKERS = 20
"""Maximum number of named workers per task."""
MAX_JOBS_AHEAD = 1000
"""Limit of the count of jobs ahead of a job."""


OVERDUE_SECONDS = 20.0
"""Twice the longest default poll: a runnable job does not wait longer while a slot is free."""
MAX_OVERDUE_JOBS = 20
"""Maximum number of overdue jobs in one answer."""


class SerialChange(msgspec.Struct, frozen=True):
    """The result of a pause or a resume."""

    serial: str
    changed: bool
    """False if it already was in that state."""


class TaskChange(msgspec.Struct, frozen=True):
    """The result of a pause or a resume of a task."""

    task: str
    changed: bool
    """False if it already was in that state."""


class QueueChange(msgspec.Struct, frozen=True):
    """The result of a pause or a resume of a queue."""

    queue: str
    changed: bool
    """False if it already was in that state."""


class LimitChange(msgspec.Struct, frozen=True):
    """The result of an override of a limit, or of its end."""

    limit: str
    changed: bool
    """False if its values were already in effect."""


class SerialRow(msgspec.Struct, frozen=True):
    """A serial key that has live jobs, or is paused."""

    name: str
    paused_since: datetime | None
    held_by: int | None
    """The running job, for which the next job of the key waits."""
    waiting: int
    due: int
    """Due jobs among the waiting ones."""
    running: int
    failed: int
    """Failed jobs, among the newest 10,000 if the store keeps more."""
    due_since: datetime | None = None
    """The due time of the earliest due job."""


class LimitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that tasks declare, and the jobs that use it or wait for it."""

    name: str
    values: LimitValues
    """The values in effect: those of ``override`` where it has some, otherwise those of ``declared``."""
    declared: LimitValues
    override: LimitValues
    tasks: tuple[str, ...]
    """The tasks that have it, ordered by name. Without any, only the override keeps the row."""
    used: int = 0
    """Number of running jobs that hold a slot of its concurrency."""
    used_by: tuple[int, ...] = ()
    """The ids of at most ten of these jobs, the longest running first."""
    used_since: datetime | None = None
    """The start of the first of these."""
    waiting: BoundedCount = BoundedCount()
    """Waiting jobs of its tasks."""
    due: BoundedCount = BoundedCount()
    """Due jobs among the waiting ones."""
    next_start: datetime | None = None
    """The time from which its rate lets a job start; ``None`` if one may start now."""
    held_until: datetime | None = None
    """No job starts before this time, because one raised ``RateLimited``; ``None`` if it is not held."""

    @property
    def is_full(self) -> bool:
        """True if all slots of its concurrency are in use."""
        return self.values.concurrency is not None and self.used >= self.values.concurrency


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """Ages after which jobs are purged, by state: seconds, a timedelta or a phrase. ``None`` keeps the jobs."""

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
                raise ConfigurationError(f"{name}: got {duration!r}; use 0 s to 100 years, or None")
            msgspec.structs.force_setattr(self, name, age)


class PurgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of deleted jobs, or of matching jobs in a dry run. ``MAX_PURGE_COUNT`` + 1 means that there are more."""

    completed: int = 0
    failed: int = 0
    canceled: int = 0


def own_version() -> str:
    """Return the version of this package, even without metadata, as in a zipapp."""
    return str(vars(sys.modules["stowhand"])["__version__"])


class WorkerDescription(msgspec.Struct, frozen=True):
    """The description that a worker registers."""

    name: str
    host: str
    pid: int
    version: str
    tasks: tuple[str, ...] | None
    """``None``: all tasks."""
    concurrency: int
    stopping: bool = False
    """True if it claims no new jobs."""
    forbidden_flags: tuple[str, ...] | None = ()
    """Flags whose jobs it does not claim; ``None``: a function returns them before each claim."""
    app_version: str | None = None
    """The version of the application (``STOWHAND_APP_VERSION``); ``None`` if not set."""
    abandoned_threads: int = 0
    """Number of threads that still run a handler whose attempt has ended."""
    blocked: bool = False
    """True if a handler blocks its event loop."""
    queues: Queues = ALL_QUEUES
    """The queues whose jobs it claims."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker in the list, for people: no lease or claim depends on it."""

    description: WorkerDescription
    started_at: datetime
    seen_at: datetime
    is_alive: bool
    """True if seen within ``WORKER_TIMEOUT_SECONDS``. A lost worker stays in the list for a day."""

    @property
    def state(self) -> str:
        """``alive``, ``blocked``, ``stopping`` or ``lost``."""
        if not self.is_alive:
            return "lost"
        if self.description.blocked:
            return "blocked"
        return "stopping" if self.description.stopping else "alive"


class HeldJobs(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that a worker leases, including those claimed ahead."""

    worker: str
    jobs: BoundedCount
    longest: Sequence[Job]
    """The longest leased jobs, without payload and with the first line of the last error."""


class AppVersion(msgspec.Struct, frozen=True):
    """An application version and the start time of its first worker. It is listed again after a long absence."""

    version: str
    since: datetime


class BacklogRow(msgspec.Struct, frozen=True, kw_only=True):
    """A known task or queue: counts of its jobs, and the workers that serve it.

    A task is known if it has live jobs, had some in the last hour, is paused, or a worker has it. A queue is known if
    it has live jobs, is paused, is named by a task or a worker, or is ``default``.
    """

    name: str
    paused_since: datetime | None
    waiting: BoundedCount
    due: BoundedCount
    """Due jobs among the waiting ones."""
    running: BoundedCount
    failed: BoundedCount
    serving: int
    """Number of live workers that serve it."""
    workers: tuple[str, ...]
    """The names of the first twenty of these workers."""

    @property
    def is_unserved(self) -> bool:
        """True if jobs are due and no live worker serves them."""
        return self.due.number > 0 and not self.serving


class Reason(msgspec.Struct, frozen=True):
    """One reason why a job is not running."""

    code: str
    """Machine-readable code: ``running``, ``not_due``, …"""
    text: str
    """The reason as a sentence."""
    advice: str = ""
    """What to do about it; empty if nothing."""


class Explanation(msgspec.Struct, frozen=True):
    """A job and the reasons why it is not running, the most important first."""

    job: Job
    reasons: tuple[Reason, ...]


class Operator(Protocol):
    """Pauses, overrides of limits, and purges."""

    async def pause_serial(self, name: str) -> SerialChange:
        """Stop claiming jobs of this serial key; a running job continues. Raises InvalidJob for an invalid name."""

    async def resume_serial(self, name: str) -> SerialChange:
        """Let its jobs be claimed again; workers are woken."""

    async def pause_task(self, name: str) -> TaskChange:
        """Stop claiming jobs of this task; running jobs continue. Raises InvalidJob for an invalid name."""

    async def resume_task(self, name: str) -> TaskChange:
        """Let its jobs be claimed again; workers are woken."""

    async def pause_queue(self, name: str) -> QueueChange:
        """Stop claiming jobs of this queue; running jobs continue. Raises InvalidJob for an invalid name."""

    async def resume_queue(self, name: str) -> QueueChange:
        """Let its jobs be claimed again; workers are woken."""

    async def set_limit(self, name: str, changes: LimitValues) -> LimitChange:
        """Override values of a limit, for all workers, until ``reset_limit``; declarations do not change them.

        ``None`` leaves a value unchanged. Running jobs continue: above a lower concurrency, nothing starts until fewer
        run. A concurrency of 0 starts nothing. Raises InvalidJob for an unknown limit, or a value that it cannot have.
        """

    async def reset_limit(self, name: str) -> LimitChange:
        """Remove the override of a limit, and end its hold; workers are woken. Raises InvalidJob if it is unknown."""

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> PurgeResult:
        """Delete jobs that ended longer ago than ``ages``, page by page. May be repeated.

        ``dry_run`` only counts them, up to ``MAX_PURGE_COUNT`` of each state.
        """


@runtime_checkable
class WorkerList(Protocol):
    """Heartbeats that keep the list of workers. Raises StoreUnreachable."""

    async def worker_seen(self, description: WorkerDescription, declarations: TaskDeclarations) -> None:
        """Register the worker, or update its entry.

        The first call of these heartbeats stores the declarations of its tasks, so the version of the application that
        started last wins.
        """

    async def declare_tasks(self, declarations: TaskDeclarations) -> None:
        """Store the queues of tasks, for producers that do not know them, and their limits, which all workers obey."""

    async def worker_gone(self, name: str) -> None:
        """Deregister a worker. No effect if it is not registered."""


def read_serial(name: str) -> str:
    """Return the name of a serial key. Raises InvalidJob."""
    return limits.check_serial("serial", name)


def read_task(name: str) -> str:
    """Return the name of a task. Raises InvalidJob."""
    return limits.check_name("task", name, limits.MAX_TASK_CHARACTERS)


def read_limit(name: str) -> str:
    """Return the name of a limit. Raises InvalidJob."""
    return limits.check_name("limit", name, limits.MAX_TASK_CHARACTERS)


def read_queue(name: str) -> str:
    """Return the name of a queue. Raises InvalidJob."""
    return limits.check_queue("queue", name)


def worker_row(description: WorkerDescription, started_at: datetime, seen_at: datetime, now: datetime) -> WorkerRow:
    """Return the row of a worker. ``now`` is from the store's clock."""
    alive = now - seen_at < timedelta(seconds=WORKER_TIMEOUT_SECONDS)
    return WorkerRow(description=description, started_at=started_at, seen_at=seen_at, is_alive=alive)
