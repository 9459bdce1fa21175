"""The closed list of events: what the core reports, grouped by what it is about. ``observe/`` makes log lines, metrics
and traces of them.

    worker      WorkerStarted … WorkerStopped, LoopBlocked, ChildDied, ChildRenewed, TasksReloaded
    job         JobStarted … JobUnknown, JobsReturned, JobsReset, hooks, threads
    store       its calls, its troubles, what it refuses
    schedule    Cron…
    lending     a store served over HTTP; the dashboard

Durations are in seconds. ``worker`` is the worker's name.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, KeysView
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from importlib import import_module
from typing import Any

import msgspec

from stowhand.jobs.lease import JobId, Lease, ResetJob
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.jobs.queues import ALL_QUEUES, Queues


class Event(msgspec.Struct, frozen=True):
    """Something that happened. The list is closed: the classes of this module."""


# -- worker ------------------------------------------------------------------------------------


class WorkerStarted(Event, frozen=True):
    """A worker has connected and looks for jobs. ``tasks``: those that it claims; ``None``: any."""

    worker: str
    tasks: tuple[str, ...] | None
    queues: Queues = ALL_QUEUES
    """The queues from which it claims."""


class WorkerQuietChanged(Event, frozen=True):
    """A worker claims nothing new and stays (``quiet``), or claims again."""

    worker: str
    running: int
    is_quiet: bool


class WorkerRenewed(Event, frozen=True):
    """A worker has reached ``max_jobs``, ``max_age`` or ``max_memory``: it claims nothing new, and ends when nothing
    runs. ``reason``: which limit."""

    worker: str
    reason: str
    running: int


class WorkerStopping(Event, frozen=True):
    """A worker claims nothing new. ``now``: running jobs are cancelled and handed back instead of awaited."""

    worker: str
    running: int
    is_immediate: bool


class WorkerStopped(Event, frozen=True):
    """A worker has ended. ``unfinished``: handlers that could not be stopped. Their jobs go back unspent: at the
    end of a process of ours at once, of a worker in yours when their leases end."""

    worker: str
    unfinished: int


class LoopBlocked(Event, frozen=True):
    """A handler blocks the event loop. ``stack``: where it is."""

    worker: str
    task: str | None
    job_id: JobId | None
    seconds: float
    stack: str
    is_lease_renewed: bool
    """False once the handler counts as hanging: its lease is no longer renewed."""


class ChildDied(Event, frozen=True):
    """A worker process of a supervisor ended without being asked to. ``how``: the signal or the exit code, in words."""

    worker: str
    pid: int
    cause: str
    jobs: int
    """How many jobs came back at once."""


class ChildRenewed(Event, frozen=True):
    """A worker process of a supervisor has reached a limit and ended in order; another takes its place."""

    worker: str
    pid: int


class TasksReloaded(Event, frozen=True):
    """The folder of tasks has changed and was loaded again. ``problem``: why the old tasks stay."""

    worker: str
    tasks: tuple[str, ...]
    problem: str | None


# -- job ---------------------------------------------------------------------------------------


class JobStarted(Event, frozen=True):
    """A handler starts."""

    worker: str
    job_id: JobId
    task: str
    attempt: int
    waited: float | None = None
    """Seconds for which it was due before its claim, by the store's clock; ``None``: a record of a user's table."""


class JobLeft(Event, frozen=True):
    """What ``JobStarted`` announced is over, however it ended; its outcome, if there is one, is not recorded yet."""

    worker: str
    job_id: JobId
    task: str


class JobEnded(Event, frozen=True):
    """A handler has ended, and the store has recorded its outcome."""

    worker: str
    job_id: JobId
    task: str
    attempt: int
    max_attempts: int
    outcome: AttemptOutcome
    seconds: float
    error: str | None
    retry_in: float | None = None
    """Seconds until an attempt that is retried is due again."""


class JobLogged(Event, frozen=True):
    """A handler wrote a line through ``ctx.logger``."""

    worker: str
    job_id: JobId | None
    """``None``: ``pre_claim`` wrote it, which has no job."""
    task: str
    level: str
    """debug, info, warning, error."""
    message: str
    fields: dict[str, Any]


class HookFinished(Event, frozen=True):
    """A hook (``pre_claim``, ``pre_handle``, ``handle``, ``post_handle``) has ended."""

    worker: str
    task: str
    hook: str
    seconds: float
    failed: bool


class HookFailed(Event, frozen=True):
    """``pre_claim`` or ``post_handle`` raised. Nothing follows but that, after ``pre_claim``, the next claim waits.

    Or what tasks share did not close, or not in time: ``hook`` is ``close of resource …`` then.
    """

    worker: str
    hook: str
    job_id: JobId | None
    error: str


class ThreadAbandoned(Event, frozen=True):
    """The thread of an attempt that was stopped goes on, after some seconds in which it could end. Its result will be
    ignored."""

    worker: str
    job_id: JobId
    task: str


class ThreadEnded(Event, frozen=True):
    """A thread that outlived its attempt has ended. ``left``: such threads of this worker that still run."""

    worker: str
    job_id: JobId
    task: str
    remaining: int


class ThreadsExhausted(Event, frozen=True):
    """As many threads have outlived their attempts as jobs may run at once. The worker claims nothing until one of them
    ends; the process of ``stowhand worker`` ends with exit code 5."""

    worker: str
    threads: int


class LeaseExpiring(Event, frozen=True):
    """No beat has reached the store for so long that the lease may be given away: the handler is stopped."""

    worker: str
    lease: Lease
    task: str


class JobLost(Event, frozen=True):
    """The lease was lost: nothing is recorded of this attempt, whatever its handler did or still does."""

    worker: str
    job_id: JobId
    task: str
    reason: str


class JobUnknown(Event, frozen=True):
    """Whether a settlement was recorded is not known: its reply was lost and a repeat found no trace of it, or the
    worker stopped before the store had answered."""

    worker: str
    job_id: JobId
    task: str
    outcome: AttemptOutcome | None = None
    """The worker stopped: how the attempt had ended."""


class JobsReturned(Event, frozen=True):
    """Jobs were handed back unspent: claimed and not started, or stopped before their end."""

    worker: str
    job_ids: tuple[JobId, ...]
    reason: str


class JobsReset(Event, frozen=True):
    """Jobs were taken back from workers that died."""

    jobs: tuple[ResetJob, ...]
    by: str = ""
    """The worker, or the resetter, that did it."""


class ResultDropped(Event, frozen=True):
    """A job completed; its result could not be kept."""

    job_id: JobId
    task: str
    reason: str


# -- store -------------------------------------------------------------------------------------


class Listening(Event, frozen=True):
    """The state of the connection that receives wake-ups: "connecting", "success" or "error"."""

    worker: str
    state: str
    error: str | None


class ClaimStarted(Event, frozen=True):
    """A worker is about to ask the store for up to ``limit`` jobs."""

    worker: str
    limit: int


class ClaimFinished(Event, frozen=True):
    """The store has answered a claim with ``jobs`` jobs; 0: nothing is due."""

    worker: str
    jobs: int
    seconds: float


class Settled(Event, frozen=True):
    """The store has recorded the ends of ``jobs`` attempts in one call."""

    worker: str
    jobs: int
    seconds: float
    job_ids: tuple[JobId, ...]


class HeartbeatFinished(Event, frozen=True):
    """The store has answered one heartbeat call, for ``jobs`` leases."""

    worker: str
    jobs: int
    seconds: float


class StoreCalled(Event, frozen=True):
    """A call to a table store has ended. ``store``: its name."""

    store: str
    operation: str
    seconds: float
    failed: bool


class StoreCallFailed(Event, frozen=True):
    """A call to the store failed and is tried again in ``retry_in`` seconds. ``doing``: claim, settle, beat, listen,
    reset, throughput; or forbidden flags, where the function that returns them failed."""

    worker: str
    operation: str
    error: str
    retry_in: float


class StoreRecovered(Event, frozen=True):
    """A call that kept failing works again, after ``failures`` failures."""

    worker: str
    operation: str
    failures: int


class StoreWarning(Event, frozen=True):
    """A person should know this of a store: because of it jobs wait, run again or are not seen."""

    store: str
    """A table store's name; of others, where the store is."""
    warning: str
    fix: str
    """The fix (DDL, mostly); empty where only a person can decide."""


class ChangeRefused(Event, frozen=True):
    """The database refuses to write one job (a CHECK, a trigger): the job is left to its lease, the others go on.
    Emitted once for each job and kind of call; ``doing``: beat, release, reset."""

    worker: str
    job_id: JobId
    operation: str
    reason: str


# -- schedule ----------------------------------------------------------------------------------


class CronStarted(Event, frozen=True):
    """The scheduler has registered its items and has made up for missed ticks (``backfilled``: how many)."""

    items: tuple[str, ...]
    backfilled: int


class CronScheduled(Event, frozen=True):
    """A tick of an item has become a job."""

    identifier: str
    task: str
    job_id: int
    tick: datetime
    backfilled: bool
    late: float
    """Seconds between the tick and its job, by the store's clock."""


class CronConflict(Event, frozen=True):
    """Another scheduler has scheduled this tick from a different item with the same identifier."""

    identifier: str
    tick: datetime
    own_spec: str
    other_spec: str


class CronClockMoved(Event, frozen=True):
    """The store's clock has jumped. Back (negative): no tick is repeated. Forward: missed ticks are made up for."""

    seconds: float


class SchedulingFailed(Event, frozen=True):
    """Scheduling failed; it starts anew, backfill included, after ``retry_in`` seconds."""

    error: str
    retry_in: float


class CronReloaded(Event, frozen=True):
    """The crontab was read again. ``problem``: why the old items stay."""

    items: tuple[str, ...]
    problem: str | None


# -- lending -----------------------------------------------------------------------------------


class LendingStarted(Event, frozen=True):
    """The server listens. ``open``: it takes no tokens, and serves programs of this machine only."""

    url: str
    store: str
    is_open: bool
    tokens: str
    """The file of tokens."""


class LendingStopping(Event, frozen=True):
    """The server accepts no new connections; running requests have ``grace`` seconds to end."""

    grace: float


class RequestAnswered(Event, frozen=True):
    """A request was answered. ``who``: the id of its token."""

    call: str
    status: int
    seconds: float
    token_id: str
    address: str


class RemoteCallAudited(Event, frozen=True):
    """Audit: a call that changed something. ``ids`` and ``verdicts`` are in one order; never a payload or a secret."""

    call: str
    token_id: str
    """The id of the token; empty where there are none."""
    worker: str
    ids: tuple[str, ...]
    verdicts: tuple[str, ...]
    address: str


class DashboardChanged(Event, frozen=True):
    """Audit: somebody changed something on the dashboard, or signed in. ``ids`` and ``answers`` are in one order.

    Never a payload.
    """

    action: str
    """``retry``, ``cancel``, ``pause serial``, ``run again``, ``sign in``, ..."""
    user: str
    """As the dashboard knows them; empty: the application that mounts it did not say."""
    ids: tuple[str, ...]
    """Of jobs; names of serial keys and tasks; by what somebody signs in: ``token`` or ``link``."""
    answers: tuple[str, ...]
    address: str


class InvalidTokensSent(Event, frozen=True):
    """An address keeps sending tokens that are not valid; for a minute it is asked to wait."""

    address: str
    count: int


class TokenFileUnreadable(Event, frozen=True):
    """The file of tokens has changed and cannot be read; the tokens read before remain valid."""

    error: str


class DashboardStoreLost(Event, frozen=True):
    """The dashboard's store does not answer: its pages say so, and ask again. Once for each time that it goes."""

    error: str


class DashboardStoreRecovered(Event, frozen=True):
    """It answers again, after so many seconds."""

    seconds: float


class RequestBroken(Event, frozen=True):
    """A bug: a request could not be answered. ``trace``: its traceback."""

    call: str
    trace: str


Listener = Callable[[Any], None]
REPORTER = ("stowhand.observe.listener", "report_to_log")
"""What is called with what a listener raised where ``on_listener_error`` is not set. It is named, and imported then:
what writes lines is above the events, and a program that listens by itself may never need it."""


class Events:
    """Listeners by event type. ``emit`` never raises: a listener that fails stops neither the others nor the core.

    Events are made only for types that have a listener (``wants``): unobserved jobs cost nothing.
    """

    def __init__(self) -> None:
        self._listeners: dict[type[Event], list[Listener]] = {}
        self._of_success: set[type[Event]] = set()
        self.around: Callable[[Any, str], AbstractContextManager[object]] | None = None
        """Encloses each attempt (``handler.Attempt``, the worker's name) of workers that are made with these."""
        self.on_listener_error: Callable[[Listener, Event, BaseException], None] | None = None

    def on(self, kind: type[Event], listener: Listener, *, success: bool = True) -> None:
        """Call ``listener`` for events of this type, where they happen: on the loop, or in the heartbeat's thread.

        ``success=False``: it does not need a ``JobEnded`` that says ``ok``, though it may receive some.
        """
        self._listeners.setdefault(kind, []).append(listener)
        if success:
            self._of_success.add(kind)

    @property
    def heard(self) -> KeysView[type[Event]]:
        """Types that have a listener: a view, which later listeners change too. For what asks once a job."""
        return self._listeners.keys()

    def wants(self, kind: type[Event], *, success: bool = False) -> bool:
        """Has this type a listener? ``success``: one that wants jobs that ended well, too."""
        return kind in (self._of_success if success else self._listeners)

    def emit(self, event: Event) -> None:
        """Call the listeners of this type, in the order in which they were added."""
        for listener in self._listeners.get(type(event), ()):
            try:
                listener(event)
            except (Exception, CancelledError) as error:  # noqa: BLE001 - boundary: the hook reports it
                self._report(listener, event, error)

    def _report(self, listener: Listener, event: Event, error: BaseException) -> None:
        """To ``on_listener_error``; else to the log, even where the program's own listeners write no log lines."""
        with suppress(Exception):  # where reporting fails too, nothing is left to report it to
            report = self.on_listener_error or getattr(import_module(REPORTER[0]), REPORTER[1])
            report(listener, event, error)
