"""The closed list of events, grouped by subject. ``observe/`` turns them into log lines, metrics and traces.

    worker      WorkerStarted … WorkerStopped, LoopBlocked, ChildDied, ChildRenewed, TasksReloaded
    job         JobStarted … JobUnknown, JobsReturned, JobsReset, hooks, threads
    store       its calls, failures and refusals
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
    """Base class of all events, which are the classes of this module."""


# -- worker ------------------------------------------------------------------------------------


class WorkerStarted(Event, frozen=True):
    """A worker has connected and starts to claim jobs of ``tasks``; ``None`` means all tasks."""

    worker: str
    tasks: tuple[str, ...] | None
    queues: Queues = ALL_QUEUES
    """The queues from which the worker claims."""


class WorkerQuietChanged(Event, frozen=True):
    """A worker stops claiming and keeps running (``is_quiet``), or claims again."""

    worker: str
    running: int
    is_quiet: bool


class WorkerRenewed(Event, frozen=True):
    """A worker has reached ``max_jobs``, ``max_age`` or ``max_memory``; ``reason`` names the limit.

    It stops claiming, and ends when nothing runs.
    """

    worker: str
    reason: str
    running: int


class WorkerStopping(Event, frozen=True):
    """A worker stops claiming. With ``is_immediate``, running jobs are cancelled and returned to the queue."""

    worker: str
    running: int
    is_immediate: bool


class WorkerStopped(Event, frozen=True):
    """A worker has stopped. ``unfinished`` handlers could not be stopped.

    Their jobs return to the queue when the process of ``stowhand worker`` ends. Those of an embedded worker return when
    their leases expire.
    """

    worker: str
    unfinished: int


class LoopBlocked(Event, frozen=True):
    """A handler blocks the event loop. ``stack`` is its current stack."""

    worker: str
    task: str | None
    job_id: JobId | None
    seconds: float
    stack: str
    is_lease_renewed: bool
    """False once the handler counts as hanging: its lease is no longer renewed."""


class ChildDied(Event, frozen=True):
    """A worker process of a supervisor exited unexpectedly. ``cause`` describes the signal or the exit code."""

    worker: str
    pid: int
    cause: str
    jobs: int
    """Number of jobs that were reset at once."""


class ChildRenewed(Event, frozen=True):
    """A worker process of a supervisor has reached a limit and stopped; another one replaces it."""

    worker: str
    pid: int


class TasksReloaded(Event, frozen=True):
    """The folder of tasks was loaded again after a change. ``problem`` is the reason why the old tasks are kept."""

    worker: str
    tasks: tuple[str, ...]
    problem: str | None


# -- job ---------------------------------------------------------------------------------------


class JobStarted(Event, frozen=True):
    """A handler starts to run a job."""

    worker: str
    job_id: JobId
    task: str
    attempt: int
    waited: float | None = None
    """Seconds between due time and claim, by the store's clock; ``None`` for a record of a user's table."""


class JobLeft(Event, frozen=True):
    """A started attempt is over. Its outcome, if any, is not recorded yet."""

    worker: str
    job_id: JobId
    task: str


class JobEnded(Event, frozen=True):
    """The store has recorded the outcome of an attempt."""

    worker: str
    job_id: JobId
    task: str
    attempt: int
    max_attempts: int
    outcome: AttemptOutcome
    seconds: float
    error: str | None
    retry_in: float | None = None
    """Seconds until the job is due again, if it is retried."""


class JobLogged(Event, frozen=True):
    """A handler wrote a line through ``ctx.logger``."""

    worker: str
    job_id: JobId | None
    """``None`` for a line of ``pre_claim``, which has no job."""
    task: str
    level: str
    """debug, info, warning, error."""
    message: str
    fields: dict[str, Any]


class HookFinished(Event, frozen=True):
    """A hook (``pre_claim``, ``pre_handle``, ``handle``, ``post_handle``) has returned or raised."""

    worker: str
    task: str
    hook: str
    seconds: float
    failed: bool


class HookFailed(Event, frozen=True):
    """``pre_claim`` or ``post_handle`` raised. After ``pre_claim`` the next claim is delayed.

    If a resource did not close, or not in time, ``hook`` is ``close of resource …``.
    """

    worker: str
    hook: str
    job_id: JobId | None
    error: str


class ThreadAbandoned(Event, frozen=True):
    """The thread of a stopped attempt still runs after some seconds. Its result will be ignored."""

    worker: str
    job_id: JobId
    task: str


class ThreadEnded(Event, frozen=True):
    """An abandoned thread has ended. ``remaining`` is the number of abandoned threads of this worker."""

    worker: str
    job_id: JobId
    task: str
    remaining: int


class ThreadsExhausted(Event, frozen=True):
    """A worker has as many abandoned threads as slots. It claims nothing until one of them ends. The process of
    ``stowhand worker`` ends with exit code 5."""

    worker: str
    threads: int


class LeaseExpiring(Event, frozen=True):
    """The lease may expire soon, because no heartbeat has reached the store. The handler is stopped."""

    worker: str
    lease: Lease
    task: str


class JobLost(Event, frozen=True):
    """The lease was lost. Nothing of this attempt is recorded."""

    worker: str
    job_id: JobId
    task: str
    reason: str


class JobUnknown(Event, frozen=True):
    """It is unknown whether a settlement was recorded: a repeat after a lost reply found no trace of it, or the worker
    stopped before the store answered."""

    worker: str
    job_id: JobId
    task: str
    outcome: AttemptOutcome | None = None
    """The outcome of the attempt, if the worker stopped."""


class JobsReturned(Event, frozen=True):
    """Jobs were returned to the queue (attempt not counted): not started, or stopped before their end."""

    worker: str
    job_ids: tuple[JobId, ...]
    reason: str


class JobsReset(Event, frozen=True):
    """Jobs of lost workers were reset."""

    jobs: tuple[ResetJob, ...]
    by: str = ""
    """The worker or resetter that reset them."""


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
    """A worker starts a claim of up to ``limit`` jobs."""

    worker: str
    limit: int


class ClaimFinished(Event, frozen=True):
    """A claim returned ``jobs`` jobs; 0 if nothing is due."""

    worker: str
    jobs: int
    seconds: float


class Settled(Event, frozen=True):
    """The store has recorded ``jobs`` settlements in one call."""

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
    """A call to a table store has returned or failed. ``store`` is its name."""

    store: str
    operation: str
    seconds: float
    failed: bool


class StoreCallFailed(Event, frozen=True):
    """A call to the store failed and is retried in ``retry_in`` seconds. ``operation`` is claim, settle, beat, listen,
    reset or throughput, or forbidden flags if the function that returns them failed."""

    worker: str
    operation: str
    error: str
    retry_in: float


class StoreRecovered(Event, frozen=True):
    """An operation works again after ``failures`` consecutive failures."""

    worker: str
    operation: str
    failures: int


class StoreWarning(Event, frozen=True):
    """A warning about a store: jobs wait, run again or stay invisible because of it."""

    store: str
    """The name of a table store, or the address of another store."""
    warning: str
    fix: str
    """The fix, mostly DDL; empty if a person must decide."""


class ChangeRefused(Event, frozen=True):
    """The database refuses to write one job (a CHECK, a trigger). Its lease will expire; other jobs are not affected.
    Emitted once for each job and ``operation``: beat, release, reset."""

    worker: str
    job_id: JobId
    operation: str
    reason: str


# -- schedule ----------------------------------------------------------------------------------


class CronStarted(Event, frozen=True):
    """The scheduler has registered its items and enqueued ``backfilled`` missed ticks."""

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
    """The store's clock has jumped. Backward (negative): no tick is repeated. Forward: missed ticks are enqueued."""

    seconds: float


class SchedulingFailed(Event, frozen=True):
    """Scheduling failed. It restarts, including backfill, after ``retry_in`` seconds."""

    error: str
    retry_in: float


class CronReloaded(Event, frozen=True):
    """The crontab was read again. ``problem`` is the reason why the old items are kept."""

    items: tuple[str, ...]
    problem: str | None


# -- lending -----------------------------------------------------------------------------------


class LendingStarted(Event, frozen=True):
    """The server listens. With ``is_open`` it needs no tokens, and serves only programs on this machine."""

    url: str
    store: str
    is_open: bool
    tokens: str
    """The file of tokens."""


class LendingStopping(Event, frozen=True):
    """The server accepts no new connections. Running requests have ``grace`` seconds to finish."""

    grace: float


class RequestAnswered(Event, frozen=True):
    """A request was answered. ``token_id`` is the id of its token."""

    call: str
    status: int
    seconds: float
    token_id: str
    address: str


class RemoteCallAudited(Event, frozen=True):
    """Audit of a call that changed something. ``verdicts`` are in the order of ``ids``. No payloads or secrets."""

    call: str
    token_id: str
    """The id of the token; empty on a server without tokens."""
    worker: str
    ids: tuple[str, ...]
    verdicts: tuple[str, ...]
    address: str


class DashboardChanged(Event, frozen=True):
    """Audit of a change on the dashboard, or of a sign-in. ``answers`` are in the order of ``ids``. No payloads."""

    action: str
    """``retry``, ``cancel``, ``pause serial``, ``run again``, ``sign in``, ..."""
    user: str
    """The user's name; empty if the application that mounts the dashboard gives none."""
    ids: tuple[str, ...]
    """Job ids, names of serial keys and tasks, or the way of signing in: ``token`` or ``link``."""
    answers: tuple[str, ...]
    address: str


class InvalidTokensSent(Event, frozen=True):
    """An address repeatedly sends invalid tokens. It must wait for a minute."""

    address: str
    count: int


class TokenFileUnreadable(Event, frozen=True):
    """The file of tokens has changed and cannot be read. The tokens read before remain valid."""

    error: str


class DashboardStoreLost(Event, frozen=True):
    """The dashboard's store does not answer. Emitted once per outage."""

    error: str


class DashboardStoreRecovered(Event, frozen=True):
    """The dashboard's store answers again, after an outage of ``seconds``."""

    seconds: float


class RequestBroken(Event, frozen=True):
    """A request failed because of a bug. ``trace`` is the traceback."""

    call: str
    trace: str


Listener = Callable[[Any], None]
DEFAULT_REPORTER = ("stowhand.observe.listener", "report_to_log")
"""The default of ``on_listener_error``. It is imported when needed, because this module must not import ``observe``."""


class Events:
    """Listeners by event type. ``emit`` never raises: a listener that fails stops neither the others nor the core.

    Events are made only for types that have a listener (``wants``): unobserved jobs cost nothing.
    """

    def __init__(self) -> None:
        self._listeners: dict[type[Event], list[Listener]] = {}
        self._success_types: set[type[Event]] = set()
        self.around: Callable[[Any, str], AbstractContextManager[object]] | None = None
        """Returns a context manager for each attempt (``handler.Attempt``, the worker's name) with these events."""
        self.on_listener_error: Callable[[Listener, Event, BaseException], None] | None = None

    def on(self, event_type: type[Event], listener: Listener, *, success: bool = True) -> None:
        """Call ``listener`` for events of this type, on the event loop or in the heartbeat's thread.

        With ``success=False`` it does not need a ``JobEnded`` with the outcome ``ok``, but may receive some.
        """
        self._listeners.setdefault(event_type, []).append(listener)
        if success:
            self._success_types.add(event_type)

    @property
    def types_with_listener(self) -> KeysView[type[Event]]:
        """Event types with a listener, as a live view, for fast checks per job."""
        return self._listeners.keys()

    def wants(self, event_type: type[Event], *, success: bool = False) -> bool:
        """Return whether this type has a listener; with ``success``, one that also needs successful jobs."""
        return event_type in (self._success_types if success else self._listeners)

    def emit(self, event: Event) -> None:
        """Call the listeners of this type, in the order in which they were added."""
        for listener in self._listeners.get(type(event), ()):
            try:
                listener(event)
            except (Exception, CancelledError) as error:  # noqa: BLE001 - boundary: the hook reports it
                self._report(listener, event, error)

    def _report(self, listener: Listener, event: Event, error: BaseException) -> None:
        # By default the error is logged, even if the program has no listener that writes the log.
        with suppress(Exception):  # a failing report cannot be reported
            report = self.on_listener_error or getattr(import_module(DEFAULT_REPORTER[0]), DEFAULT_REPORTER[1])
            report(listener, event, error)
