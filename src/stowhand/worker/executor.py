"""Where handlers run: in slots, each a long-lived task that runs one job after another.

A handler runs *inside* its slot's task, so one that finishes without really waiting costs no task switch, no timer and
no task of its own; ``asyncio.timeout`` and task groups inside it work as everywhere, because the slot's task is the
current one. Only its context variables are its own. When a handler does wait, the next slot is woken for the next job.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from typing import Any

from stowhand.clock import Clock
from stowhand.errors import LeaseLost
from stowhand.jobs.lifecycle import Cancel, Outcome, Retry
from stowhand.jobs.outcomes import from_error, from_returned
from stowhand.protocols.attempt_logger import AttemptLogger
from stowhand.protocols.handler import Attempt, control_of
from stowhand.protocols.isolation import ChildCrashed, ChildUnable, Isolate
from stowhand.protocols.store import Claim
from stowhand.worker.leases import Held, Leases
from stowhand.worker.slot import Ending, Slot, Stop

YIELD_AFTER = 0.005
"""Seconds of jobs that never wait, after which the event loop gets a turn."""
LONG_AGO = float("-inf")
Handle = Callable[[Attempt[Any], Any], Coroutine[Any, Any, object]]


class Executor:
    """All slots, and the jobs that wait for one."""

    def __init__(
        self,
        handle: Handle,
        leases: Leases,
        ending: Ending,
        clock: Clock,
        concurrency: int,
        timeout_of: Callable[[Any], float | None],
        isolate: Isolate | None,
        logger_of: Callable[[Claim[Any]], AttemptLogger],
    ) -> None:
        self._handle = handle
        self._isolate = isolate
        self._logger_of = logger_of
        self.can_isolate = isolate is not None
        """Suspects run in a child process; without it, alone."""
        self._timeout_of = timeout_of
        self._leases = leases
        self._ending = ending
        self._clock = clock
        self._slots = [Slot() for _ in range(concurrency)]
        self._idle: list[asyncio.Future[None]] = []
        self._unstarted = list(reversed(self._slots))
        self._last_turn = LONG_AGO
        """When the event loop last had a turn between two jobs."""
        self._yielding = False
        self._last_waited = False
        """The last handler seen really waited: the next ones will need a slot each."""
        self.ready: deque[Held] = deque()
        """Claimed, not started, in claim order."""
        self.on_slot_free: Callable[[], None] = lambda: None
        """Called when a slot is free, or when no more than ``low_water`` are ready."""
        self.on_hold = False
        """A slot that falls free stays free, for the claimer to fill."""
        self.low_water = 0
        self.running = 0
        """Attempts at work."""
        self.ended = 0
        """Attempts that have ended so far."""
        self.worked = 0.0
        """Seconds that these took, all added up."""
        self.current: Held | None = None
        """The job whose handler the event loop executes just now; the watchdog names it when the loop is blocked."""
        self._on_crash: Callable[[BaseException], None] | None = None
        """``None``: closed."""

    def open(self, on_crash: Callable[[BaseException], None]) -> None:
        """Slots get their tasks as they are first needed; ``on_crash`` is called if one ends by itself."""
        self._on_crash = on_crash

    async def close(self) -> None:
        """End every slot's task. A handler that ignores it is left behind: stopping is always bounded."""
        self._on_crash = None
        tasks = [(slot.task, slot.held) for slot in self._slots if slot.task is not None]
        for task, _ in tasks:
            task.cancel()
        await asyncio.gather(*(task for task, held in tasks if held is None), return_exceptions=True)

    @property
    def free(self) -> int:
        """Slots in which nothing runs."""
        return len(self._slots) - self.running

    def hold(self) -> None:
        """Start nothing more until ``resume``; ``on_slot_free`` is called when a slot is free."""
        self.on_hold = True

    def resume(self) -> None:
        """Start what is ready, if there was a hold."""
        if self.on_hold:
            self.on_hold = False
            self.add(())

    def add(self, claimed: Iterable[Held], *, first: bool = False) -> None:
        """Queue what was claimed and wake a slot, which wakes the next if its job waits. Where jobs do wait, wake all.

        ``first``: before everything else that is ready.
        """
        if first:
            self.ready.extendleft(claimed)
        else:
            self.ready.extend(claimed)
        if not self._yielding:
            for _ in range(len(self.ready) if self._last_waited else 1):
                self._wake()

    def stop(self, held: Held, why: Stop) -> None:
        """Cancel a running handler, once. The first reason stays, but a lost lease replaces the others."""
        slot = next((slot for slot in self._slots if slot.held is held), None)
        if slot is None or slot.task is None:
            return
        first = slot.stop is None
        if not first and why is not Stop.LOST:
            return
        slot.stop = why
        if held.attempt is not None:
            control_of(held.attempt).lost = why is Stop.LOST
            held.attempt.cancel(why.value)
        if first:
            held.stopped_at = self._clock.monotonic()
            slot.task.cancel()

    def stop_all(self, why: Stop) -> None:
        """Cancel every running handler."""
        for slot in self._slots:
            if slot.held is not None:
                self.stop(slot.held, why)

    # -- one slot --------------------------------------------------------------------------------

    def _wake(self) -> None:
        while self._idle:
            sleeper = self._idle.pop()
            if not sleeper.done():
                sleeper.set_result(None)
                return
        if self._unstarted and self._on_crash is not None:
            slot = self._unstarted.pop()
            slot.task = asyncio.get_running_loop().create_task(self._run(slot), name="stowhand slot")
            slot.task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Only ``close`` ends a slot's task. One that ended by itself would be a slot lost in silence."""
        error = None if task.cancelled() else task.exception()
        if self._on_crash is not None:
            self._on_crash(error or RuntimeError("a slot of the worker was cancelled by code outside the worker"))

    async def _run(self, slot: Slot) -> None:
        while True:
            while self.ready and not self.on_hold:
                held = self.ready.popleft()
                if len(self.ready) == self.low_water:
                    self.on_slot_free()
                    self._last_turn = LONG_AGO  # the claimer gets its turn now, so that the next jobs come in time
                if self._leases.start(held):
                    rest = self._begin(slot, held)
                    if rest is not None:
                        await rest
                if slot.waited:
                    self._last_turn = self._clock.monotonic()
                elif self._clock.monotonic() - self._last_turn > YIELD_AFTER:
                    if self._yielding:
                        break  # the slot that yields runs the rest: one after the other, all would take the loop's turn
                    await self._yield_to_loop()
            if self._on_crash is None:
                return  # a handler swallowed the cancellation that was to end its slot, and has ended late
            sleeper = asyncio.get_running_loop().create_future()
            self._idle.append(sleeper)
            self.on_slot_free()
            await sleeper
            self._last_turn = self._clock.monotonic()

    async def _yield_to_loop(self) -> None:
        self._yielding = True
        await self._clock.sleep(0)
        self._yielding = False
        self._last_turn = self._clock.monotonic()

    def _begin(self, slot: Slot, held: Held) -> Coroutine[Any, Any, None] | None:
        """Run the handler up to its first wait; the rest is to be awaited. ``None``: it never waited, and is over."""
        attempt: Attempt[Any] = Attempt(held.claim, self._clock.monotonic(), self._logger_of)
        held.attempt = attempt
        slot.held = held
        slot.stop = None
        slot.waited = False
        self.running += 1
        self._ending.started(held)
        context = contextvars.copy_context()
        outcome: Outcome | None
        self.current = held
        try:
            if held.suspect and self._isolate is not None:
                coroutine = context.run(self._isolate, attempt)
            else:
                coroutine = context.run(self._handle, attempt, held.claim.record)
            waits_for = context.run(coroutine.send, None)
        except StopIteration as end:
            outcome = from_returned(end.value)
        except BaseException as error:  # noqa: BLE001 - boundary: whatever it is, it ends this attempt, not the process
            outcome = self._outcome_of(error, slot, attempt)
        else:
            return self._finish(slot, held, self._drive(slot, held, context, coroutine, waits_for))
        finally:
            self.current = None
        if slot.task is not None and slot.task.cancelling():
            return self._end_uncancelled(slot, held, outcome)
        self._free(slot, held)
        self._end(slot, held, outcome)
        return None

    async def _finish(self, slot: Slot, held: Held, rest: Awaitable[object]) -> None:
        """Await the handler. Whatever it returns or raises becomes an outcome; only the end of the slot is raised."""
        assert held.attempt is not None
        outcome: Outcome | None
        try:
            outcome = from_returned(await rest)
        except BaseException as error:  # boundary: SystemExit and its like end this attempt, not the process
            if self._on_crash is None:
                self._free(slot, held)
                raise  # the slot itself is being ended
            outcome = self._outcome_of(error, slot, held.attempt)
        await self._end_uncancelled(slot, held, outcome)

    async def _end_uncancelled(self, slot: Slot, held: Held, outcome: Outcome | None) -> None:
        """Undo a cancellation that was meant for this job, or was the handler's own: the next job must not see it."""
        try:
            if slot.task is not None and slot.task.cancelling():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # one that is still on its way arrives here
                while slot.task.cancelling():
                    slot.task.uncancel()
        finally:
            self._free(slot, held)
        self._end(slot, held, outcome)

    def _free(self, slot: Slot, held: Held) -> None:
        """The slot is free again."""
        assert held.attempt is not None
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        slot.held = None
        self._last_waited = slot.waited
        self.running -= 1
        self.ended += 1
        held.seconds = self._clock.monotonic() - held.attempt.started
        self.worked += held.seconds
        self._ending.slot_freed(held)

    def _end(self, slot: Slot, held: Held, outcome: Outcome | None) -> None:
        if self._on_crash is not None:
            self._leases.end(held)
            # Cancelled, and ended well all the same: its result counts, unless the lease is gone.
            self._ending.ended(held, None if slot.stop is Stop.LOST else outcome, slot.stop)

    def _outcome_of(self, error: BaseException, slot: Slot, attempt: Attempt[Any]) -> Outcome | None:
        """``None``: nothing is to be recorded, because of ``slot.stop``."""
        match slot.stop:
            case None if isinstance(error, ChildCrashed):
                slot.stop = Stop.CRASHED
                return None
            case None if isinstance(error, ChildUnable):
                slot.stop = Stop.UNABLE
                return None
            case None if isinstance(error, LeaseLost):
                slot.stop = Stop.LOST
                return None
            case None:
                return from_error(error)
            case Stop.TIMEOUT:
                detached = control_of(attempt).detached
                thread = "; its thread cannot be stopped and its result will be ignored" if detached else ""
                return Retry(f"timed out: the attempt took longer than {slot.timer_seconds:g} s{thread}")
            case Stop.CANCELED:
                return Cancel("canceled while running")
            case _:
                return None

    @types.coroutine
    def _drive(
        self,
        slot: Slot,
        held: Held,
        context: contextvars.Context,
        coroutine: Coroutine[Any, Any, object],
        waits_for: object,
    ) -> Generator[Any, Any, object]:
        """Await the rest of the handler in the slot's task, under its own context, and note when it executes."""
        slot.waited = True
        self._last_waited = True
        self._first_wait(slot, held)
        advance: Callable[[Any], Any]
        given: Any
        while True:
            try:
                given = yield waits_for
                advance = coroutine.send
            except BaseException as error:  # noqa: BLE001 - passed on to the handler
                advance = coroutine.throw
                given = error
            self.current = held
            try:
                waits_for = context.run(advance, given)
            except StopIteration as end:
                return end.value
            finally:
                self.current = None
                given = None  # no reference cycle through an exception

    def _first_wait(self, slot: Slot, held: Held) -> None:
        """A handler waits for the first time: from here on it needs a timer, and the next job another slot."""
        if self.ready:
            self._wake()
        timeout = self._timeout_of(held.claim)
        if timeout is not None:
            assert held.attempt is not None
            spent = self._clock.monotonic() - held.attempt.started
            slot.timer_seconds = timeout
            slot.timer = self._clock.call_later(max(timeout - spent, 0), lambda: self.stop(held, Stop.TIMEOUT))
