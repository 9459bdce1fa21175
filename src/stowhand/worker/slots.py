"""Where handlers run: slots, each a long-lived task that runs one job after another.

A handler runs *inside* its slot's task, so one that finishes without really waiting costs no task switch, no timer and
no task of its own; ``asyncio.timeout`` and task groups inside it work as everywhere, because the slot's task is the
current one. Only its context variables are its own. When a handler does wait, the next slot is woken for the next job.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from typing import Any

from stowhand.errors import StowhandError
from stowhand.jobs.outcomes import COMPLETED_WITHOUT_RESULT, from_returned
from stowhand.protocols.attempt import Stop
from stowhand.worker.executor import Executor
from stowhand.worker.leases import HeldJob, Leases
from stowhand.worker.policy import HandlerEnd
from stowhand.worker.state import WorkerState

YIELD_INTERVAL_SECONDS = 0.005
"""Seconds of jobs that never wait, after which the event loop gets a turn."""
LONG_AGO = float("-inf")


class Slot:
    """A task of the event loop, and the job that runs in it."""

    __slots__ = ("has_waited", "job", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.job: HeldJob | None = None
        self.has_waited = False
        """Its last handler really waited, so the event loop has had a turn since."""


class Slots:
    """The slots of one worker, and the jobs that wait for one. The executor knows what an attempt is."""

    def __init__(
        self,
        executor: Executor,
        leases: Leases,
        state: WorkerState,
        *,
        keeps_slot: bool = False,
    ) -> None:
        """``keeps_slot``: the slot of a suspect stays free after it, for the claimer to fill with the next suspect."""
        self._executor = executor
        self._keeps_slot = keeps_slot
        self._leases = leases
        self._state = state
        self._supervisor = state.supervisor
        self._clock = state.clock
        self._slots = [Slot() for _ in range(state.options.concurrency)]
        self._idle: list[asyncio.Future[None]] = []
        self._unstarted = list(reversed(self._slots))
        """They get their tasks as they are first needed."""
        self._last_turn = LONG_AGO
        """When the event loop last had a turn between two jobs."""
        self._last_end = LONG_AGO
        """When a handler last ended."""
        self._is_yielding = False
        self._last_has_waited = False
        """The last handler seen really waited: the next ones will need a slot each."""
        self._ready = state.ready
        self.is_on_hold = False
        """A slot that becomes free stays free, for the claimer to fill."""
        self._low_water = 0

    async def close(self) -> None:
        """After the supervisor: end every slot's task. A handler that ignores it is left behind: stopping is always
        bounded."""
        tasks = [(slot.task, slot.job) for slot in self._slots if slot.task is not None]
        for task, _ in tasks:
            task.cancel()
        await asyncio.gather(*(task for task, job in tasks if job is None), return_exceptions=True)

    def refill_at(self, low_water: int) -> None:
        """Signal a change when so few are ready."""
        self._low_water = low_water

    def hold(self) -> None:
        """Start nothing more until ``resume``."""
        self.is_on_hold = True

    def resume(self) -> None:
        """Start what is ready, if there was a hold."""
        if self.is_on_hold:
            self.is_on_hold = False
            self.add(())

    def add(self, claimed: Iterable[HeldJob], *, first: bool = False) -> None:
        """Queue what was claimed and wake a slot, which wakes the next if its job waits. Where jobs do wait, wake all.

        ``first``: before everything else that is ready.
        """
        if first:
            self._ready.extendleft(claimed)
        else:
            self._ready.extend(claimed)
        if not self._is_yielding:
            for _ in range(len(self._ready) if self._last_has_waited else 1):
                self._wake()

    def stop_all(self, reason: Stop) -> None:
        """Stop every running handler."""
        for slot in self._slots:
            if slot.job is not None and not self._is_cancelled_with_run(slot):
                self._leases.stop(slot.job, reason)

    def _is_cancelled_with_run(self, slot: Slot) -> bool:
        """Its task was cancelled along with the one that runs the worker: the event loop is about to end."""
        return self._supervisor.is_cancelled and slot.task is not None and slot.task.cancelling() > 0

    # -- one slot --------------------------------------------------------------------------------

    def _wake(self) -> None:
        while self._idle:
            sleeper = self._idle.pop()
            if not sleeper.done():
                sleeper.set_result(None)
                return
        if self._unstarted and not self._supervisor.is_closed:
            slot = self._unstarted.pop()
            slot.task = asyncio.get_running_loop().create_task(self._run(slot), name="stowhand slot")
            slot.task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Only ``close`` ends a slot's task. One that ended by itself would be a slot lost in silence."""
        error = None if task.cancelled() else task.exception()
        if self._supervisor.is_closed or (error is None and self._supervisor.is_cancelled):
            return
        cancelled = StowhandError("code outside the worker cancelled a task in which it runs jobs; it stops")
        self._supervisor.report(error or cancelled)

    async def _run(self, slot: Slot) -> None:
        while True:
            while self._ready and not self.is_on_hold:
                job = self._ready.popleft()
                if len(self._ready) == self._low_water:
                    self._state.look_again()
                    self._last_turn = LONG_AGO  # the claimer gets its turn now, so that the next jobs come in time
                if self._leases.start(job):
                    remainder = self._start(slot, job)
                    if remainder is not None:
                        await remainder
                if slot.has_waited:
                    self._last_turn = self._clock.monotonic()
                elif self._last_end - self._last_turn > YIELD_INTERVAL_SECONDS:
                    if self._is_yielding:
                        break  # the slot that yields runs the rest: one after the other, all would take the loop's turn
                    self._is_yielding = True
                    await asyncio.sleep(0)
                    self._is_yielding = False
                    self._last_turn = self._clock.monotonic()
            if self._supervisor.is_closed:
                return  # a handler swallowed the cancellation that was to end its slot, and has ended late
            sleeper = asyncio.get_running_loop().create_future()
            self._idle.append(sleeper)
            self._state.look_again()
            await sleeper
            self._last_turn = self._clock.monotonic()

    def _start(self, slot: Slot, job: HeldJob) -> Coroutine[Any, Any, None] | None:
        """Run the handler up to its first wait; the rest is to be awaited. ``None``: it never waited, and is over."""
        job.task = slot.task
        slot.job = job
        slot.has_waited = False
        self._state.running.add(job)
        end: HandlerEnd
        self._state.executing = job
        try:
            coroutine = self._executor.start(job)
            context = contextvars.copy_context()
            waits_for = context.run(coroutine.send, None)
        except StopIteration as stop:
            end = COMPLETED_WITHOUT_RESULT if stop.value is None else from_returned(stop.value)
        except BaseException as error:  # noqa: BLE001 - boundary: whatever it is, it ends this attempt, not the process
            end = self._executor.end_of(error, job)
        else:
            return self._finish(slot, job, self._drive(slot, job, context, coroutine, waits_for))
        finally:
            self._state.executing = None
        if slot.task is not None and slot.task.cancelling():
            return self._end_uncancelled(slot, job, end)
        self._free(slot, job)
        self._executor.on_end(job, end)
        return None

    async def _finish(self, slot: Slot, job: HeldJob, remainder: Awaitable[object]) -> None:
        """Await the handler. Whatever it returns or raises is its end; only the end of the slot is raised."""
        end: HandlerEnd
        try:
            end = from_returned(await remainder)
        except BaseException as error:  # boundary: SystemExit and its like end this attempt, not the process
            if self._supervisor.is_closed:
                self._free(slot, job)
                self._executor.on_end(job, Stop.RETURNED)
                raise  # the slot itself is being ended
            is_returned = isinstance(error, asyncio.CancelledError) and self._is_cancelled_with_run(slot)
            end = Stop.RETURNED if is_returned else self._executor.end_of(error, job)
        await self._end_uncancelled(slot, job, end)

    async def _end_uncancelled(self, slot: Slot, job: HeldJob, end: HandlerEnd) -> None:
        """Undo a cancellation that was meant for this job, or was the handler's own: the next job must not see it."""
        try:
            if slot.task is not None and slot.task.cancelling():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # one that is still on its way arrives here
                while slot.task.cancelling():
                    slot.task.uncancel()
        finally:
            self._free(slot, job)
        self._executor.on_end(job, end)

    def _free(self, slot: Slot, job: HeldJob) -> None:
        """The slot is free again."""
        assert job.attempt is not None
        slot.job = None
        job.task = None
        self._last_has_waited = slot.has_waited
        self._last_end = self._clock.monotonic()
        job.seconds = self._last_end - job.attempt.started
        self._state.end_handler(job)
        if job.is_suspect and self._keeps_slot:
            self.hold()

    @types.coroutine
    def _drive(
        self,
        slot: Slot,
        job: HeldJob,
        context: contextvars.Context,
        coroutine: Coroutine[Any, Any, object],
        waits_for: object,
    ) -> Generator[Any, Any, object]:
        """Await the rest of the handler in the slot's task, under its own context, and note when it executes."""
        slot.has_waited = True
        self._last_has_waited = True
        if self._ready:
            self._wake()
        self._executor.on_first_wait(job)
        advance: Callable[[Any], Any]
        sent_value: Any
        while True:
            try:
                sent_value = yield waits_for
                advance = coroutine.send
            except BaseException as error:  # noqa: BLE001 - passed on to the handler
                advance = coroutine.throw
                sent_value = error
            self._state.executing = job
            try:
                waits_for = context.run(advance, sent_value)
            except StopIteration as end:
                return end.value
            finally:
                self._state.executing = None
                sent_value = None  # no reference cycle through an exception
