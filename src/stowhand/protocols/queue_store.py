"""The optional parts of a store, beyond the interface for workers. Each is an attribute, ``None`` if absent.

jobs           Producer       enqueue one or many; get one (producer.py)
transactions   Transactions   enqueue inside the caller's own transaction (producer.py)
inspect        Inspector      read: list, counts, figures, why a job does not run (operator.py)
admin          Administrator  act on jobs: retry, cancel, remove, complete, fail, reschedule, unlock
operate        Operator       pause queues and tasks, change limits, purge (operator.py)
timetable      Timetable      recurring jobs: the known items, and the ledger of their ticks
schema         Schema         install, check, plan, uninstall
settings       Settings       what the schema keeps for all programs
connections    Connections    connections for a task's own statements
flows          FlowTables     the tables of flows (flow_tables.py)
notices        Notices        notifications of the store
results        Results        wait for the end of jobs (producer.py)
workflows      Workflows      record steps, and emit events (workflows.py)

AnyStore       a worker's Store with some parts; ``require_part`` raises a clear error for an absent one
QueueStore     a store whose tables belong to Stowhand
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import JobId
from stowhand.jobs.option_struct import SuggestingMeta
from stowhand.protocols.counts import MAX_EXACT_COUNT, BoundedCount, Figures, Pauses
from stowhand.protocols.flow_tables import FlowTables
from stowhand.protocols.operator import (
    MAX_SHOWN_HELD_JOBS,
    OVERDUE_SECONDS,
    AppVersion,
    BacklogRow,
    Explanation,
    HeldJobs,
    LimitRow,
    Operator,
    SerialRow,
    WorkerRow,
)
from stowhand.protocols.producer import Producer, Results, Transactions
from stowhand.protocols.search import ALL_JOBS, Search, SearchResult
from stowhand.protocols.store import PART_OPERATIONS, Store
from stowhand.protocols.throughput import Period
from stowhand.protocols.workflows import Workflows

P = TypeVar("P")
R = TypeVar("R")


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """A filter of jobs. Without states it matches live and failed jobs."""

    states: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    serial: str | None = None
    key: str | None = None
    worker: str | None = None
    """Only jobs that this worker is running or has claimed."""
    error: str | None = None
    """Only jobs whose last error contains this text, in upper or lower case."""
    parent_id: int | None = None
    """Only children of this workflow."""
    since: datetime | None = None
    """Only jobs that ended at this time or later; unfinished jobs that were enqueued then."""
    until: datetime | None = None
    """Only jobs that ended, or were enqueued, before this time."""
    newest_first: bool = False
    """Order by descending id; else ascending."""
    after: int = 0
    """Only ids above this; with ``newest_first`` only ids below it, unless it is 0."""
    limit: int = 100


NEWEST_JOBS = JobFilter(newest_first=True)
"""The newest hundred jobs, live and failed."""


class ActionResult(StrEnum):
    """The result of an action on a job."""

    DONE = "done"
    ASKED = "asked"
    """The cancellation of a running job was requested. Its worker receives it within a second if it is woken, else at
    the next heartbeat."""
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    """Not allowed in this state; the answer's ``reason`` says what to do instead."""
    MISSING = "missing"


class Answer(msgspec.Struct, frozen=True):
    """The result of one requested action, and its reason."""

    job_id: JobId | None
    result: ActionResult
    reason: str = ""


class Failures(msgspec.Struct, frozen=True):
    """Failed jobs of one task whose last attempts ended with errors of one class."""

    task: str
    error_class: str | None
    """As ``FailedAttempt.error_class``."""
    jobs: int
    latest: int
    """The id of the job that failed last."""
    latest_at: datetime
    error: str | None
    """The last error of that job."""
    since: datetime
    """The time of the earliest examined failure."""
    is_cut: bool
    """True if older failed jobs were not examined, so the failures may have started before ``since``."""


MAX_EXAMINED_FAILURES = 10_000
"""Number of the newest failed jobs that are examined."""


@runtime_checkable
class FailureGroups(Protocol):
    """Groups of failures: a part of inspectors, and of the jobs of a lent store."""

    async def failures(self) -> Sequence[Failures]:
        """Return the newest 10,000 failed jobs by task and error class, the most frequent first."""


class Inspector(FailureGroups, Protocol):
    """Reading jobs, serial keys and workers."""

    async def list(self, job_filter: JobFilter = NEWEST_JOBS) -> Sequence[Job]:
        """Return jobs ordered by id, ascending unless the filter has ``newest_first``."""

    async def search(self, query: Search = ALL_JOBS) -> SearchResult:
        """Search for a limited time. The answer has the position to continue from. Raises InvalidJob."""

    async def counts(self) -> dict[State, int]:
        """Count live jobs and history by state; every state is a key."""

    async def amounts(self) -> Mapping[State, BoundedCount]:
        """Count jobs by state in bounded time: exactly up to 10,000, else a lower bound."""

    async def oldest_due(self) -> Mapping[str, float]:
        """Return the seconds that the longest due job of each queue has waited.

        Queues without due jobs are left out. Paused jobs do not count.
        """

    async def overdue(self, tasks: Sequence[str] | None, seconds: float = OVERDUE_SECONDS) -> Sequence[int]:
        """Return at most twenty jobs of these tasks (``None``: all) that have been due for longer, the oldest first.

        Only the first job of each task, priority and queue is examined. Jobs that wait for a pause, for a
        running job of their serial key, or for a limit are left out. ``explain`` gives other reasons.
        """

    async def figures(self, max_count: int = MAX_EXACT_COUNT) -> Figures:
        """Count jobs by state, and live jobs by task, queue and worker; fast, however many jobs there are.

        Counts are exact up to ``max_count`` jobs of a state and of a task, and lower bounds beyond it.
        """

    async def throughput(
        self, since: datetime, until: datetime, *, step: float = 60.0, task: str | None = None, by_task: bool = True
    ) -> Sequence[Period]:
        """Return counts of outcomes from ``since`` until before ``until``, by time and task. Raises InvalidJob.

        The counts come from workers (``protocols/throughput.py``), so the last ten seconds are incomplete. Counts older
        than two days are kept by the hour, whatever the step.

        Args:
            since: start, aware.
            until: end, aware.
            step: seconds of one period: 60 or a multiple of it.
            task: only this task.
            by_task: if false, count all tasks together, which is fast with many tasks.

        """

    async def serials(self, *, paused: bool = False) -> Sequence[SerialRow]:
        """Return serial keys with live jobs or a pause, ordered by name. ``paused`` returns only paused ones."""

    async def pauses(self) -> Pauses:
        """Return the paused tasks and queues, with start times."""

    async def limits(self) -> Sequence[LimitRow]:
        """Return the limits of tasks, ordered by name."""

    async def workers(self) -> Sequence[WorkerRow]:
        """Return registered workers ordered by name, including workers lost in the last day."""

    async def held(self, limit: int = MAX_SHOWN_HELD_JOBS) -> Sequence[HeldJobs]:
        """Return the leased jobs of each worker, at most ``limit`` listed, ordered by name. It examines 10,000 jobs."""

    async def app_versions(self) -> Sequence[AppVersion]:
        """Return the application versions of workers in the last ninety days, ordered by time."""

    async def tasks(self) -> Sequence[BacklogRow]:
        """Return the known tasks ordered by name, at most the 500 with the most jobs."""

    async def queues(self) -> Sequence[BacklogRow]:
        """Return the known queues ordered by name."""

    async def explain(self, job_id: int) -> Explanation | None:
        """Return the reasons why a job is not running; ``None`` if there is no such job."""


class Reschedule(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to waiting or failed jobs. ``None`` leaves a field unchanged; 0 is 0."""

    run_at: datetime | None = None
    """An aware datetime."""
    priority: int | None = None
    attempts: int | None = None
    """Limited to the job's ``max_attempts``. A waiting job that has reached it fails; a failed job below it waits."""
    max_attempts: int | None = None
    queue: str | None = None


class Administrator(Protocol):
    """Changes to one job, with an answer, or to many jobs.

    Calls that return jobs skip jobs under a valid lease and return the changed ones, ordered by id. The new state
    follows from the new numbers: see "what each call does in each state" in the docs.
    """

    async def add_built_in(self, job: NewJob) -> Job:
        """Enqueue a job of a built-in task, which otherwise only a crontab may. Raises InvalidJob."""

    async def retry(self, job_id: int) -> Answer:
        """Make a job due now with attempts and resets 0. Refused for processing and completed jobs."""

    async def cancel(self, job_id: int) -> Answer:
        """Cancel a job at once, or, while it runs, through its worker."""

    async def remove(self, job_id: int) -> Answer:
        """Delete a job. Refused for processing jobs (cancel instead) and completed jobs."""

    async def remove_key(self, key: str) -> Answer:
        """Delete the job with this key; a running one loses the key and will not run again."""

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        """Make failed jobs due now with attempts and resets 0. Return their ids in order. Other jobs are unchanged."""

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        """Complete waiting and failed jobs as if they had run, and free their keys.

        Steps of flows are skipped, because the following queues would not run.
        """

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> Sequence[Job]:
        """Fail jobs, with attempts = max_attempts. The default reason is "Manually marked as failed"."""

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        """Change the fields that are set in ``to``."""

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Call ``retry`` for each id, in transactions of some hundred. Answers are ordered by id, each id once."""

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Call ``cancel`` for each id, in transactions of some hundred. Answers are ordered by id, each id once."""

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Call ``remove`` for each id, in transactions of some hundred. Answers are ordered by id, each id once."""

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Reset all jobs of these workers. Their leases are no longer valid, even if the workers still run."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """A time at which an item of a crontab is due."""

    identifier: str
    at: datetime
    """Aware, UTC, a whole minute."""
    job: NewJob
    spec: str
    """The item in canonical form, by which schedulers detect different items with the same identifier."""
    backfilled: bool = False


class LedgerEntry(msgspec.Struct, frozen=True):
    """The ledger's entry of a tick, after ``schedule``."""

    is_own: bool
    """True if this call enqueued the job; false if another scheduler had."""
    job_id: int
    spec: str
    """The canonical item of the scheduler that enqueued it."""


SCHEDULER_TIMEOUT = timedelta(minutes=3)
"""Time for which a scheduler's report is valid. Schedulers report at least once a minute."""
REPORT_INTERVAL = timedelta(seconds=30)
"""A store skips a report if the previous one is more recent, so that many schedulers write no more than one."""


class KnownItem(msgspec.Struct, frozen=True):
    """An item of a crontab that the store knows."""

    identifier: str
    known_since: datetime
    last_tick: datetime | None
    """The latest scheduled tick."""
    spec: str
    """The canonical item, as last registered."""
    spec_since: datetime | None = None
    """The time of the last change of ``spec``; ``None`` if it never changed."""
    scheduled_by: str | None = None
    """The scheduler that last reported the item; ``None`` if none has."""
    scheduled_at: datetime | None = None
    """The time of that report."""

    def is_scheduled(self, now: datetime) -> bool:
        """Return whether a live scheduler has the item. ``now`` is from the store's clock."""
        return self.scheduled_at is not None and now - self.scheduled_at < SCHEDULER_TIMEOUT


class Timetable(Protocol):
    """Recurring jobs. All times are from the store's clock, so several schedulers agree."""

    async def now(self) -> datetime:
        """Return the time of the store's clock, aware, UTC."""

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        """Register (identifier, spec) pairs; a known item keeps its times and takes the new spec.

        Returns the items in the order of the call: known items as they were *before*, and new ones as they are now
        (``last_tick`` is ``None``).
        """

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[LedgerEntry]:
        """Add the ticks to the ledger and enqueue their jobs, in one transaction; each tick at most once ever."""

    async def report(self, identifiers: Sequence[str], scheduler: str) -> None:
        """Record that a live scheduler has these items. Unknown items are ignored."""

    async def known_items(self) -> Sequence[KnownItem]:
        """Return all known items, ordered by identifier."""

    async def forget_item(self, identifier: str) -> bool:
        """Delete a known item that no live scheduler has; return whether it did. Its ticks stay in the ledger."""


LEDGER_DAYS = 400
"""Days for which the ledger keeps ticks. A backfill covers at most 366 days."""


class SchemaStatus(msgspec.Struct, frozen=True):
    """The installed schema version compared with this package's."""

    installed: int | None
    """The installed version; ``None`` without a schema."""
    expected: int
    breaking: bool = False
    """True if the schema is newer and this package cannot work with it."""


class Schema(Protocol):
    """The store's tables."""

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        """Install or upgrade. Safe to run concurrently; resumable.

        ``roles`` also creates the roles of least privilege and grants their rights. Raises ConfigurationError if the
        store has no roles, and SchemaTooNew after a breaking change of a newer version.
        """

    async def status(self) -> SchemaStatus:
        """Compare the installed schema with this package's."""

    async def plan(self, *, roles: bool = False) -> str:
        """Return the statements that ``install`` would run. Raises the same errors."""

    async def foreign_changes(self) -> Sequence[str]:
        """Return changes to functions and tables by others, one phrase each. ``install`` repairs what it can.

        The list is empty for a schema of another version.
        """

    async def default_max_attempts(self) -> int:
        """Return the default of ``max_attempts``. Raises SchemaError."""

    async def find_damage(self) -> Sequence[str] | None:
        """Return the damage that the database finds in its whole file; ``None`` if the store does not check."""

    async def uninstall(self) -> None:
        """Remove everything that ``install`` created."""


class Settings(Protocol):
    """Settings in the schema for all programs, including those that enqueue by SQL."""

    async def set_default_max_attempts(self, attempts: int) -> None:
        """Set ``max_attempts`` for every producer, from now on. Raises InvalidJob, SchemaError."""


class Connections(Protocol):
    """Connections for tasks."""

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Return a connection for a task's own statements, outside of any job's transaction.

        It is a psycopg ``AsyncConnection`` of the pool, committed at the end of the block.
        """

    def seat(self, slots: int) -> str | None:
        """Reserve a connection for each slot before a worker starts. Return a warning if there are too few."""


OnListening = Callable[[str, BaseException | None, object], None]
"""Receives "connecting", "success" or "error", the error if any, and the listening connection."""
OnWarning = Callable[[str, str], None]
"""Receives a warning about the store, and its fix or an empty text. Called from any thread."""


class Notices:
    """The notifications of one store. Each kind has one listener: the latest."""

    def __init__(self) -> None:
        self._on_listening: OnListening | None = None
        self._on_warning: OnWarning | None = None

    def on_listening(self, listener: OnListening | None) -> None:
        """Set the listener for state changes of the listening connection; ``None`` removes it."""
        self._on_listening = listener

    def on_warning(self, listener: OnWarning | None) -> None:
        """Set the listener for warnings; ``None`` removes it."""
        self._on_warning = listener

    def listening(self, state: str, error: BaseException | None, connection: object) -> None:
        """Report a state change of the listening connection. The store calls this."""
        if self._on_listening is not None:
            self._on_listening(state, error, connection)

    def warn(self, warning: str, fix: str) -> None:
        """Report a warning. The store calls this from any thread."""
        if self._on_warning is not None:
            self._on_warning(warning, fix)


class AnyStore(Store[R], Protocol[R]):
    """A store with optional parts. ``capabilities.absent`` has the reason for each absent part."""

    @property
    def description(self) -> str:
        """Description of the store's address for people, without password."""

    @property
    def jobs(self) -> Producer | None: ...
    @property
    def transactions(self) -> Transactions | None: ...
    @property
    def inspect(self) -> Inspector | None: ...
    @property
    def admin(self) -> Administrator | None: ...
    @property
    def operate(self) -> Operator | None: ...
    @property
    def timetable(self) -> Timetable | None: ...
    @property
    def schema(self) -> Schema | None: ...
    @property
    def settings(self) -> Settings | None: ...
    @property
    def connections(self) -> Connections | None: ...
    @property
    def flows(self) -> FlowTables | None: ...
    @property
    def notices(self) -> Notices | None: ...
    @property
    def results(self) -> Results | None: ...
    @property
    def workflows(self) -> Workflows | None: ...


class QueueStore(AnyStore[Job], Protocol):
    """A store whose tables belong to Stowhand. A part that a lent store does not offer raises ConfigurationError."""

    @property
    def jobs(self) -> Producer: ...
    @property
    def inspect(self) -> Inspector: ...
    @property
    def admin(self) -> Administrator: ...
    @property
    def operate(self) -> Operator: ...
    @property
    def timetable(self) -> Timetable: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def flows(self) -> FlowTables: ...
    @property
    def notices(self) -> Notices: ...


def require_part(store: AnyStore[R], name: str, part: P | None) -> P:
    """Return the part with this name. Raises ConfigurationError if it is ``None``."""
    if part is None:
        raise ConfigurationError(
            f"{PART_OPERATIONS[name]}: {store.capabilities.absent.get(name, 'this store does not offer it')}"
        )
    return part


def lent_connection(store: AnyStore[R]) -> AbstractAsyncContextManager[Any]:
    """Return a connection for a task's own statements. Raises ConfigurationError if the store has none."""
    return require_part(store, "connections", store.connections).connection()
