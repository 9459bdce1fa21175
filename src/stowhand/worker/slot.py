"""One slot for a handler: what runs in it, why that is stopped, and what is called when it has ended."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Protocol

from stowhand.clock import Cancelable
from stowhand.jobs.lifecycle import Outcome
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
