"""The seams of a store that we own whole, beyond what a worker needs.

Producer       enqueue one, many, or inside the caller's own transaction
Inspector      look at jobs, and act on them one by one: retry, cancel, remove
Administrator  complete, fail, reschedule and unlock many at once
Timetable      what recurs: which items are known, and the ledger of their ticks
Schema         install, check, plan, uninstall
Operator       pause queues, purge, who works, why does a job not run (operating.py)
QueueStore     all of these, a worker's Store, and what flows keep (flow_tables.py)
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import JobId
from stowhand.protocols.flow_tables import FlowTables
from stowhand.protocols.operating import Operator
from stowhand.protocols.store import Store


class Producer(Protocol):
    """Enqueueing. Jobs are checked before they come here; a store refuses what its own limits forbid."""

    async def enqueue(self, job: NewJob) -> Job:
        """Commit one job and wake a worker. Raises OutcomeUnknown, SchemaMissing, StoreUnreachable."""

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Enqueue any number in one transaction, streamed; their ids in the order given. All of them, or none."""

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """As ``enqueue_many``, with the jobs themselves, in the order given. For hundreds, not for millions."""

    def enqueue_in(self, connection: object, job: NewJob) -> object:
        """Enqueue inside the caller's transaction; the job is there when, and only if, the caller commits.

        Gives the ``Job``, or an awaitable of it when the connection is asynchronous.
        """


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list. Live and failed ones, unless a state says otherwise."""

    states: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    key: str | None = None
    worker: str | None = None
    """Only what this worker holds."""
    error: str | None = None
    """Only those whose last error holds this text, in whatever case."""
    since: datetime | None = None
    """Only those that ended at this moment or later; of those that are not over: that were made then."""
    until: datetime | None = None
    """Only those before this moment, likewise."""
    newest_first: bool = False
    """In falling order of ids; else in rising order."""
    after: int = 0
    """Keyset: only ids above this; newest first, below it, unless it is 0."""
    limit: int = 100


NEWEST = JobFilter(newest_first=True)
"""What is listed where nobody says: the newest hundred, live and failed."""


class Done(StrEnum):
    """What an action on a job did."""

    DONE = "done"
    ASKED = "asked"
    """A running job was asked to cancel; its worker hears it at the next beat."""
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    """Not in this state; the answer's ``why`` says what to do instead."""
    MISSING = "missing"


class Answer(msgspec.Struct, frozen=True):
    """What became of one asked-for action."""

    job_id: JobId | None
    done: Done
    why: str = ""


class Inspector(Protocol):
    """Looking at jobs, and acting on single ones."""

    async def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""

    async def list(self, wanted: JobFilter = NEWEST) -> Sequence[Job]:
        """In id order, rising unless the filter says ``newest_first``."""

    async def counts(self) -> dict[State, int]:
        """Live jobs and history by state; every state is a key."""

    async def oldest_due(self) -> float:
        """Seconds for which the job that is due longest could have run; 0 when none is due. Of any task.

        Jobs of paused queues wait for something else.
        """

    async def retry(self, job_id: int) -> Answer:
        """Due now, attempts and resets 0. Refused while processing and when completed."""

    async def cancel(self, job_id: int) -> Answer:
        """At once, or asked of its worker."""

    async def remove(self, job_id: int) -> Answer:
        """Delete. Refused while processing (cancel instead) and when completed."""

    async def remove_key(self, key: str) -> Answer:
        """Delete the job that holds the key; a running one loses it and will not run again."""


class Reschedule(msgspec.Struct, frozen=True, kw_only=True):
    """What to change about waiting or failed jobs. ``None`` leaves a detail as it is; 0 is 0."""

    run_at: datetime | None = None
    """Aware."""
    priority: int | None = None
    attempts: int | None = None
    """Clamped to the job's ``max_attempts``; at that number a waiting job is failed, below it a failed one waits."""
    max_attempts: int | None = None


class Administrator(Protocol):
    """Acting on many jobs at once. Jobs under a live lease are skipped; what was changed is returned, in id order.

    The state follows from the new numbers: the docs' table "what each call does in each state".
    """

    async def add_built_in(self, job: NewJob) -> Job:
        """Enqueue a job of a built-in task, which nobody else may but a crontab. Raises InvalidJob."""

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        """As if they had been worked off: waiting and failed ones are completed, their keys are free."""

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> Sequence[Job]:
        """Failed, with attempts = max_attempts; ``None``: "Manually marked as failed"."""

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        """Set the given details."""

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """As ``retry``, of each; a transaction for some hundreds. Answers in id order, each id once."""

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """As ``cancel``, of each; a transaction for some hundreds. Answers in id order, each id once."""

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """As ``remove``, of each; a transaction for some hundreds. Answers in id order, each id once."""

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Take back what these workers hold, as a reset does; they are fenced out should they still live."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """One moment at which an item of a crontab is due."""

    identifier: str
    at: datetime
    """Aware, UTC, a whole minute."""
    job: NewJob
    spec: str
    """The item in one spelling: two schedulers with different items under one identifier notice each other by it."""
    backfilled: bool = False


class Entered(msgspec.Struct, frozen=True):
    """What the ledger says about a tick after ``schedule``."""

    mine: bool
    """This call enqueued the job; otherwise another scheduler had done so."""
    job_id: int
    spec: str
    """Of whoever did."""


class KnownItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item of a crontab, as the store remembers it."""

    identifier: str
    known_since: datetime
    last_tick: datetime | None
    """The latest that was scheduled."""
    spec: str
    """As it was registered last."""


class Timetable(Protocol):
    """What recurs. Time here is the store's, so several schedulers agree whatever their own clocks say."""

    async def now(self) -> datetime:
        """The store's clock, aware, UTC."""

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        """Make (identifier, spec) known, in the order given; what is known keeps its times, and takes the new spec.

        Gives what was known *before* for items that were, and what is known now for new ones (last_tick ``None``).
        """

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[Entered]:
        """Enter the ticks into the ledger and enqueue their jobs, in one transaction; each tick at most once ever."""

    async def known_items(self) -> Sequence[KnownItem]:
        """All of them, by identifier."""

    async def ticks(self, identifier: str, since: datetime) -> Sequence[datetime]:
        """Those in the ledger from ``since`` on, in order: what a backfill must not schedule again."""


LEDGER_DAYS = 400
"""How long ticks are remembered. A backfill reaches back less far (``cron``: at most 366 days)."""


class SchemaStatus(msgspec.Struct, frozen=True):
    """How the installed schema compares with this package's."""

    installed: int | None
    """Its number; ``None`` when there is none."""
    expected: int
    breaking: bool = False
    """It is newer, and this package cannot work with it."""


class Schema(Protocol):
    """The store's tables."""

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        """Install or upgrade. Safe when many do it at once; resumable.

        ``roles``: make the roles of least privilege too, and grant them what each may do. Raises ConfigurationError
        where there are none.
        """

    async def status(self) -> SchemaStatus:
        """What is there."""

    async def plan(self, *, roles: bool = False) -> str:
        """The statements that ``install`` would run, for reading."""

    async def foreign_changes(self) -> Sequence[str]:
        """What another hand has changed in functions and tables, each in a phrase; ``install`` mends what it can.

        Nothing is said of a schema that is not of this version, nor by a store that nobody else takes for its own.
        """

    async def default_max_attempts(self) -> int:
        """Of a job for which nobody gives a number. Raises SchemaError."""

    async def set_default_max_attempts(self, attempts: int) -> None:
        """From now on, for all who enqueue. Raises InvalidJob, SchemaError; ConfigurationError where there is no such
        setting."""

    async def uninstall(self) -> None:
        """Remove everything of ours."""


class QueueStore(Store[Job], Producer, Inspector, Administrator, Timetable, Schema, Operator, Protocol):
    """A store we own whole: everything above at once."""

    on_listening: Callable[[str, BaseException | None], None] | None
    """Told "connecting", "success", or "error" and why, by a store that listens on a connection."""
    on_warning: Callable[[str, str], None] | None
    """Told what a person should know of the store, and what mends it (or nothing). From any thread."""

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """A connection for a task's own statements, apart from any job's transaction.

        PostgreSQL: a psycopg ``AsyncConnection`` of the pool; what was done on it is committed at the end of the block.
        Other stores raise ConfigurationError.
        """

    def seat(self, slots: int) -> str | None:
        """Said by a worker of tasks before it starts: have a connection for each of its slots.

        Gives what is wrong, for a person, where connections are fewer than slots; ``None`` where nothing is.
        """

    def flow_tables(self) -> FlowTables:
        """What flows keep here. A store that only lends its jobs raises ConfigurationError."""

    @property
    def description(self) -> str:
        """Where it is, for people; never with a password."""
