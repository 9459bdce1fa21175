"""Slots, in which handlers run: each is a long-lived task that runs one job after another.

A handler runs *inside* its slot's task. One that finishes without really waiting costs no task switch, no timer and no
task. ``asyncio.timeout`` and task groups work as usual, because the slot's task is the current one. Only the context
variables are the handler's own. When a handler does wait, the next slot is woken for the next job.
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
"""Run time of jobs that never wait after which the event loop gets a turn."""
LONG_AGO = float("-inf")


class Slot:
    """Task of the event loop, and the job that runs in it."""

    __slots__ = ("has_waited", "job", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.job: HeldJob | None = None
        self.has_waited = False
        """Whether its last handler really waited, so that the event loop has had a turn."""


class Slots:
    """Slots of one worker, and the jobs that wait for one. The executor performs the steps of an attempt."""

    def __init__(
        self,
        executor: Executor,
        leases: Leases,
        state: WorkerState,
        *,
        keeps_slot: bool = False,
    ) -> None:
        """``keeps_slot``: after a suspect its slot stays free, and the claimer fills it with the next suspect."""
        self._executor = executor
        self._keeps_slot = keeps_slot
        self._leases = leases
        self._state = state
        self._supervisor = state.supervisor
        self._clock = state.clock
        self._slots = [Slot() for _ in range(state.options.concurrency)]
        self._idle: list[asyncio.Future[None]] = []
        self._unstarted = list(reversed(self._slots))
        """Slots without a task yet; it is created at the first use."""
        self._last_turn = LONG_AGO
        """When the event loop last had a turn between jobs."""
        self._last_end = LONG_AGO
        """When a handler last ended."""
        self._is_yielding = False
        self._last_has_waited = False
        """Whether the last handler really waited: then the next jobs need a slot each."""
        self._ready = state.ready
        self.is_on_hold = False
        """Whether a free slot stays free until the claimer fills it."""
        self._low_water = 0

    async def close(self) -> None:
        """End every slot's task, after the supervisor was closed. Do not wait for handlers that ignore it."""
        tasks = [(slot.task, slot.job) for slot in self._slots if slot.task is not None]
        for task, _ in tasks:
            task.cancel()
        await asyncio.gather(*(task for task, job in tasks if job is None), return_exceptions=True)

    def refill_at(self, low_water: int) -> None:
        """Signal a change when the number of ready jobs falls to this value."""
        self._low_water = low_water

    def hold(self) -> None:
        """Start no job until ``resume``."""
        self.is_on_hold = True

    def resume(self) -> None:
        """End a hold, and start the ready jobs."""
        if self.is_on_hold:
            self.is_on_hold = False
            self.add(())

    def add(self, claimed: Iterable[HeldJob], *, first: bool = False) -> None:
        """Queue claimed jobs and wake a slot, which wakes the next one if its job waits.

        If the last handler waited, wake a slot for each job. ``first``: queue them before all other ready jobs.
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
        """Return whether the event loop is ending: it has cancelled this task and the one that runs the worker."""
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
        """Report a task that ended by itself. Only ``close`` may end one, or a slot would be lost silently."""
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
                    self._state.notify_change()
                    self._last_turn = LONG_AGO  # give the claimer a turn now, so that the next jobs arrive in time
                if self._leases.start(job):
                    remainder = self._start(slot, job)
                    if remainder is not None:
                        await remainder
                if slot.has_waited:
                    self._last_turn = self._clock.monotonic()
                elif self._last_end - self._last_turn > YIELD_INTERVAL_SECONDS:
                    if self._is_yielding:
                        break  # the slot that yields will run the rest; otherwise all would yield in turn
                    self._is_yielding = True
                    await asyncio.sleep(0)
                    self._is_yielding = False
                    self._last_turn = self._clock.monotonic()
            if self._supervisor.is_closed:
                return  # a handler swallowed the cancellation of its slot and ended late
            sleeper = asyncio.get_running_loop().create_future()
            self._idle.append(sleeper)
            self._state.notify_change()
            await sleeper
            self._last_turn = self._clock.monotonic()

    def _start(self, slot: Slot, job: HeldJob) -> Coroutine[Any, Any, None] | None:
        """Run the handler up to its first wait. Return the rest to await; ``None`` if it has ended already."""
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
        except BaseException as error:  # noqa: BLE001 - boundary: any error ends this attempt, not the process
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
        """Await the handler. Its result or error ends the attempt; only the cancellation of the slot is raised."""
        end: HandlerEnd
        try:
            end = from_returned(await remainder)
        except BaseException as error:  # boundary: even SystemExit ends this attempt, not the process
            if self._supervisor.is_closed:
                self._free(slot, job)
                self._executor.on_end(job, Stop.RETURNED)
                raise  # the slot itself is being cancelled
            is_returned = isinstance(error, asyncio.CancelledError) and self._is_cancelled_with_run(slot)
            end = Stop.RETURNED if is_returned else self._executor.end_of(error, job)
        await self._end_uncancelled(slot, job, end)

    async def _end_uncancelled(self, slot: Slot, job: HeldJob, end: HandlerEnd) -> None:
        """Undo a cancellation of this job, by the worker or by the handler itself: the next job must not see it."""
        try:
            if slot.task is not None and slot.task.cancelling():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # a pending cancellation arrives here
                while slot.task.cancelling():
                    slot.task.uncancel()
        finally:
            self._free(slot, job)
        self._executor.on_end(job, end)

    def _free(self, slot: Slot, job: HeldJob) -> None:
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
        """Await the rest of the handler in the slot's task and its own context, and note when it executes."""
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
