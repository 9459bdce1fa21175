"""The closed list of things that happen. The core emits them; only ``observe/`` turns them into words and numbers."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from stowhand.lifecycle import Ended
from stowhand.store import Lease, ResetJob


class Event(msgspec.Struct, frozen=True):
    """Something that happened. Subclasses are the closed list; no other module adds one."""


class WorkerStarted(Event, frozen=True):
    """Connected and looking for jobs."""

    worker: str
    tasks: tuple[str, ...] | None


class WorkerStopping(Event, frozen=True):
    """Takes nothing new. ``now``: running jobs are cancelled and handed back instead of awaited."""

    worker: str
    running: int
    now: bool


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


class Listening(Event, frozen=True):
    """The connection that hears wake-ups: ``state`` is "connecting", "success" or "error"."""

    worker: str
    state: str
    error: str | None


class JobStarted(Event, frozen=True):
    """A handler begins."""

    worker: str
    job_id: int
    task: str
    attempt: int


class JobEnded(Event, frozen=True):
    """A handler ended; the store has recorded it."""

    worker: str
    job_id: int
    task: str
    attempt: int
    max_attempts: int
    ended: Ended
    seconds: float
    error: str | None


class JobLost(Event, frozen=True):
    """The lease was gone: whatever the handler did or will do, nothing was written for it."""

    worker: str
    job_id: int
    task: str
    why: str


class JobUnknown(Event, frozen=True):
    """A settlement was repeated after a cut connection, and the store has no trace of it either way."""

    worker: str
    job_id: int
    task: str


class JobsReturned(Event, frozen=True):
    """Claimed but not started (or stopped before the end): handed back unspent."""

    worker: str
    job_ids: tuple[int, ...]
    why: str


class JobsReset(Event, frozen=True):
    """Taken back from workers that are gone."""

    jobs: tuple[ResetJob, ...]


class ResultDropped(Event, frozen=True):
    """The job completed; its result could not be kept."""

    job_id: int
    task: str
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


class LeaseEnding(Event, frozen=True):
    """No beat has reached the store for so long that the lease may be given away: the handler is stopped."""

    worker: str
    lease: Lease
    task: str


class LoopBlocked(Event, frozen=True):
    """A handler keeps the event loop from running. ``stack`` says where it is."""

    worker: str
    task: str | None
    job_id: int | None
    seconds: float
    stack: str
    beating: bool
    """False once it is held to hang: its lease is renewed no more."""


class ThreadAbandoned(Event, frozen=True):
    """A synchronous handler outlived its timeout. The thread goes on; its result will be ignored."""

    worker: str
    job_id: int
    task: str


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


Listener = Callable[[Any], None]


class Events:
    """Listeners by event type. ``emit`` never raises: a listener's error is another listener's business.

    Events are only made for types that somebody wants (``wants``): a job that nobody watches costs nothing.
    """

    def __init__(self) -> None:
        self._listeners: dict[type[Event], list[Listener]] = {}
        self._of_success: set[type[Event]] = set()
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
        if self.on_listener_error is not None:
            with suppress(Exception):  # a hook that fails too has nobody left to be told
                self.on_listener_error(listener, event, error)
