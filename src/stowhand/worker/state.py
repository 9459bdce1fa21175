"""What the parts of a worker share: who it is, what it is to do, what it has in hand, and the signal of a change.

    look_again   a slot is free, something is recorded, an attempt ended: no reason to ask an empty store again
    wake         the store may have work; ``wakes`` grows, so that "woken while I asked" is seen

One event carries both. What a signal means is seen in the state by its reader, after it wakes: the claimer, and after
the claimer's end the worker's stop; never both. Written on the worker's loop, and read from any thread; another thread
comes in by ``from_thread``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stowhand.clock import Clock
from stowhand.events import Events
from stowhand.jobs.queues import Queues
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.worker.host import Timings
from stowhand.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from stowhand.worker.leases import Held

NEVER = float("inf")
MAX_UNRECORDED = 1000
"""Ended jobs not yet recorded, above which nothing new is claimed."""


class WorkerState:
    """What a worker is to do, and what it has in hand."""

    is_quiet = False
    """Claim nothing for the time being."""
    over_because: str | None = None
    """Claim nothing more; end when nothing runs: the worker has reached this limit."""
    is_stopping = False
    """Claim nothing more, and end within the grace."""
    stopped_at = 0.0
    """When it was first asked to stop, by the monotonic clock."""
    at_once = False
    """It stops without a grace."""
    ended = 0
    """Handlers that have ended so far."""
    worked = 0.0
    """Seconds that these took, all added up."""
    errands = 0
    """Calls that the heartbeater is still to make, besides beats."""
    returned = 0
    """Jobs that were given back so far."""
    wakes = 0
    """How often the store was said to have work."""
    changes = 0
    """How often anything changed, wake-ups included."""

    def __init__(
        self,
        worker: str,
        options: WorkerOptions,
        events: Events,
        clock: Clock,
        timings: Timings | None = None,
        *,
        asks_handler: bool = False,
        on_crash: Callable[[], None] = lambda: None,
        task_queues: Mapping[str, str] | None = None,
    ) -> None:
        """``asks_handler``: it has a ``pre_claim``, whose answer may change with every attempt. ``on_crash``: called at
        each error that is a bug here or in a store: the worker is to stop."""
        self.worker = worker
        """Name of the worker."""
        self.options = options
        """Options of the worker, under the terms of its store."""
        self.task_queues = task_queues or {}
        """The queue that each task declares."""
        self.queues = Queues(options.queues, options.exclude_queues)
        self.events = events
        self.clock = clock
        self.timings = timings or Timings()
        self.supervisor = Supervisor(self, on_crash)

        self.tasks = options.tasks
        """Claim only these; ``None``: any."""
        self.ready: deque[Held] = deque()
        """Claimed, not started, in claim order."""
        self.running: set[Held] = set()
        """Jobs whose handlers are at work."""
        self.executing: Held | None = None
        """The job whose handler the event loop executes just now. Written by the slots."""
        self.unrecorded: set[Held] = set()
        """Jobs that have ended and are not recorded yet."""
        self.occupying: set[Attempt[Any]] = set()
        """Attempts that have ended and still hold their slots: for the store's answer, and for post_handle."""
        self._asks_handler = asks_handler
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def open(self) -> None:
        """Note that the current task runs the worker, on its loop."""
        self._loop = asyncio.get_running_loop()
        self.supervisor.open()

    # -- what it is to do ------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Claim nothing more; end when nothing runs."""
        return self.over_because is not None

    @property
    def is_ending(self) -> bool:
        """Claim nothing more, for either reason."""
        return self.is_stopping or self.over_because is not None

    def retask(self, tasks: tuple[str, ...] | None) -> None:
        """Claim jobs of these tasks from now on."""
        self.tasks = tasks
        self.wake()

    def quiet(self, *, on: bool) -> None:
        """Rest, or claim again."""
        self.is_quiet = on
        self.wake()

    def end(self, reason: str) -> None:
        """A limit is reached. May be repeated: the first reason is kept."""
        self.over_because = self.over_because or reason
        self.look_again()

    def stop(self, *, at_once: bool) -> None:
        """Claim nothing more, and end. When repeated, the first moment counts."""
        self.at_once = self.at_once or at_once
        if not self.is_stopping:
            self.is_stopping = True
            self.stopped_at = self.clock.monotonic()
        self.look_again()

    def adopt(self, options: WorkerOptions) -> None:
        """Take the options under the terms of the store. Called before the worker works."""
        self.options = options

    # -- what it has in hand ---------------------------------------------------------------------

    def end_handler(self, held: Held) -> None:
        """Note that the handler has ended."""
        self.running.discard(held)
        self.ended += 1
        self.worked += held.seconds

    def set_errands(self, number: int) -> None:
        """Note how many calls the heartbeater is to make. From any thread, under the heartbeater's lock."""
        self.errands = number

    def add_returned(self, number: int) -> None:
        """Count jobs that were given back. From the heartbeat thread alone."""
        self.returned += number

    @property
    def free(self) -> int:
        """Slots in which nothing runs, post_handle included."""
        return max(self.options.concurrency - len(self.running) - len(self.occupying), 0)

    @property
    def fills_slots(self) -> bool:
        """A handler runs, or its slot is not free yet."""
        return bool(self.running or self.occupying)

    @property
    def is_unrecorded(self) -> bool:
        """Something has ended, and its end is not recorded yet."""
        return bool(self.unrecorded or self.supervisor.pending)

    @property
    def is_backed_up(self) -> bool:
        """Too much waits to be recorded."""
        return len(self.unrecorded) > MAX_UNRECORDED

    @property
    def is_at_work(self) -> bool:
        """Something runs, waits for a slot, or has ended and is not recorded."""
        return bool(self.running or self.ready or self.is_unrecorded)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do, not even for the heartbeater."""
        return not (self.is_at_work or self.errands)

    # -- the signal ------------------------------------------------------------------------------

    def from_thread(self, call: Callable[..., None], *args: object) -> None:
        """Call it on the worker's loop."""
        with suppress(RuntimeError):  # a last tick may outlive the loop; nothing depends on it then
            assert self._loop is not None
            self._loop.call_soon_threadsafe(call, *args)

    def look_again(self) -> None:
        """Something changed in this worker."""
        self.changes += 1
        self._event.set()

    def wake(self) -> None:
        """The store may have work."""
        self.wakes += 1
        self.look_again()

    def recount(self) -> None:
        """An attempt was prepared, has ended or has left its slot, which a ``pre_claim`` may count: ask it again."""
        if self._asks_handler:
            self.wake()

    async def since(self, changes: int, within: float = NEVER) -> bool:
        """Wait until anything has changed since ``changes`` was read, or for so many seconds. False: the time is
        over."""
        return await self.until(lambda: self.changes != changes, within)

    async def until(self, reached: Callable[[], bool], within: float = NEVER) -> bool:
        """Wait until it is reached, or for so many seconds. False: the time is over."""
        if reached():
            return True
        is_late = within <= 0

        def end() -> None:
            nonlocal is_late
            is_late = True
            self._event.set()

        timer = None if is_late or within == NEVER else self.clock.call_later(within, end)
        try:
            while not (is_late or reached()):
                self._event.clear()
                await self._event.wait()
        finally:
            if timer is not None:
                timer.cancel()
        return not is_late
