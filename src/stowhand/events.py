"""The closed list of things that happen. The core emits them; only ``observe/`` turns them into words and numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
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
    """A call to the store failed; it is tried again. ``doing``: claim, settle, beat, listen, reset."""

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


Listener = Callable[[Any], None]


class Events:
    """Listeners by event type. ``emit`` never raises: a listener's error is another listener's business.

    Events are only made for types that somebody wants (``wants``): a job that nobody watches costs nothing.
    """

    def __init__(self) -> None:
        self._listeners: dict[type[Event], list[Listener]] = {}
        self.on_listener_error: Callable[[Listener, Event, BaseException], None] | None = None

    def on(self, kind: type[Event], listener: Listener) -> None:
        """Call ``listener`` for events of this type, where they happen: on the loop, or in the heart's thread."""
        self._listeners.setdefault(kind, []).append(listener)

    def wants(self, kind: type[Event]) -> bool:
        """Is there anybody to tell?"""
        return kind in self._listeners

    def emit(self, event: Event) -> None:
        """Tell those who asked. A listener that raises stops neither the others nor the core."""
        for listener in self._listeners.get(type(event), ()):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - boundary: the core survives its watchers; the hook reports it
                self._report(listener, event, error)

    def _report(self, listener: Listener, event: Event, error: BaseException) -> None:
        if self.on_listener_error is not None:
            with suppress(Exception):  # a hook that fails too has nobody left to be told
                self.on_listener_error(listener, event, error)
