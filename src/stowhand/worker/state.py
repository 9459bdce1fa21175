"""State shared by the parts of a worker: its name and options, the jobs that it holds, and the signal of a change.

    notify_change   a slot is free, a settlement is recorded, an attempt ended: no reason to query an empty store again
    wake            the store may have work; ``wakes`` grows, so that a wake-up during a claim is noticed

Both set the same asyncio event. It has one waiter at a time: the claimer, and after it the worker's stop. The waiter
reads the state to find out what changed. The state is written on the worker's loop and read from any thread; other
threads write through ``from_thread``.
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
from stowhand.jobs.task_limits import NO_DECLARATIONS, TaskDeclarations
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import Handler
from stowhand.protocols.options import WorkerOptions
from stowhand.worker.host import Timings

if TYPE_CHECKING:
    from stowhand.worker.leases import HeldJob

NEVER = float("inf")
MAX_UNRECORDED = 1000
"""Number of unrecorded settlements above which no job is claimed."""


class WorkerState:
    """Instructions to a worker, and the jobs that it holds."""

    is_quiet = False
    """Whether claims are suspended."""
    limit_reason: str | None = None
    """The limit that the worker has reached: it claims nothing more, and ends when no handler runs."""
    is_stopping = False
    """Whether the worker claims nothing more and ends within the grace."""
    stopped_at = 0.0
    """Monotonic time of the first request to stop."""
    skips_grace = False
    """Whether running jobs are returned at once."""
    handlers_ended = 0
    """Number of handlers that have ended so far."""
    handler_seconds = 0.0
    """Total run time of these, in seconds."""
    pending_calls = 0
    """Number of calls that the heartbeater still has to make, not counting beats."""
    returned_jobs = 0
    """Number of jobs returned to the queue so far."""
    wakes = 0
    """Number of wake-ups so far."""
    changes = 0
    """Number of changes so far, wake-ups included."""

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
        """``on_crash`` is called for each error that is a bug here or in a store, and stops the worker."""
        self.worker = worker
        """Name of the worker."""
        self.options = options
        """Options of the worker, under the terms of its store."""
        self.declarations: TaskDeclarations = getattr(handler, "declarations", NO_DECLARATIONS)
        """What the tasks declare for the store."""
        self.are_limits_stored = not self.declarations.limits
        """Whether the store has the limits of the tasks. Until then nothing is claimed."""
        self.limits_per_worker: Mapping[str, int] = getattr(handler, "limits_per_worker", {})
        """How many jobs of a task run here at the same time, for tasks with such a limit."""
        self.queues = Queues(options.queues, options.exclude_queues)
        self.events = events
        self.clock = clock
        self.timings = timings or Timings()
        self.supervisor = Supervisor(self, on_crash)

        self.tasks = options.tasks
        """Tasks to claim; ``None``: all."""
        self.ready: deque[HeldJob] = deque()
        """Jobs that have been claimed and wait for a slot, in claim order."""
        self.running: set[HeldJob] = set()
        """Jobs whose handlers are running."""
        self.executing: HeldJob | None = None
        """Job whose handler the event loop is executing at this moment. Written by the slots."""
        self.unrecorded: set[HeldJob] = set()
        """Jobs whose handlers have ended and whose settlements are not recorded yet."""
        self.occupying_attempts: set[Attempt[Any]] = set()
        """Attempts that have ended and hold their slots until the store has answered and post_handle has returned."""
        self._has_pre_claim = getattr(handler, "pre_claim", None) is not None
        """If so, its answer may change with every attempt."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def open(self) -> None:
        """Note that the current task runs the worker, on its loop."""
        self._loop = asyncio.get_running_loop()
        self.supervisor.open()

    # -- instructions -------------------------------------------------------------------------

    @property
    def is_limit_reached(self) -> bool:
        """Whether a limit was reached, so that the worker ends when no handler runs."""
        return self.limit_reason is not None

    @property
    def is_ending(self) -> bool:
        """Whether the worker claims nothing more, for either reason."""
        return self.is_stopping or self.limit_reason is not None

    def set_tasks(self, tasks: tuple[str, ...] | None) -> None:
        """Claim jobs of these tasks from now on."""
        self.tasks = tasks
        self.wake()

    @property
    def is_suspended(self) -> bool:
        """Whether nothing is claimed: the worker is quiet, or the store does not have the limits of its tasks yet."""
        return self.is_quiet or not self.are_limits_stored

    def note_limits_stored(self) -> None:
        """Let claims begin: the store has the limits of the tasks. Callable from any thread."""
        if not self.are_limits_stored:
            self.are_limits_stored = True
            self.from_thread(self.wake)

    def set_quiet(self, *, on: bool) -> None:
        """Suspend claims, or resume them."""
        self.is_quiet = on
        self.wake()

    def reach_limit(self, reason: str) -> None:
        """Stop claiming because a limit is reached. The first reason is kept."""
        self.limit_reason = self.limit_reason or reason
        self.notify_change()

    def stop(self, *, skips_grace: bool) -> None:
        """Stop claiming, and end. The grace counts from the first call."""
        self.skips_grace = self.skips_grace or skips_grace
        if not self.is_stopping:
            self.is_stopping = True
            self.stopped_at = self.clock.monotonic()
        self.notify_change()

    def set_options(self, options: WorkerOptions) -> None:
        """Replace the options by those under the terms of the store. Called before the worker starts."""
        self.options = options

    # -- held jobs -------------------------------------------------------------------------------

    def end_handler(self, job: HeldJob) -> None:
        """Note that the handler has ended."""
        self.running.discard(job)
        self.handlers_ended += 1
        self.handler_seconds += job.seconds

    def set_pending_calls(self, number: int) -> None:
        """Set the number of calls that the heartbeater has to make. Any thread, under the heartbeater's lock."""
        self.pending_calls = number

    def add_returned(self, number: int) -> None:
        """Count jobs that were returned to the queue. Only the heartbeat thread calls it."""
        self.returned_jobs += number

    @property
    def free_slots(self) -> int:
        """Number of slots in which no handler and no post_handle runs."""
        return max(self.options.concurrency - len(self.running) - len(self.occupying_attempts), 0)

    @property
    def has_busy_slots(self) -> bool:
        """Whether a handler runs, or its slot is not free yet."""
        return bool(self.running or self.occupying_attempts)

    @property
    def is_unrecorded(self) -> bool:
        """Whether the settlement of an ended attempt is not recorded yet."""
        return bool(self.unrecorded or self.supervisor.pending)

    @property
    def is_backed_up(self) -> bool:
        """Whether too many settlements wait to be recorded."""
        return len(self.unrecorded) > MAX_UNRECORDED

    @property
    def has_work(self) -> bool:
        """Whether a job runs, waits for a slot, or has an unrecorded settlement."""
        return bool(self.running or self.ready or self.is_unrecorded)

    @property
    def is_idle(self) -> bool:
        """Whether no work is left, the heartbeater's calls included."""
        return not (self.has_work or self.pending_calls)

    # -- the signal ------------------------------------------------------------------------------

    def from_thread(self, call: Callable[..., None], *args: object) -> None:
        """Schedule the call on the worker's loop."""
        with suppress(RuntimeError):  # a last tick may outlive the loop; nothing depends on it then
            assert self._loop is not None
            self._loop.call_soon_threadsafe(call, *args)

    def notify_change(self) -> None:
        """Signal that something changed in this worker."""
        self.changes += 1
        self._event.set()

    def wake(self) -> None:
        """Signal that the store may have work."""
        self.wakes += 1
        self.notify_change()

    def ask_pre_claim_again(self) -> None:
        """Wake the claimer if there is a ``pre_claim``, whose answer may depend on the number of running attempts."""
        if self._has_pre_claim:
            self.wake()

    async def changed_since(self, changes: int, timeout_seconds: float = NEVER) -> bool:
        """Wait until anything has changed since ``changes`` was read. Return False on timeout."""
        return await self.until(lambda: self.changes != changes, timeout_seconds)

    async def until(self, condition: Callable[[], bool], timeout_seconds: float = NEVER) -> bool:
        """Wait until the condition is true. Return False on timeout."""
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
"""Time that cancelled application code has to end; after it the worker goes on without it."""
TICK_RETRY_SECONDS = 1.0
"""Delay before a tick that raised is called again."""


class Supervisor:
    """Owner of the worker's own errors, and of its side tasks (post_handle, commits and rollbacks)."""

    def __init__(self, state: WorkerState, on_crash: Callable[[], None]) -> None:
        """``on_crash`` is called for each error, which is a bug here or in a store, and stops the worker."""
        self._state = state
        self._on_crash = on_crash
        self._side_tasks: set[asyncio.Task[None]] = set()
        self.crash: BaseException | None = None
        """The first error."""
        self._run: asyncio.Task[None] | None = None
        self.is_finished = False
        """Whether the worker's own loops may end."""
        self.is_closed = False
        """Whether the worker has ended: outcomes of side tasks are ignored from now on."""

    @property
    def pending(self) -> int:
        """Number of running side tasks."""
        return len(self._side_tasks)

    def open(self) -> None:
        """Note that the current task runs the worker."""
        self._run = asyncio.current_task()

    @property
    def is_cancelled(self) -> bool:
        """Whether the task that runs the worker was cancelled.

        Its owner may do that, or ``asyncio.run``, which finally cancels every task of its loop, the worker's loops and
        slots included."""
        return self._run is not None and self._run.cancelling() > 0

    def finish(self) -> None:
        """Let the worker's loops end: nothing is left to record or return."""
        self.is_finished = True

    async def watch(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run one of the worker's loops until the worker has finished. Restart it if other code cancels it."""
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
        """Return the tick with its errors reported. The heartbeat thread keeps calling it while the worker stops."""

        async def watched() -> float:
            try:
                return await tick()
            except Exception as error:  # noqa: BLE001 - boundary: the top of the heartbeat thread
                self._state.from_thread(self.report, error)
                return TICK_RETRY_SECONDS

        return watched

    def report(self, error: BaseException) -> None:
        """Stop the worker in order; its ``run`` raises the first reported error."""
        self.crash = self.crash or error
        if not self.is_closed:
            self._on_crash()

    def start(self, work: Coroutine[None, None, None], context: Context | None = None) -> None:
        """Start a side task. A stopping worker waits for it."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._side_tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Cancel the side tasks, and wait for them for a limited time."""
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
        self._state.notify_change()
