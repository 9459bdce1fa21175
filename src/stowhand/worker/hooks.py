"""The optional hooks of a handler, and what a store puts around it.

    pre_claim      admission.py
    around         the store binds its tools to the attempt, and may enclose it in a transaction
    pre_handle     before the handler
    post_handle    after every pre_handle, however the attempt ended, when the store has answered its settlement;
                   the attempt's slot becomes free after it

A handler without hooks, on a store that encloses nothing, is run bare: none of this costs it anything.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import Context, copy_context
from typing import Any

from stowhand.clock import Clock
from stowhand.errors import LeaseLost, StoreError
from stowhand.events import Events, HookFailed, HookRan
from stowhand.jobs.lifecycle import Retry, Snooze
from stowhand.jobs.outcomes import awaitable, describe, hopeless
from stowhand.jobs.unreadable import Unreadable
from stowhand.protocols.handler import Attempt, EnclosingStore, Handler, control_of
from stowhand.worker.flags import LAST_WORDS

Run = Callable[..., Coroutine[Any, Any, object]]
Hook = Callable[[Attempt[Any], Any], Awaitable[object]]
SHUT = 1.0
"""Seconds until a record is claimed again whose attempt the store could not enclose."""


class Hooks:
    """Of one worker. Its own tasks (post_handle, ends of transactions) are counted in ``pending`` until they end."""

    def __init__(self, handler: Handler, store: object, events: Events, clock: Clock, worker: str) -> None:
        self._handler = handler
        self._events = events
        self._clock = clock
        self._worker = worker
        self._around = store.around if isinstance(store, EnclosingStore) else None
        self._before: Hook | None = getattr(handler, "pre_handle", None)
        self._after: Hook | None = getattr(handler, "post_handle", None)
        self._retryable: Callable[[BaseException], bool] | None = getattr(handler, "retryable", None)
        self.holds_slots = self._before is not None or self._after is not None
        """A job holds a slot from the claim to the end of post_handle; so nothing is claimed ahead."""
        self.handle: Callable[[Attempt[Any], Any], Coroutine[Any, Any, object]] = handler.handle
        wraps = self._around is not None or self.holds_slots or self._retryable is not None
        is_async = inspect.iscoroutinefunction(handler.handle) or getattr(handler, "gives_coroutines", False)
        self.bare = is_async and not wraps and not events.wants(HookRan)
        """Nothing of this module runs around the handler."""
        if not self.bare:
            self.handle = self._handle
        self.handle = enclosed(self.handle, events, worker)
        self.preparing = 0
        """Attempts that have begun and whose pre_handle has not returned."""
        self.pending = 0
        """Tasks of this object: post_handle, ends and rollbacks of transactions."""
        self.on_progress: Callable[[], None] = lambda: None
        """Called when one of these numbers has fallen, or a slot has become free."""
        self.on_error: Callable[[BaseException], None] = lambda error: None
        """Called when one of the tasks fails."""
        self._closed = False
        self._begun: dict[Attempt[Any], Context] = {}
        """Their post_handle is to come, in the context of the attempt, to which its log lines and spans belong."""
        self._ended: set[Attempt[Any]] = set()
        """They have ended, and still hold their slots."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def _handle(self, attempt: Attempt[Any], record: Any) -> object:
        if isinstance(record, Unreadable):
            return Retry(f"the record could not be read: {record.error}")
        self.preparing += 1
        is_prepared = False

        def prepared() -> None:
            nonlocal is_prepared
            if not is_prepared:
                is_prepared = True
                self.preparing -= 1
                self.on_progress()

        try:
            around = self._around(attempt) if self._around is not None else None
            if around is None:
                return await self._inside(attempt, record, prepared)
            async with AsyncExitStack() as stack:
                if not await _entered(stack, around, attempt):
                    return Snooze(SHUT)
                return await self._inside(attempt, record, prepared)
        except LeaseLost:
            control_of(attempt).lost = True
            raise
        except Exception as error:
            if self._retryable is not None and not self._retryable(error):
                return hopeless(error)
            raise
        finally:
            prepared()

    async def _inside(self, attempt: Attempt[Any], record: Any, prepared: Callable[[], None]) -> object:
        if self.holds_slots:
            self._begun[attempt] = copy_context()
        if self._before is not None:
            await self._timed("pre_handle", attempt, self._before(attempt, record))
        prepared()
        returned = await self._timed("handle", attempt, self._handler.handle(attempt, record))
        decided = control_of(attempt).decided
        return decided if decided is not None else returned

    async def _timed(self, hook: str, attempt: Attempt[Any], call: Awaitable[object]) -> object:
        began = self._clock.monotonic()
        failed = True
        try:
            returned = await awaitable(call, hook)
            failed = False
            return returned
        finally:
            if self._events.wants(HookRan) and not self._closed:
                task = attempt.claim.task
                self._events.emit(HookRan(self._worker, task, hook, self._clock.monotonic() - began, failed))

    # -- afterwards ------------------------------------------------------------------------------

    @property
    def occupied(self) -> int:
        """Slots of attempts that have ended: the store has not answered yet, or post_handle has not returned."""
        return len(self._ended)

    def handler_ended(self, attempt: Attempt[Any]) -> bool:
        """True: its slot is held until ``record_answered`` is called."""
        control = control_of(attempt)
        control.ended = True
        if attempt in self._begun or control.transaction is not None:
            self._ended.add(attempt)
            return True
        return False

    def record_answered(self, attempt: Attempt[Any]) -> None:
        """The store has answered the settlement, or there is none: post_handle's turn."""
        begun = self._begun.pop(attempt, None)
        if begun is not None and self._after is not None:
            self.run_soon(self._post(attempt, self._after), begun)
        elif attempt in self._ended:
            self._ended.discard(attempt)
            self.on_progress()

    def undo(self, attempt: Attempt[Any], then: Callable[[], None]) -> None:
        """No outcome is to be recorded: roll the attempt's transaction back, if it has one; ``then`` is called next."""
        control = control_of(attempt)
        transaction = control.transaction
        control.transaction = None
        if transaction is None:
            then()
            return

        async def roll_back() -> None:
            try:
                await transaction.rollback()
            except StoreError:
                pass  # the connection is gone, and its transaction with it
            finally:
                then()

        self.run_soon(roll_back())

    def run_soon(self, work: Coroutine[Any, Any, None], context: Context | None = None) -> None:
        """In a task of its own, which a stopping worker waits for."""
        self.pending += 1
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """End what still runs, or leave it behind; its errors are not reported any more."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_WORDS)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.pending -= 1
        if self._closed:
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_error(error)
        self.on_progress()

    async def _post(self, attempt: Attempt[Any], hook: Hook) -> None:
        try:
            await self._timed("post_handle", attempt, hook(attempt, attempt.record))
        except BaseException as error:  # boundary: the settlement is answered; the event reports the error
            if self._closed:
                raise  # this task is being ended
            self._events.emit(HookFailed(self._worker, "post_handle", attempt.lease.job_id, describe(error)))
        finally:
            self._ended.discard(attempt)


def enclosed(run: Run, events: Events, worker: str) -> Run:
    """``run``, whose first argument is an attempt, within the context manager ``Events.around``, if there is one."""
    around = events.around
    if around is None:
        return run

    async def inside(attempt: Attempt[Any], *record: Any) -> object:
        with around(attempt, worker):
            return await run(attempt, *record)

    return inside


async def _entered(stack: AsyncExitStack, around: AbstractAsyncContextManager[None], attempt: Attempt[Any]) -> bool:
    """False: the store could not; that is no fault of the handler, and uses no attempt. Raises LeaseLost."""
    try:
        await stack.enter_async_context(around)
    except LeaseLost:
        raise
    except StoreError as error:
        attempt.logger.warning(f"not begun, and put back: {error}")
        return False
    return True
