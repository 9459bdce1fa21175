"""What operators ask of a queue: pause it, purge it, who works on it, and why does a job not run.

Operator   the questions, of every store that we own whole
WorkerList       the heart's side of it: workers write down that they are there
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs import limits
from stowhand.jobs.job import Job
from stowhand.protocols.figures import Figures, Pauses
from stowhand.protocols.store import LONGEST_HISTORY

PURGE = limits.PURGE
BUILT_IN = limits.RESERVED
"""Tasks that every worker has (service/built_in.py)."""
SEEN_EVERY = 30.0
"""Seconds between two entries of a worker in the roll."""
ALIVE_FOR = 3 * SEEN_EVERY
"""Seconds after its last entry for which a worker counts as alive."""
FORGOTTEN_AFTER = 86_400.0
"""Seconds after which a worker that said no goodbye is left out of the roll."""
MOST_AHEAD = 1000
"""So many jobs ahead of another are counted, and no more."""


class QueueChange(msgspec.Struct, frozen=True):
    """What a pause or a resume did."""

    queue: str
    changed: bool
    """False: it was so already."""


class TaskChange(msgspec.Struct, frozen=True):
    """What a pause or a resume of a task, or of the jobs without a queue, did."""

    task: str | None
    """``None``: the jobs without a queue."""
    changed: bool
    """False: it was so already."""


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A named queue that has live jobs, or is paused."""

    name: str
    paused_since: datetime | None
    held_by: int | None
    """The job that runs: the next one of the queue waits for it."""
    waiting: int
    due: int
    """Of those that wait."""
    running: int
    failed: int


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds since they ended after which jobs are purged; ``None``: those of that state are left alone."""

    completed: float | None = None
    failed: float | None = None
    canceled: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            age = getattr(self, name)
            if age is not None and not 0 <= age <= LONGEST_HISTORY:
                raise ConfigurationError(f"{name}: {age!r} s given; give 0 s to 100 years, or None")


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs were deleted, or would be."""

    completed: int = 0
    failed: int = 0
    canceled: int = 0


class WorkerCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself."""

    name: str
    host: str
    pid: int
    version: str
    tasks: tuple[str, ...] | None
    """``None``: any."""
    concurrency: int
    stopping: bool = False
    """It takes nothing new."""
    forbidden_flags: tuple[str, ...] | None = ()
    """Jobs that bear one of these it leaves alone; ``None``: a function says which, anew each time."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker in the roll. For people: no lease and no claim depends on it."""

    card: WorkerCard
    started_at: datetime
    seen_at: datetime
    alive: bool
    """It was seen a short time ago; one that was killed stays in the roll for a day."""


class Reason(msgspec.Struct, frozen=True):
    """One reason why a job does not run just now."""

    code: str
    """One of ``explaining.CODES``."""
    what: str
    """A sentence."""
    todo: str = ""
    """What to do about it, if anything."""


class Explanation(msgspec.Struct, frozen=True):
    """A job, and every reason why it is not running; the most important first."""

    job: Job
    reasons: tuple[Reason, ...]


class Operator(Protocol):
    """What an operator asks."""

    async def pause_queue(self, name: str) -> QueueChange:
        """From now on no job of this queue is claimed; a running one goes on. Raises InvalidJob for no name."""

    async def resume_queue(self, name: str) -> QueueChange:
        """Its jobs are claimed again; workers are woken."""

    async def pause_task(self, name: str) -> TaskChange:
        """From now on no job of this task is claimed, in whatever queue; a running one goes on. Raises InvalidJob for
        no name."""

    async def resume_task(self, name: str) -> TaskChange:
        """Its jobs are claimed again; workers are woken."""

    async def pause_unqueued(self) -> TaskChange:
        """From now on no job without a queue is claimed; a running one goes on."""

    async def resume_unqueued(self) -> TaskChange:
        """They are claimed again; workers are woken."""

    async def pauses(self) -> Pauses:
        """The tasks that are paused, and since when; and the jobs without a queue."""

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        """Those of them that have failed are due now, attempts and resets 0; their ids, in order. Others stay."""

    async def queues(self) -> Sequence[QueueRow]:
        """Those that have live jobs or are paused, by name."""

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> Purged:
        """Delete what ended longer ago than that, page by page; ``dry_run``: only count it. May be repeated."""

    async def workers(self) -> Sequence[WorkerRow]:
        """Who works, or did and said no goodbye, by name."""

    async def explain(self, job_id: int) -> Explanation | None:
        """Why the job is not running; ``None``: there is no such job."""

    async def figures(self) -> Figures:
        """How many jobs stand where, and how many ended lately; within a moment, whatever the store holds."""


@runtime_checkable
class WorkerList(Protocol):
    """A heart that keeps the roll of workers. Blocking; raises StoreUnreachable."""

    def worker_seen(self, card: WorkerCard) -> None:
        """It is there, now."""

    def worker_gone(self, name: str) -> None:
        """It has said goodbye. Harmless when it was never seen."""


def read_queue(name: str) -> str:
    """A name that a queue may have. Raises InvalidJob."""
    return limits.check_name("queue", name, limits.QUEUE_LIMIT)


def read_task(name: str) -> str:
    """A name that a task may have. Raises InvalidJob."""
    return limits.check_name("task", name, limits.TASK_LIMIT)


def worker_row(card: WorkerCard, started_at: datetime, seen_at: datetime, now: datetime) -> WorkerRow:
    """Judged by the store's clock."""
    alive = now - seen_at < timedelta(seconds=ALIVE_FOR)
    return WorkerRow(card=card, started_at=started_at, seen_at=seen_at, alive=alive)
