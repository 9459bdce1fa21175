"""Optional hooks of a handler, and the transaction or tools that a store adds to an attempt.

    pre_claim      admission.py
    around         the store passes its tools to the attempt, and may enclose it in a transaction
    pre_handle     before the handler
    post_handle    after every pre_handle, whatever the outcome, when the store has answered the settlement; then the
                   slot becomes free
    resources      objects that the tasks request: opened before the first claim, and closed after the last job

A handler without hooks, on a store that encloses nothing, is called directly, at no extra cost.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import copy_context
from typing import Any

from stowhand.errors import LeaseLost, StoreError
from stowhand.events import Events, HookFailed, HookFinished
from stowhand.jobs.job import NewJob
from stowhand.jobs.lease import Unreadable
from stowhand.jobs.lifecycle import RaisableOutcome, Retry, Snooze
from stowhand.jobs.outcomes import as_failure, awaitable, describe, from_raised
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.handler import ChildCrashed, ChildUnable, Handler, Isolate, Resources
from stowhand.protocols.store import Store
from stowhand.worker.state import WorkerState
from stowhand.worker.watchdog import LoopWatchdog

Run = Callable[..., Coroutine[Any, Any, object]]
Hook = Callable[[Attempt[Any], Any], Awaitable[object]]
ENCLOSE_RETRY_SECONDS = 1.0
"""Delay before a record is claimed again if the store could not enclose its attempt."""
MIN_CLOSE_SECONDS = 1.0
"""Time that each resource has to close, even if less of the grace is left."""


class Hooks:
    """Hooks of a handler on a store, called around each attempt."""

    def __init__(self, handler: Handler, store: Store[Any], isolate: Isolate | None, state: WorkerState) -> None:
        self._handler = handler
        self._state = state
        self._supervisor = state.supervisor
        self._events = state.events
        self._clock = state.clock
        self._worker = state.worker
        self._around = None if store.enclosing is None else store.enclosing.around
        self._pre: Hook | None = getattr(handler, "pre_handle", None)
        self._post: Hook | None = getattr(handler, "post_handle", None)
        self._retryable: Callable[[BaseException], bool] | None = getattr(handler, "retryable", None)
        self.holds_slots = self._pre is not None or self._post is not None
        """Whether a job holds its slot until post_handle has ended; then no job is claimed before a slot is free."""
        wraps = self.holds_slots or self._retryable is not None or getattr(handler, "pre_claim", None) is not None
        is_async = inspect.iscoroutinefunction(handler.handle) or getattr(handler, "gives_coroutines", False)
        run: Run = self._handle
        if is_async and not wraps and not state.events.wants(HookFinished):
            run = handler.handle if self._around is None else self._handle_prepared
        self._wraps = wraps
        self.handle: Run = enclosed(run, state.events, state.worker)
        """The handler with everything around it."""
        self.isolated = None if isolate is None else self._isolated(isolate)
        """The same for suspects, with the handler in a child process; ``None`` without child processes."""
        self.on_enqueue: Callable[[NewJob], NewJob] | None = getattr(handler, "on_enqueue", None)
        """Hook for the jobs of ``enqueue_after``."""
        self.has_post = self._post is not None
        self.preparing = 0
        """Number of attempts whose pre_handle has not returned yet."""

    async def _handle_prepared(self, attempt: Attempt[Any], record: Any) -> object:
        """Call a handler without hooks on a store that passes tools but encloses nothing."""
        if isinstance(record, Unreadable):
            return _unreadable(record)
        assert self._around is not None
        around = self._around(attempt)
        if around is not None:
            return await self._enclose(attempt, record, around)
        try:
            returned = await self._handler.handle(attempt, record)
        except RaisableOutcome as raised:
            returned = from_raised(raised)
        except LeaseLost:
            control_of(attempt).lost = True
            raise
        decided = control_of(attempt).decided
        return decided if decided is not None else returned

    async def _handle(self, attempt: Attempt[Any], record: Any) -> object:
        if isinstance(record, Unreadable):
            return _unreadable(record)
        return await self._enclose(attempt, record, None if self._around is None else self._around(attempt))

    def _isolated(self, isolate: Isolate) -> Run:
        """Return a call of the handler in a child process. Its hooks use this process's state, so they run here."""

        async def run(attempt: Attempt[Any]) -> object:
            return await self._enclose(attempt, attempt.record, None, lambda attempt, record: isolate(attempt))

        return enclosed(run if self._wraps else isolate, self._events, self._worker)

    async def _enclose(
        self,
        attempt: Attempt[Any],
        record: Any,
        around: AbstractAsyncContextManager[None] | None,
        handle: Hook | None = None,
    ) -> object:
        self.preparing += 1
        is_prepared = False

        def mark_prepared() -> None:
            nonlocal is_prepared
            if not is_prepared:
                is_prepared = True
                self.preparing -= 1
                self._state.notify_change()
                self._state.ask_pre_claim_again()

        try:
            if around is None:
                return await self._inside(attempt, record, mark_prepared, handle or self._handler.handle)
            async with AsyncExitStack() as stack:
                if not await _enter(stack, around, attempt):
                    return Snooze(ENCLOSE_RETRY_SECONDS)
                return await self._inside(attempt, record, mark_prepared, self._handler.handle)
        except LeaseLost:
            control_of(attempt).lost = True
            raise
        except (ChildCrashed, ChildUnable):
            raise  # not raised by the handler
        except Exception as error:
            if self._retryable is not None and not self._retryable(error):
                return as_failure(error)
            raise
        finally:
            mark_prepared()

    async def _inside(
        self, attempt: Attempt[Any], record: Any, on_prepared: Callable[[], None], handle: Hook
    ) -> object:
        if self.holds_slots:
            control_of(attempt).hooked = copy_context()
        try:
            if self._pre is not None:
                await self._timed("pre_handle", attempt, self._pre(attempt, record))
            on_prepared()
            returned = await self._timed("handle", attempt, handle(attempt, record))
        except RaisableOutcome as raised:
            returned = from_raised(raised)
        decided = control_of(attempt).decided
        return decided if decided is not None else returned

    async def _timed(self, hook: str, attempt: Attempt[Any], call: Awaitable[object]) -> object:
        started_at = self._clock.monotonic()
        failed = True
        try:
            returned = await awaitable(call, hook)
            failed = False
            return returned
        except RaisableOutcome:
            failed = hook == "post_handle"  # the settlement is recorded already
            raise
        finally:
            if self._events.wants(HookFinished) and not self._supervisor.is_closed:
                task = attempt.claim.task
                self._events.emit(HookFinished(self._worker, task, hook, self._clock.monotonic() - started_at, failed))

    async def post(self, attempt: Attempt[Any]) -> None:
        """Call post_handle, after the settlement was answered or dropped."""
        assert self._post is not None
        try:
            await self._timed("post_handle", attempt, self._post(attempt, attempt.record))
        except BaseException as error:  # boundary: the settlement is answered; the event reports the error
            if self._supervisor.is_closed:
                raise  # the side task is being cancelled
            self._events.emit(HookFailed(self._worker, "post_handle", attempt.lease.job_id, describe(error)))


def enclosed(run: Run, events: Events, worker: str) -> Run:
    """Return ``run`` inside the context manager ``Events.around``, if there is one."""
    around = events.around
    if around is None:
        return run

    async def inside(attempt: Attempt[Any], *record: Any) -> object:
        with around(attempt, worker):
            try:
                return await run(attempt, *record)
            except RaisableOutcome as raised:
                return from_raised(raised)

    return inside


def _unreadable(record: Unreadable) -> Retry:
    return Retry(f"the record could not be read: {record.error}")


async def _enter(stack: AsyncExitStack, around: AbstractAsyncContextManager[None], attempt: Attempt[Any]) -> bool:
    """Enter the store's context. Return False on a store error, which uses no attempt. Raises LeaseLost."""
    try:
        await stack.enter_async_context(around)
    except LeaseLost:
        raise
    except StoreError as error:
        attempt.logger.warning(f"not started, returned to the queue: {error}")
        return False
    return True


class OpenResources:
    """Resources that a worker's tasks request, opened and closed within time limits."""

    def __init__(self, resources: Resources, watchdog: LoopWatchdog, state: WorkerState) -> None:
        self._resources = resources
        self._watchdog = watchdog
        self.moved_at = float("-inf")
        """Monotonic time at which the loop last ran while the resources were being opened."""
        self._state = state

    async def open(self) -> None:
        """Open the resources; a stop cancels this. Raises ResourceUnavailable."""
        task = asyncio.ensure_future(self._resources.open(self._state.options.tasks, self._state.supervisor.report))
        task.add_done_callback(lambda _: self._state.notify_change())
        try:
            while not (task.done() or self._state.is_stopping):
                # Opening may take minutes: show that the loop runs, since heartbeats have not started.
                self._watchdog.mark_alive()
                self.moved_at = self._state.clock.monotonic()
                await self._state.until(lambda: task.done() or self._state.is_stopping, self._watchdog.interval)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        if not task.cancelled():
            task.result()

    async def close(self) -> None:
        """Close the resources within the grace, even if this is cancelled."""
        task = asyncio.ensure_future(self._resources.close(self._grace_left))
        cancellation: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as raised:
                cancellation = raised
        for name, error in task.result():
            self._state.events.emit(HookFailed(self._state.worker, f"close of resource {name}", None, describe(error)))
        if cancellation is not None:
            raise cancellation

    def _grace_left(self) -> float:
        """Return the seconds left of the grace."""
        if self._state.skips_grace:
            return MIN_CLOSE_SECONDS
        started_at = self._state.stopped_at if self._state.is_stopping else self._state.clock.monotonic()
        return max(started_at + self._state.options.grace - self._state.clock.monotonic(), MIN_CLOSE_SECONDS)
