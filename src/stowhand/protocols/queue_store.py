"""The parts of a store: what it may offer beyond what a worker needs. Each is an attribute, ``None`` where absent.

jobs           Producer       enqueue one or many; get one (producer.py)
transactions   Transactions   enqueue inside the caller's own transaction (producer.py)
inspect        Inspector      look: list, counts, figures, why a job does not run (operating.py)
admin          Administrator  act on jobs: retry, cancel, remove, complete, fail, reschedule, unlock
operate        Operator       pause queues and tasks, purge (operating.py)
timetable      Timetable      recurring jobs: the known items, and the ledger of their ticks
schema         Schema         install, check, plan, uninstall
settings       Settings       what the schema keeps for all programs
connections    Connections    for the statements of a task's own
flows          FlowTables     what flows keep (flow_tables.py)
notices        Notices        what the store reports beside its replies
results        Results        wait for the end of jobs (producer.py)

AnyStore       a worker's Store, with some of them; ``there`` makes an absent one a clear error
QueueStore     one whose tables are Stowhand's own
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
    Operator,
    SerialRow,
    WorkerRow,
)
from stowhand.protocols.producer import Producer, Results, Transactions
from stowhand.protocols.search import ALL_JOBS, Search, SearchResult
from stowhand.protocols.store import PART_OPERATIONS, Store
from stowhand.protocols.throughput import Period

P = TypeVar("P")
R = TypeVar("R")


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """Which jobs to list. Live and failed ones, unless a state says otherwise."""

    states: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    serial: str | None = None
    key: str | None = None
    worker: str | None = None
    """Only the jobs that this worker is running or has claimed."""
    error: str | None = None
    """Only those whose last error contains this text, in upper or lower case."""
    since: datetime | None = None
    """Only those that ended at this moment or later; jobs that have not ended: that were enqueued then."""
    until: datetime | None = None
    """Only those before this moment, likewise."""
    newest_first: bool = False
    """In descending order of ids; else ascending."""
    after: int = 0
    """Keyset: only ids above this; newest first, below it, unless it is 0."""
    limit: int = 100


NEWEST_JOBS = JobFilter(newest_first=True)
"""The default: the newest hundred, live and failed."""


class ActionResult(StrEnum):
    """The result of an action on a job."""

    DONE = "done"
    ASKED = "asked"
    """The cancellation of a running job was requested; its worker hears of it within a second where it is woken,
    and else at the next heartbeat."""
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    """Not in this state; the answer's ``why`` says what to do instead."""
    MISSING = "missing"


class Answer(msgspec.Struct, frozen=True):
    """What became of one requested action."""

    job_id: JobId | None
    done: ActionResult
    why: str = ""


class Failures(msgspec.Struct, frozen=True):
    """Failed jobs of one task whose last attempts ended with errors of one class."""

    task: str
    error_class: str | None
    """As ``Try.error_class``."""
    jobs: int
    latest: int
    """The id of the one that failed last."""
    latest_at: datetime
    error: str | None
    """Of that one: its last error."""
    since: datetime
    """When the first of them failed that was looked at."""
    is_cut: bool
    """Older failed jobs were not looked at: it may have begun before ``since``."""


MAX_EXAMINED_FAILURES = 10_000
"""Failed jobs that are looked at, the newest."""


@runtime_checkable
class FailureGroups(Protocol):
    """A queue's inspector; and the jobs of a lent store, which has none."""

    async def failures(self) -> Sequence[Failures]:
        """The newest 10,000 failed jobs by task and class of error, the most frequent first."""


class Inspector(FailureGroups, Protocol):
    """Looking at jobs, serial keys and workers."""

    async def list(self, wanted: JobFilter = NEWEST_JOBS) -> Sequence[Job]:
        """In order of ids, ascending unless the filter says ``newest_first``."""

    async def search(self, wanted: Search = ALL_JOBS) -> SearchResult:
        """Search for a limited time; the answer says where to go on. Raises InvalidJob."""

    async def counts(self) -> dict[State, int]:
        """Live jobs and history by state; every state is a key."""

    async def amounts(self) -> Mapping[State, BoundedCount]:
        """As ``counts``, within a moment: exact up to 10,000; beyond it, that there are more."""

    async def oldest_due(self) -> Mapping[str, float]:
        """Seconds by queue for which the job that has been due longest has waited, of any task.

        Queues of which nothing is due are left out, and so are paused jobs.
        """

    async def overdue(self, tasks: Sequence[str] | None, seconds: float = OVERDUE_SECONDS) -> Sequence[int]:
        """Find jobs of these tasks (``None``: any) that have been due for longer, the oldest first, twenty at most.

        Of each task, priority and queue only the first is looked at. Jobs that a pause or a running job of their serial
        key holds up are left out. ``explain`` says what else may.
        """

    async def figures(self, most: int = MAX_EXACT_COUNT) -> Figures:
        """Count jobs by state, and live jobs by task, queue and worker; fast, however many jobs there are.

        Exact up to ``most`` jobs of a state and of a task; beyond it, that there are more.
        """

    async def throughput(
        self, since: datetime, until: datetime, *, step: float = 60.0, task: str | None = None, by_task: bool = True
    ) -> Sequence[Period]:
        """What ended from ``since`` until before ``until`` (aware), in steps of so many seconds, by time and task.

        As workers have counted it (``protocols/throughput.py``): nothing before workers counted, and of the last ten
        seconds not all. ``step``: 60 or a multiple of it; what is older than two days is kept by the hour, and comes by
        the hour where the step is less. ``task``: of this one only. ``by_task`` false: all tasks in one, which costs
        little however many there are. Raises InvalidJob.
        """

    async def serials(self, *, paused: bool = False) -> Sequence[SerialRow]:
        """Serial keys that have live jobs or are paused, by name. ``paused``: only these, which costs less."""

    async def pauses(self) -> Pauses:
        """Which tasks and queues are paused, and since when."""

    async def workers(self) -> Sequence[WorkerRow]:
        """Workers that are registered, those that died within a day included, by name."""

    async def held(self, each: int = MAX_SHOWN_HELD_JOBS) -> Sequence[HeldJobs]:
        """What each worker has under its leases, by name; of each so many jobs. It looks at 10,000 jobs."""

    async def app_versions(self) -> Sequence[AppVersion]:
        """Which versions of the application workers have had within ninety days, by time."""

    async def tasks(self) -> Sequence[BacklogRow]:
        """The tasks that are known, by name; of many the 500 with the most jobs."""

    async def queues(self) -> Sequence[BacklogRow]:
        """The queues that are known, by name: ``default``, and those that jobs, tasks, workers or pauses name."""

    async def explain(self, job_id: int) -> Explanation | None:
        """Why the job is not running; ``None``: there is no such job."""


class Reschedule(msgspec.Struct, frozen=True, kw_only=True):
    """What to change about waiting or failed jobs. ``None`` leaves a detail as it is; 0 is 0."""

    run_at: datetime | None = None
    """Aware."""
    priority: int | None = None
    attempts: int | None = None
    """Clamped to the job's ``max_attempts``; at that number a waiting job is failed, below it a failed one waits."""
    max_attempts: int | None = None
    queue: str | None = None
    """Its class of work, by which workers choose."""


class Administrator(Protocol):
    """Acting on jobs: on one, with an answer; or on many at once.

    Calls that return jobs skip those under a valid lease, and return the changed ones, in id order. The state follows
    from the new numbers: the docs' table "what each call does in each state".
    """

    async def add_built_in(self, job: NewJob) -> Job:
        """Enqueue a job of a built-in task, which otherwise only a crontab may. Raises InvalidJob."""

    async def retry(self, job_id: int) -> Answer:
        """Make it due now, attempts and resets 0. Refused while processing and when completed."""

    async def cancel(self, job_id: int) -> Answer:
        """Cancel it: at once, or, while it runs, by its worker."""

    async def remove(self, job_id: int) -> Answer:
        """Delete. Refused while processing (cancel instead) and when completed."""

    async def remove_key(self, key: str) -> Answer:
        """Delete the job with this key; a running one loses the key and will not run again."""

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        """Make those that have failed due now, attempts and resets 0; returns their ids, in order. Others stay."""

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        """Waiting and failed jobs become completed, as if they had run; their keys are free.

        Steps of flows are skipped: the queues behind them would be left out.
        """

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> Sequence[Job]:
        """They become failed, attempts = max_attempts; ``reason`` ``None``: "Manually marked as failed"."""

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        """Set the given details."""

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """As ``retry``, of each; a transaction for some hundreds. Answers in id order, each id once."""

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """As ``cancel``, of each; a transaction for some hundreds. Answers in id order, each id once."""

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """As ``remove``, of each; a transaction for some hundreds. Answers in id order, each id once."""

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Take back all jobs of these workers, as a reset does; they are fenced out should they still run."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """One moment at which an item of a crontab is due."""

    identifier: str
    at: datetime
    """Aware, UTC, a whole minute."""
    job: NewJob
    spec: str
    """The item in canonical form: by it two schedulers notice that their items under one identifier differ."""
    backfilled: bool = False


class LedgerEntry(msgspec.Struct, frozen=True):
    """The ledger's entry of a tick, after ``schedule``."""

    mine: bool
    """This call enqueued the job; False: another scheduler had done so."""
    job_id: int
    spec: str
    """The item of the scheduler that did."""


SCHEDULER_TIMEOUT = timedelta(minutes=3)
"""How long a report of a scheduler is valid. Each reports at least once a minute."""
REPORT_INTERVAL = timedelta(seconds=30)
"""A store skips a report when the previous one is more recent, so that many schedulers cost no more writes than one."""


class KnownItem(msgspec.Struct, frozen=True):
    """An item of a crontab, as the store remembers it."""

    identifier: str
    known_since: datetime
    last_tick: datetime | None
    """The latest that was scheduled."""
    spec: str
    """As last registered."""
    spec_since: datetime | None = None
    """When the spec last changed; ``None``: it never has."""
    scheduled_by: str | None = None
    """The scheduler that last reported that it has the item; ``None``: none ever has."""
    scheduled_at: datetime | None = None
    """When it did."""

    def is_scheduled(self, now: datetime) -> bool:
        """Whether a live scheduler has the item, by the store's clock."""
        return self.scheduled_at is not None and now - self.scheduled_at < SCHEDULER_TIMEOUT


class Timetable(Protocol):
    """Recurring jobs. All times are the store's, so several schedulers agree whatever their own clocks say."""

    async def now(self) -> datetime:
        """The store's clock, aware, UTC."""

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        """Register (identifier, spec) pairs; a known item keeps its times and takes the new spec.

        Returns, in the order given, known items as they were *before*, and new ones as they are now (last_tick
        ``None``).
        """

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[LedgerEntry]:
        """Enter the ticks into the ledger and enqueue their jobs, in one transaction; each tick at most once ever."""

    async def report(self, identifiers: Sequence[str], scheduler: str) -> None:
        """Record that a live scheduler has these items. Unknown ones are ignored."""

    async def known_items(self) -> Sequence[KnownItem]:
        """All of them, by identifier."""

    async def forget_item(self, identifier: str) -> bool:
        """Delete a known item that no live scheduler has; return whether it did. Its ticks stay in the ledger."""


LEDGER_DAYS = 400
"""Days for which ticks are remembered. A backfill reaches back less far (``cron``: at most 366 days)."""


class SchemaStatus(msgspec.Struct, frozen=True):
    """How the installed schema compares with this package's."""

    installed: int | None
    """Its version; ``None``: there is none."""
    expected: int
    breaking: bool = False
    """It is newer, and this package cannot work with it."""


class Schema(Protocol):
    """The store's tables."""

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        """Install or upgrade. Safe to run concurrently; resumable.

        ``roles``: make the roles of least privilege too, and grant each its rights. Raises ConfigurationError where the
        store has no roles, SchemaTooNew where a newer version has made a breaking change.
        """

    async def status(self) -> SchemaStatus:
        """The installed schema, compared with this package's."""

    async def plan(self, *, roles: bool = False) -> str:
        """The statements that ``install`` would run, for reading. Raises what it raises."""

    async def foreign_changes(self) -> Sequence[str]:
        """Changes to functions and tables that this package has not made, a phrase each; ``install`` repairs what it
        can. Empty for a schema of another version, and for a store whose schema others do not touch.
        """

    async def default_max_attempts(self) -> int:
        """The ``max_attempts`` of a job that is enqueued without one. Raises SchemaError."""

    async def find_damage(self) -> Sequence[str] | None:
        """What the database finds wrong with its file; reads all of it. ``None``: it does not look."""

    async def uninstall(self) -> None:
        """Remove all that ``install`` has made."""


class Settings(Protocol):
    """What the schema keeps for all programs, those that enqueue by SQL included."""

    async def set_default_max_attempts(self, attempts: int) -> None:
        """Set ``max_attempts`` for every producer, from now on. Raises InvalidJob, SchemaError."""


class Connections(Protocol):
    """Connections to lend."""

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """A connection for a task's own statements, apart from any job's transaction.

        A psycopg ``AsyncConnection`` of the pool; it is committed at the end of the block.
        """

    def seat(self, slots: int) -> str | None:
        """Called before a worker of tasks starts: have a connection for each of its slots.

        Returns a warning for people where there are fewer connections than slots; else ``None``.
        """


OnListening = Callable[[str, BaseException | None, object], None]
"""Called with "connecting", "success", or "error" and the error; and with the listening connection, to look at."""
OnWarning = Callable[[str, str], None]
"""Called, from any thread, with what a person should know of the store, and with its fix (or an empty text)."""


class Notices:
    """Of one store. Each kind has one subscriber at a time: the latest."""

    def __init__(self) -> None:
        self._on_listening: OnListening | None = None
        self._on_warning: OnWarning | None = None

    def on_listening(self, listener: OnListening | None) -> None:
        """Call it when the listening connection changes its state; ``None``: call nothing."""
        self._on_listening = listener

    def on_warning(self, listener: OnWarning | None) -> None:
        """Call it with each warning; ``None``: call nothing."""
        self._on_warning = listener

    def listening(self, state: str, error: BaseException | None, connection: object) -> None:
        """The store's: its listening connection has changed its state."""
        if self._on_listening is not None:
            self._on_listening(state, error, connection)

    def warn(self, warning: str, fix: str) -> None:
        """The store's, from any thread."""
        if self._on_warning is not None:
            self._on_warning(warning, fix)


class AnyStore(Store[R], Protocol[R]):
    """A store with whatever parts it offers. Why one is absent is in ``capabilities.absent``."""

    @property
    def description(self) -> str:
        """Where the store is, for people; never with a password."""

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


class QueueStore(AnyStore[Job], Protocol):
    """A store whose tables are Stowhand's own. A part that is not offered where a store is lent raises
    ConfigurationError when it is asked for."""

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
    """The part of this name. Raises ConfigurationError where it is ``None``."""
    if part is None:
        raise ConfigurationError(
            f"{PART_OPERATIONS[name]}: {store.capabilities.absent.get(name, 'this store does not offer it')}"
        )
    return part


def lent_connection(store: AnyStore[R]) -> AbstractAsyncContextManager[Any]:
    """A connection for statements of a task's own. Raises ConfigurationError where the store lends none."""
    return require_part(store, "connections", store.connections).connection()
