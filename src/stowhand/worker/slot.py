"""One slot for a handler: what runs in it, why that is stopped, and what is called when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, Protocol

from stowhand.clock import Cancelable
from stowhand.jobs.lifecycle import Outcome
from stowhand.protocols.handler import Attempt
from stowhand.worker.leases import Held


class Stop(StrEnum):
    """Why a running handler is stopped."""

    TIMEOUT = "timeout"
    CANCELED = "canceled"
    """The job was asked to cancel."""
    LOST = "lost"
    """Its lease is lost, or may be given away any moment."""
    RETURNED = "returned"
    """The worker stops: the job is returned without using an attempt."""
    CRASHED = "crashed"
    """The child process that ran it died."""
    UNABLE = "unable"
    """The child process could not start it."""


class ChildCrashed(Exception):
    """Raised by an isolating handler: the child process died before it reported how the attempt ended."""


class ChildUnable(Exception):
    """Raised by an isolating handler: the child process never started the job (no store, no such task any more). That
    is no death: the job is returned without using an attempt."""


Isolate = Callable[[Attempt[Any]], Coroutine[Any, Any, object]]
"""Runs one attempt where it can do no harm (a child process). Raises ChildCrashed, ChildUnable."""


class Ending(Protocol):
    """Called for each attempt. ``None`` instead of an outcome: nothing is to be recorded, because of ``stop``."""

    def started(self, held: Held) -> None:
        """A handler is about to run."""

    def slot_freed(self, held: Held) -> None:
        """Its slot is free again; at most a thread still runs for it."""

    def ended(self, held: Held, outcome: Outcome | None, stop: Stop | None) -> None:
        """A handler ended before the executor was closed."""


class Slot:
    """One slot: its task, and what runs in it."""

    __slots__ = ("held", "stop", "task", "timer", "timer_seconds", "waited")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.held: Held | None = None
        self.stop: Stop | None = None
        self.timer: Cancelable | None = None
        self.timer_seconds = 0.0
        self.waited = False
        """Its last handler really waited, so the event loop has had a turn since."""
