"""What the parts of a worker share: who it is, what it is to do, what it has in hand, its tasks, and the change signal.

    look_again   a slot is free, something is recorded, an attempt ended: no reason to ask an empty store again
    wake         the store may have work; ``wakes`` grows, so that "woken while I asked" is seen

One event carries both. What a signal means is seen in the state by its reader, after it wakes: the claimer, and after
the claimer's end the worker's stop; never both. Written on the worker's loop, and read from any thread; another thread
comes in by ``from_thread``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

from stowhand.clock import Clock, Tick
from stowhand.events import Events
from stowhand.jobs.queues import Queues
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import Handler
from stowhand.protocols.options import WorkerOptions
from stowhand.worker.host import Timings

if TYPE_CHECKING:
    from stowhand.worker.leases import HeldJob

NEVER = float("inf")
MAX_UNRECORDED = 1000
"""Ended jobs not yet recorded, above which nothing new is claimed."""


class WorkerState:
    """What a worker is to do, and what it has in hand."""

    is_quiet = False
    """Claim nothing for the time being."""
    limit_reason: str | None = None
    """Claim nothing more; end when nothing runs: the worker has reached this limit."""
    is_stopping = False
    """Claim nothing more, and end within the grace."""
    stopped_at = 0.0
    """When it was first asked to stop, by the monotonic clock."""
    skips_grace = False
    """It stops without a grace."""
    handlers_ended = 0
    """Handlers that have ended so far."""
    handler_seconds = 0.0
    """Seconds that these took, all added up."""
    pending_calls = 0
    """Calls that the heartbeater is still to make, besides beats."""
    returned_jobs = 0
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
        handler: Handler | None = None,
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_crash``: called at each error that is a bug here or in a store: the worker is to stop."""
        self.worker = worker
        """Name of the worker."""
        self.options = options
        """Options of the worker, under the terms of its store."""
        self.task_queues: Mapping[str, str] = getattr(handler, "task_queues", {})
        """The queue that each task declares."""
        self.queues = Queues(options.queues, options.exclude_queues)
        self.events = events
        self.clock = clock
        self.timings = timings or Timings()
        self.supervisor = Supervisor(self, on_crash)

        self.tasks = options.tasks
        """Claim only these; ``None``: any."""
        self.ready: deque[HeldJob] = deque()
        """Claimed, not started, in claim order."""
        self.running: set[HeldJob] = set()
        """Jobs whose handlers are at work."""
        self.executing: HeldJob | None = None
        """The job whose handler the event loop executes just now. Written by the slots."""
        self.unrecorded: set[HeldJob] = set()
        """Jobs that have ended and are not recorded yet."""
        self.occupying_attempts: set[Attempt[Any]] = set()
        """Attempts that have ended and still hold their slots: for the store's answer, and for post_handle."""
        self._has_pre_claim = getattr(handler, "pre_claim", None) is not None
        """The answer of its ``pre_claim`` may change with every attempt."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def open(self) -> None:
        """Note that the current task runs the worker, on its loop."""
        self._loop = asyncio.get_running_loop()
        self.supervisor.open()

    # -- what it is to do ------------------------------------------------------------------------

    @property
    def is_limit_reached(self) -> bool:
        """Claim nothing more; end when nothing runs."""
        return self.limit_reason is not None

    @property
    def is_ending(self) -> bool:
        """Claim nothing more, for either reason."""
        return self.is_stopping or self.limit_reason is not None

    def set_tasks(self, tasks: tuple[str, ...] | None) -> None:
        """Claim jobs of these tasks from now on."""
        self.tasks = tasks
        self.wake()

    def set_quiet(self, *, on: bool) -> None:
        """Rest, or claim again."""
        self.is_quiet = on
        self.wake()

    def reach_limit(self, reason: str) -> None:
        """A limit is reached. May be repeated: the first reason is kept."""
        self.limit_reason = self.limit_reason or reason
        self.look_again()

    def stop(self, *, skips_grace: bool) -> None:
        """Claim nothing more, and end. When repeated, the first moment counts."""
        self.skips_grace = self.skips_grace or skips_grace
        if not self.is_stopping:
            self.is_stopping = True
            self.stopped_at = self.clock.monotonic()
        self.look_again()

    def set_options(self, options: WorkerOptions) -> None:
        """Take the options under the terms of the store. Called before the worker works."""
        self.options = options

    # -- what it has in hand ---------------------------------------------------------------------

    def end_handler(self, job: HeldJob) -> None:
        """Note that the handler has ended."""
        self.running.discard(job)
        self.handlers_ended += 1
        self.handler_seconds += job.seconds

    def set_pending_calls(self, number: int) -> None:
        """Note how many calls the heartbeater is to make. From any thread, under the heartbeater's lock."""
        self.pending_calls = number

    def add_returned(self, number: int) -> None:
        """Count jobs that were given back. From the heartbeat thread alone."""
        self.returned_jobs += number

    @property
    def free_slots(self) -> int:
        """Slots in which nothing runs, post_handle included."""
        return max(self.options.concurrency - len(self.running) - len(self.occupying_attempts), 0)

    @property
    def has_busy_slots(self) -> bool:
        """A handler runs, or its slot is not free yet."""
        return bool(self.running or self.occupying_attempts)

    @property
    def is_unrecorded(self) -> bool:
        """Something has ended, and its end is not recorded yet."""
        return bool(self.unrecorded or self.supervisor.pending)

    @property
    def is_backed_up(self) -> bool:
        """Too much waits to be recorded."""
        return len(self.unrecorded) > MAX_UNRECORDED

    @property
    def has_work(self) -> bool:
        """Something runs, waits for a slot, or has ended and is not recorded."""
        return bool(self.running or self.ready or self.is_unrecorded)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do, not even for the heartbeater."""
        return not (self.has_work or self.pending_calls)

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
        if self._has_pre_claim:
            self.wake()

    async def changed_since(self, changes: int, timeout_seconds: float = NEVER) -> bool:
        """Wait until anything has changed since ``changes`` was read, or for so many seconds. False: the time is
        over."""
        return await self.until(lambda: self.changes != changes, timeout_seconds)

    async def until(self, condition: Callable[[], bool], timeout_seconds: float = NEVER) -> bool:
        """Wait until it is reached, or for so many seconds. False: the time is over."""
        if condition():
            return True
        is_late = timeout_seconds <= 0

        def expire() -> None:
            nonlocal is_late
            is_late = True
            self._event.set()

        timer = None if is_late or timeout_seconds == NEVER else self.clock.call_later(timeout_seconds, expire)
        try:
            while not (is_late or condition()):
                self._event.clear()
                await self._event.wait()
        finally:
            if timer is not None:
                timer.cancel()
        return not is_late


CANCEL_TIMEOUT_SECONDS = 1.0
"""Seconds that code of the application has to end once it is cancelled; then it is left behind."""
TICK_RETRY_SECONDS = 1.0
"""Seconds until a tick is called again that has raised."""


class Supervisor:
    """Errors of the worker's own loops, threads and slots come here, and so do its side tasks: post_handle, and the
    ends of transactions."""

    def __init__(self, state: WorkerState, on_crash: Callable[[], None]) -> None:
        """``on_crash``: called at each error, which is a bug here or in a store: the worker is to stop."""
        self._state = state
        self._on_crash = on_crash
        self._side_tasks: set[asyncio.Task[None]] = set()
        self.crash: BaseException | None = None
        """The first error."""
        self._run: asyncio.Task[None] | None = None
        self.is_finished = False
        """The worker's own loops may end."""
        self.is_closed = False
        """The worker is over: of side tasks that end from now on nothing is recorded or reported."""

    @property
    def pending(self) -> int:
        """Side tasks at work."""
        return len(self._side_tasks)

    def open(self) -> None:
        """Note that the current task runs the worker."""
        self._run = asyncio.current_task()

    @property
    def is_cancelled(self) -> bool:
        """The task that runs the worker was cancelled: by its owner, or by ``asyncio.run``, which at its end cancels
        every task of its loop, those of the worker's loops and slots too."""
        return self._run is not None and self._run.cancelling() > 0

    def finish(self) -> None:
        """Let the worker's loops end: nothing is left to record or return."""
        self.is_finished = True

    async def watch(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run one of the worker's loops until the worker has finished. It is restarted when other code cancels it."""
        while True:
            try:
                await loop()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self.is_finished or task is None:
                    raise
                task.uncancel()
            except Exception as error:  # noqa: BLE001 - boundary: the top of each of our own loops
                self.report(error)
                return
            else:
                return

    def watch_tick(self, tick: Tick) -> Tick:
        """Return a tick for the heartbeat thread whose errors are reported. It goes on while the worker stops."""

        async def watched() -> float:
            try:
                return await tick()
            except Exception as error:  # noqa: BLE001 - boundary: the top of the heartbeat thread
                self._state.from_thread(self.report, error)
                return TICK_RETRY_SECONDS

        return watched

    def report(self, error: BaseException) -> None:
        """Stop the worker, in order; its ``run`` raises the first of these errors."""
        self.crash = self.crash or error
        if not self.is_closed:
            self._on_crash()

    def start(self, work: Coroutine[None, None, None], context: Context | None = None) -> None:
        """Start a side task, which a stopping worker waits for."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._side_tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """End the side tasks, or leave them behind: stopping is always bounded."""
        self.is_closed = True
        for task in self._side_tasks:
            task.cancel()
        if self._side_tasks:
            await asyncio.wait(self._side_tasks, timeout=CANCEL_TIMEOUT_SECONDS)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._side_tasks.discard(task)
        if self.is_closed:
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(error)
        self._state.look_again()
