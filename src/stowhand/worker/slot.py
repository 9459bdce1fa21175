"""One slot for a handler: what runs in it, why that is told to stop, and who is told how it ended."""

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
    """Why a running handler is told to stop."""

    TIMEOUT = "timeout"
    CANCELED = "canceled"
    """Somebody asked the job to cancel."""
    LOST = "lost"
    """Its lease is gone, or may be given away any moment."""
    RETURNED = "returned"
    """The worker stops: the job goes back unspent."""
    CRASHED = "crashed"
    """The child process that ran it died."""
    UNABLE = "unable"
    """The child process could not begin with it."""


class ChildCrashed(Exception):
    """Raised by an isolating handler: the child process died before it could say how the attempt ended."""


class ChildUnable(Exception):
    """Raised by an isolating handler: the child process never came to the job (no store, no such task any more). That
    is no death: the job goes back unspent."""


Isolate = Callable[[Attempt[Any]], Coroutine[Any, Any, object]]
"""Runs one attempt where it can do no harm (a child process). Raises ChildCrashed, ChildUnable."""


class Ending(Protocol):
    """Told how each attempt ended. ``None`` instead of an outcome: nothing is to be recorded, because of ``stop``."""

    def started(self, held: Held) -> None:
        """A handler begins."""

    def left(self, held: Held) -> None:
        """Its slot is free again, and nothing runs for it any more but maybe a thread."""

    def ended(self, held: Held, outcome: Outcome | None, stop: Stop | None) -> None:
        """A handler ended while the worker was there to hear of it."""


class Slot:
    """One slot: the task that runs in it, and what it runs."""

    __slots__ = ("held", "stop", "task", "timer", "timer_seconds", "waited")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.held: Held | None = None
        self.stop: Stop | None = None
        self.timer: Cancelable | None = None
        self.timer_seconds = 0.0
        self.waited = False
        """Its last handler really waited, so the loop has had its turn since."""
