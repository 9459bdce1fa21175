"""The closed list of things that happen. The core emits them; only ``observe/`` turns them into words and numbers."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from importlib import import_module
from typing import Any

import msgspec

from stowhand.jobs.lease import JobId, Lease, ResetJob
from stowhand.jobs.lifecycle import Ended


class Event(msgspec.Struct, frozen=True):
    """Something that happened. The list is closed: these, and those of ``cron_events.py`` and ``lending_events.py``."""


class WorkerStarted(Event, frozen=True):
    """Connected and looking for jobs."""

    worker: str
    tasks: tuple[str, ...] | None


class WorkerStopping(Event, frozen=True):
    """Takes nothing new. ``now``: running jobs are cancelled and handed back instead of awaited."""

    worker: str
    running: int
    now: bool


class WorkerQuieted(Event, frozen=True):
    """Takes nothing new, and stays; or, not ``quiet`` any more, takes jobs again."""

    worker: str
    running: int
    quiet: bool


class WorkerStopped(Event, frozen=True):
    """Nothing runs any more. ``unfinished`` handlers could not be ended; their jobs went back unspent."""

    worker: str
    unfinished: int


class Claiming(Event, frozen=True):
    """About to ask the store for jobs."""

    worker: str
    limit: int


class Claimed(Event, frozen=True):
    """The store has answered. ``jobs``: how many it gave; 0: there was nothing to do."""

    worker: str
    jobs: int
    seconds: float


class Settled(Event, frozen=True):
    """The store has recorded how ``jobs`` attempts ended, in one call."""

    worker: str
    jobs: int
    seconds: float


class Beaten(Event, frozen=True):
    """The store has renewed leases: ``jobs`` of them were asked for, in one call."""

    worker: str
    jobs: int
    seconds: float


class Listening(Event, frozen=True):
    """The connection that hears wake-ups: ``state`` is "connecting", "success" or "error"."""

    worker: str
    state: str
    error: str | None


class JobStarted(Event, frozen=True):
    """A handler begins."""

    worker: str
    job_id: JobId
    task: str
    attempt: int
    waited: float | None = None
    """Seconds that the job was due before it was claimed, by the store's clock; ``None``: of a record of yours."""


class JobLeft(Event, frozen=True):
    """What ``JobStarted`` began is over, however; its outcome, if it has one, is not recorded yet."""

    worker: str
    job_id: JobId
    task: str


class JobEnded(Event, frozen=True):
    """A handler ended; the store has recorded it."""

    worker: str
    job_id: JobId
    task: str
    attempt: int
    max_attempts: int
    ended: Ended
    seconds: float
    error: str | None


class JobLost(Event, frozen=True):
    """The lease was gone: whatever the handler did or will do, nothing was written for it."""

    worker: str
    job_id: JobId
    task: str
    why: str


class JobUnknown(Event, frozen=True):
    """A settlement whose reply was lost has left no trace; or the worker stopped before the store had answered."""

    worker: str
    job_id: JobId
    task: str
    ended: Ended | None = None
    """The worker stopped: how the attempt had ended."""


class JobSaid(Event, frozen=True):
    """A handler wrote a line through ``ctx.logger``."""

    worker: str
    job_id: JobId | None
    """``None``: said by ``pre_claim``, which has no job."""
    task: str
    level: str
    """debug, info, warning, error."""
    message: str
    facts: dict[str, Any]


class HookFailed(Event, frozen=True):
    """``pre_claim`` or ``post_handle`` raised. Nothing depends on it but the next claim, which waits an interval."""

    worker: str
    hook: str
    job_id: JobId | None
    error: str


class HookRan(Event, frozen=True):
    """A hook (``pre_claim``, ``pre_handle``, ``handle``, ``post_handle``) has ended, well or not."""

    worker: str
    task: str
    hook: str
    seconds: float
    failed: bool


class StoreCalled(Event, frozen=True):
    """A call to a table's store has ended. ``store``: its name."""

    store: str
    operation: str
    seconds: float
    failed: bool


class JobsReturned(Event, frozen=True):
    """Claimed but not started (or stopped before the end): handed back unspent."""

    worker: str
    job_ids: tuple[JobId, ...]
    why: str


class DrainStarted(Event, frozen=True):
    """Workers died under this job, no child can be made for it, and it has waited behind other work: this worker takes
    nothing more and waits for what runs."""

    worker: str
    job_id: JobId
    task: str
    resets: int
    running: int
    """Jobs that it waits for."""
    patience: float
    """Seconds, at most."""


class DrainEnded(Event, frozen=True):
    """It begins now."""

    worker: str
    job_id: JobId
    task: str
    seconds: float
    """How long it was waited for."""
    beside: int
    """Jobs that still run; 0: it runs alone."""


class JobsReset(Event, frozen=True):
    """Taken back from workers that are gone."""

    jobs: tuple[ResetJob, ...]
    by: str = ""
    """The worker, or the resetter, that did it."""


class ResultDropped(Event, frozen=True):
    """The job completed; its result could not be kept."""

    job_id: JobId
    task: str
    why: str


class ChangeRefused(Event, frozen=True):
    """The database refuses to write one job (a CHECK, a trigger): it is left to its lease, the others go on. Told once
    for each job and kind of call; ``doing``: beat, release, reset."""

    worker: str
    job_id: JobId
    doing: str
    why: str


class StoreTrouble(Event, frozen=True):
    """A call to the store failed; it is tried again. ``doing``: claim, settle, beat, listen, reset;
    or forbidden flags, where it is the function that failed."""

    worker: str
    doing: str
    error: str
    retry_in: float


class StoreRecovered(Event, frozen=True):
    """The call that kept failing works again."""

    worker: str
    doing: str
    failures: int


class StoreWarned(Event, frozen=True):
    """What a person should know of a store that is worked on: jobs wait, run again or are not seen for this reason."""

    store: str
    """A table's name; else where the store is."""
    warning: str
    mend: str
    """What mends it (DDL, mostly); empty where only a person can decide."""


class LeaseEnding(Event, frozen=True):
    """No beat has reached the store for so long that the lease may be given away: the handler is stopped."""

    worker: str
    lease: Lease
    task: str


class LoopBlocked(Event, frozen=True):
    """A handler keeps the event loop from running. ``stack`` says where it is."""

    worker: str
    task: str | None
    job_id: JobId | None
    seconds: float
    stack: str
    beating: bool
    """False once it is held to hang: its lease is renewed no more."""


class ThreadAbandoned(Event, frozen=True):
    """A synchronous handler outlived its timeout. The thread goes on; its result will be ignored."""

    worker: str
    job_id: JobId
    task: str


class ConnectionAwaited(Event, frozen=True):
    """The pool had no connection for an attempt that had none yet: its job goes back unspent, to be due in ``later``
    seconds. It is the ``times``-th time; beyond ``most`` it is an error of the attempt."""

    worker: str
    job_id: JobId
    task: str
    times: int
    most: int
    later: float


class ChildDied(Event, frozen=True):
    """A worker process of a supervisor ended without being asked."""

    worker: str
    pid: int
    how: str
    jobs: int
    """How many jobs came back at once."""


class TasksReloaded(Event, frozen=True):
    """The folder of tasks has changed and was loaded again. ``problem``: why the old tasks stay."""

    worker: str
    tasks: tuple[str, ...]
    problem: str | None


Listener = Callable[[Any], None]


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


class LendingStarted(Event, frozen=True):
    """The server listens. ``open``: without tokens, for programs of this machine."""

    url: str
    store: str
    open: bool
    tokens: str
    """The file of tokens."""


class LendingStopping(Event, frozen=True):
    """No new connections; what is being answered has ``grace`` seconds to end."""

    grace: float


class RequestAnswered(Event, frozen=True):
    """One request. ``who``: the id of its token."""

    call: str
    status: int
    seconds: float
    who: str
    address: str


class LentChanged(Event, frozen=True):
    """The audit: a call that changed something. ``ids`` and ``verdicts`` in one order; never a payload or a secret."""

    call: str
    who: str
    """The id of the token; empty where there are none."""
    worker: str
    ids: tuple[str, ...]
    verdicts: tuple[str, ...]
    address: str


class WrongTokens(Event, frozen=True):
    """An address keeps sending tokens that are not valid; for a minute it is told to wait."""

    address: str
    count: int


class TokensTrouble(Event, frozen=True):
    """The file of tokens has changed and cannot be read; those that were known before still hold."""

    error: str


class RequestBroken(Event, frozen=True):
    """A bug: a request could not be answered. ``trace`` says where."""

    call: str
    trace: str


class Events:
    """Listeners by event type. ``emit`` never raises: a listener's error is another listener's business.

    Events are only made for types that somebody wants (``wants``): a job that nobody watches costs nothing.
    """

    def __init__(self) -> None:
        self._listeners: dict[type[Event], list[Listener]] = {}
        self._of_success: set[type[Event]] = set()
        self.around: Callable[[Any, str], AbstractContextManager[object]] | None = None
        """Stands around each attempt (``handler.Attempt``, the worker's name) of workers that are made with these."""
        self.on_listener_error: Callable[[Listener, Event, BaseException], None] | None = None

    def on(self, kind: type[Event], listener: Listener, *, success: bool = True) -> None:
        """Call ``listener`` for events of this type, where they happen: on the loop, or in the heart's thread.

        Without ``success`` it does without a ``JobEnded`` that says ``ok``, though it may hear of some.
        """
        self._listeners.setdefault(kind, []).append(listener)
        if success:
            self._of_success.add(kind)

    def wants(self, kind: type[Event], *, success: bool = False) -> bool:
        """Is there anybody to tell? With ``success``: of a job that went well."""
        return kind in (self._of_success if success else self._listeners)

    def emit(self, event: Event) -> None:
        """Tell those who asked. A listener that raises stops neither the others nor the core."""
        for listener in self._listeners.get(type(event), ()):
            try:
                listener(event)
            except (Exception, CancelledError) as error:  # noqa: BLE001 - boundary: the hook reports it
                self._report(listener, event, error)

    def _report(self, listener: Listener, event: Event, error: BaseException) -> None:
        """To whoever asked for it; else to the log, also of a program that has events of its own and no log lines."""
        with suppress(Exception):  # a hook that fails too has nobody left to be told
            if self.on_listener_error is not None:
                self.on_listener_error(listener, event, error)
            else:
                # By name: what formats lines stands above the core, which knows nothing of it.
                logger = import_module("stowhand.observe.job_logger").core_logger()
                import_module("stowhand.observe.listener").complain(logger, listener, event, error)
