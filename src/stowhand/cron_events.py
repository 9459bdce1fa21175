"""The closed list of things that happen, continued: those of the scheduler."""

from __future__ import annotations

from datetime import datetime

from stowhand.events import Event


class CronStarted(Event, frozen=True):
    """The scheduler knows its items and has made up for what was missed."""

    items: tuple[str, ...]
    backfilled: int


class CronScheduled(Event, frozen=True):
    """A tick of an item has become a job."""

    identifier: str
    task: str
    job_id: int
    at: datetime
    backfilled: bool
    late: float
    """Seconds between the tick and its job, by the store's clock."""


class CronConflict(Event, frozen=True):
    """Another scheduler has scheduled this tick, from an item that is not ours, under the same identifier."""

    identifier: str
    at: datetime
    ours: str
    theirs: str


class CronClockMoved(Event, frozen=True):
    """The store's clock is not where it should be. Back (negative): nothing is repeated. Forward: all is caught up."""

    seconds: float


class CronTrouble(Event, frozen=True):
    """Scheduling failed; it begins anew, backfill included, after ``retry_in`` seconds."""

    error: str
    retry_in: float


class CronReloaded(Event, frozen=True):
    """The crontab was read again. ``problem``: why the old items stay."""

    items: tuple[str, ...]
    problem: str | None
