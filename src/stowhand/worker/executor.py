"""Where handlers run: as many long-lived tasks as may run at once, each taking one job after another.

A handler runs *inside* its lane's task, so one that finishes without really waiting costs no task switch, no timer and
no task of its own; ``asyncio.timeout`` and task groups inside it work as everywhere, because the lane's task is the
current one. Only its context variables are its own. When a handler does wait, the next lane is woken for the next job.
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
from stowhand.protocols.store import Claim
from stowhand.worker.leases import Held, Leases
from stowhand.worker.slot import ChildCrashed, ChildUnable, Ending, Isolate, Slot, Stop

BREATH = 0.005
"""Seconds of jobs that never wait, after which the loop gets a turn."""
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
        """Suspects run in a child here; elsewhere, alone."""
        self._timeout_of = timeout_of
        self._leases, self._ending, self._clock = leases, ending, clock
        self._executor = [Slot() for _ in range(concurrency)]
        self._idle: list[asyncio.Future[None]] = []
        self._unborn = list(reversed(self._executor))
        self._breath = LONG_AGO
        """When jobs that never wait last began to keep the loop to themselves."""
        self._breathing = False
        self._waiting = False
        """The last handler seen really waited: the next ones will want a lane each."""
        self.ready: deque[Held] = deque()
        """Claimed, not started, in claim order."""
        self.starved: Callable[[], None] = lambda: None
        """Told when a slot is free, or when few are ready."""
        self.holds = False
        """A slot that falls free stays free, for the taker to fill."""
        self.low_water = 0
        """When this few are ready, the taker is told."""
        self.running = self.ended = 0
        """Attempts at work; those that have ended so far."""
        self.worked = 0.0
        """Seconds that they took, all added up."""
        self.driving: Held | None = None
        """Whose handler the loop is in just now; the watchdog names it when the loop is blocked."""
        self._crashed: Callable[[BaseException], None] | None = None

    def open(self, crashed: Callable[[BaseException], None]) -> None:
        """Executor become tasks as they are first needed; ``crashed`` is told if one ends by itself."""
        self._crashed = crashed

    async def close(self) -> None:
        """End every lane's task. A handler that ignores it is left behind: stopping is always bounded."""
        self._crashed = None
        tasks = [(slot.task, slot.held) for slot in self._executor if slot.task is not None]
        for task, _ in tasks:
            task.cancel()
        await asyncio.gather(*(task for task, held in tasks if held is None), return_exceptions=True)

    @property
    def free(self) -> int:
        """Slots in which nothing runs."""
        return len(self._executor) - self.running

    def hold(self) -> None:
        """Begin nothing more until ``go_on``: ``starved`` is called when a slot is free."""
        self.holds = True

    def go_on(self) -> None:
        """Begin what is ready, if there was a hold."""
        if self.holds:
            self.holds = False
            self.add(())

    def add(self, claimed: Iterable[Held], *, first: bool = False) -> None:
        """Queue what was claimed and wake a lane; it wakes the next if its job waits. At once, where jobs do wait.

        ``first``: before whatever else is ready.
        """
        if first:
            self.ready.extendleft(claimed)
        else:
            self.ready.extend(claimed)
        if not self._breathing:
            for _ in range(len(self.ready) if self._waiting else 1):
                self._wake()

    def stop(self, held: Held, why: Stop) -> None:
        """Tell a running handler to stop, once. The first reason stands, but a lost lease outdoes the others."""
        slot = next((slot for slot in self._executor if slot.held is held), None)
        if slot is None or slot.task is None or not (slot.stop is None or why is Stop.LOST):
            return
        first, slot.stop = slot.stop is None, why
        if held.attempt is not None:
            control_of(held.attempt).lost = why is Stop.LOST
            held.attempt.cancel(why.value)
        if first:
            held.stopped_at = self._clock.monotonic()
            slot.task.cancel()

    def stop_all(self, why: Stop) -> None:
        """Tell every running handler to stop."""
        for slot in self._executor:
            if slot.held is not None:
                self.stop(slot.held, why)

    # -- one lane --------------------------------------------------------------------------------

    def _wake(self) -> None:
        while self._idle:
            sleeper = self._idle.pop()
            if not sleeper.done():
                sleeper.set_result(None)
                return
        if self._unborn and self._crashed is not None:
            slot = self._unborn.pop()
            slot.task = asyncio.get_running_loop().create_task(self._run(slot), name="stowhand lane")
            slot.task.add_done_callback(self._lane_ended)

    def _lane_ended(self, task: asyncio.Task[None]) -> None:
        """Only ``close`` ends lanes. One that ended by itself would be a slot lost in silence."""
        error = None if task.cancelled() else task.exception()
        if self._crashed is not None:
            self._crashed(error or RuntimeError("a lane of the worker was cancelled by somebody else's code"))

    async def _run(self, slot: Slot) -> None:
        while True:
            while self.ready and not self.holds:
                held = self.ready.popleft()
                if len(self.ready) == self.low_water:
                    self.starved()
                    self._breath = LONG_AGO  # the taker's turn comes at once, so that the next jobs are here in time
                if self._leases.start(held):
                    rest = self._begin(slot, held)
                    if rest is not None:
                        await rest
                if slot.waited:
                    self._breath = self._clock.monotonic()
                elif self._clock.monotonic() - self._breath > BREATH:
                    if self._breathing:
                        break  # that lane goes on with the rest: one after the other, all would take the loop's turn
                    await self._breathe()
            if self._crashed is None:
                return  # a handler swallowed the cancellation that was to end its lane, and has ended late
            sleeper = asyncio.get_running_loop().create_future()
            self._idle.append(sleeper)
            self.starved()
            await sleeper
            self._breath = self._clock.monotonic()

    async def _breathe(self) -> None:
        self._breathing = True
        await self._clock.sleep(0)
        self._breathing = False
        self._breath = self._clock.monotonic()

    def _begin(self, slot: Slot, held: Held) -> Coroutine[Any, Any, None] | None:
        """Run the handler up to its first wait; the rest is to be awaited. ``None``: it never waited, and is over."""
        attempt: Attempt[Any] = Attempt(held.claim, self._clock.monotonic(), self._logger_of)
        held.attempt = attempt
        slot.held, slot.stop, slot.waited = held, None, False
        self.running += 1
        self._ending.started(held)
        context = contextvars.copy_context()
        outcome: Outcome | None
        self.driving = held
        try:
            if held.suspect and self._isolate is not None:
                coroutine = context.run(self._isolate, attempt)
            else:
                coroutine = context.run(self._handle, attempt, held.claim.record)
            waits_for = context.run(coroutine.send, None)
        except StopIteration as end:
            outcome = from_returned(end.value)
        except BaseException as error:  # noqa: BLE001 - boundary: whatever it is, it ends this attempt, not the process
            outcome = self._raised(slot, attempt, error)
        else:
            return self._go_on(slot, held, self._drive(slot, held, context, coroutine, waits_for))
        finally:
            self.driving = None
        if slot.task is not None and slot.task.cancelling():
            return self._forgive(slot, held, outcome)
        self._leave(slot, held)
        self._end(slot, held, outcome)
        return None

    async def _go_on(self, slot: Slot, held: Held, rest: Awaitable[object]) -> None:
        """Await the handler. Whatever it returns or raises becomes an outcome; nothing escapes but our own end."""
        assert held.attempt is not None
        outcome: Outcome | None
        try:
            outcome = from_returned(await rest)
        except BaseException as error:  # boundary: SystemExit and its like end this attempt, not the process
            if self._crashed is None:
                self._leave(slot, held)
                raise  # the lane itself is being ended
            outcome = self._raised(slot, held.attempt, error)
        await self._forgive(slot, held, outcome)

    async def _forgive(self, slot: Slot, held: Held, outcome: Outcome | None) -> None:
        """A cancellation was meant for the job, or the handler's own doing: the lane's next job has no part in it."""
        try:
            if slot.task is not None and slot.task.cancelling():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # one that is still on its way arrives here
                while slot.task.cancelling():
                    slot.task.uncancel()
        finally:
            self._leave(slot, held)
        self._end(slot, held, outcome)

    def _leave(self, slot: Slot, held: Held) -> None:
        """The slot is free again."""
        assert held.attempt is not None
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        slot.held = None
        self._waiting = slot.waited
        self.running -= 1
        self.ended += 1
        held.seconds = self._clock.monotonic() - held.attempt.started
        self.worked += held.seconds
        self._ending.left(held)

    def _end(self, slot: Slot, held: Held, outcome: Outcome | None) -> None:
        if self._crashed is not None:
            self._leases.end(held)
            # Told to stop, and ended well all the same: its result counts, unless the lease is gone.
            self._ending.ended(held, None if slot.stop is Stop.LOST else outcome, slot.stop)

    def _raised(self, slot: Slot, attempt: Attempt[Any], error: BaseException) -> Outcome | None:
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
        """Await the rest of the handler in the lane's task, under its own context, and see each of its steps."""
        slot.waited = self._waiting = True
        self._waits(slot, held)
        advance: Callable[[Any], Any]
        given: Any
        while True:
            try:
                given = yield waits_for
                advance = coroutine.send
            except BaseException as error:  # noqa: BLE001 - passed on to the handler
                advance, given = coroutine.throw, error
            self.driving = held
            try:
                waits_for = context.run(advance, given)
            except StopIteration as end:
                return end.value
            finally:
                self.driving = given = None

    def _waits(self, slot: Slot, held: Held) -> None:
        """A handler waits for the first time: from here on it needs a timer, and the next job another lane."""
        if self.ready:
            self._wake()
        timeout = self._timeout_of(held.claim)
        if timeout is not None:
            assert held.attempt is not None
            spent = self._clock.monotonic() - held.attempt.started
            slot.timer_seconds = timeout
            slot.timer = self._clock.call_later(max(timeout - spent, 0), lambda: self.stop(held, Stop.TIMEOUT))
