"""The life of a job, top to bottom.

A worker is a generic process configured with a Store (where jobs are kept) and a Handler (what to do with one):

    wake     learn that there may be work (claims.py)
    claim    at most the free slots, and a little ahead in proportion to the measured rate (claimer.py)
    run      the handler in a slot (slots.py, executor.py): what it returns or raises is an Outcome (jobs/outcomes.py)
    settle   judge the outcome (policy.py, jobs/lifecycle.py); record all that have piled up in one call (settler.py)
    beat     meanwhile, from another thread, renew the leases (heartbeater.py, leases.py)
    stop     claim nothing new; give running jobs their grace; return the rest without using an attempt; always bounded

Its parts know each other by their constructors. What all of them share is in state.py: what the worker is to do, what
it has in hand, its tasks with their errors, and the signal that one of them waits for.

Everything here is free of policy: states are decided in jobs/lifecycle.py, delays in retry.py, storage in stores/, and
what is printed in observe/.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError
from stowhand.events import Events, LeaseExpiring, WorkerQuietChanged, WorkerStarted, WorkerStopped, WorkerStopping
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt import Stop
from stowhand.protocols.handler import Function, Handler, handler_of
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Store, check_made, heartbeats_of
from stowhand.protocols.throughput import ThroughputKeeper
from stowhand.worker.admission import Admission
from stowhand.worker.claimer import Claimer, ClaimSize, SuspectSchedule
from stowhand.worker.claims import Claims, SuccessorClaims, Wakeups
from stowhand.worker.executor import Executor
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.hooks import Hooks, OpenResources
from stowhand.worker.host import Host, LoopLiveness, WorkerControls, inside_a_worker, log_by_default
from stowhand.worker.leases import Leases, Phase
from stowhand.worker.limits import Limits
from stowhand.worker.policy import HandlerPolicies, Policy
from stowhand.worker.program_groups import PROGRAM_GROUPS
from stowhand.worker.reports import ThroughputCounter, uncounted
from stowhand.worker.settler import Settler
from stowhand.worker.slots import Slots
from stowhand.worker.state import WorkerState
from stowhand.worker.watchdog import LoopWatchdog

R = TypeVar("R")
LAST_CLAIM_TIMEOUT_SECONDS = 5.0
"""Seconds that a claim on its way may take when the worker stops, so that its jobs can be returned."""


def new_identity() -> str:
    """Host, pid and a random boot id: nothing is ever keyed by the host name."""
    return f"worker-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


class Worker:
    """A worker on one store. ``run()`` works until ``stop()``, or, with ``once``, until nothing is due."""

    def __init__(
        self,
        store: Store[R],
        handler: Handler[R] | Function[R],
        options: WorkerOptions | None = None,
        *,
        clock: Clock | None = None,
        events: Events | None = None,
        host: Host | None = None,
    ) -> None:
        """``host``: of a process of this package's own."""
        check_made(store, options, WorkerOptions)
        self._requested_options = options = options or WorkerOptions()
        self._handler = handler_of(handler)
        self._host = host or Host()
        self._logs_by_default = events is None
        self.events = events if events is not None else Events()
        self.id = options.name or new_identity()
        self._store = store
        self._clock = clock or SystemClock()
        self._claiming: asyncio.Task[None] | None = None
        self._state = WorkerState(
            self.id,
            options,
            self.events,
            self._clock,
            self._host.timings,
            handler=self._handler,
            on_crash=partial(self.stop, now=True),
        )
        if not (self._state.queues.are_all or store.capabilities.has_queues):
            raise ConfigurationError(
                "queues, exclude_queues: given for a store whose records are in no queue; leave them out"
            )
        self._liveness = LoopLiveness(self._clock)
        self._terms = store.terms
        self._make_parts()

    def _make_parts(self) -> None:
        """Each part of those above it. Raises ConfigurationError where the options contradict the store's terms."""
        store, handler, host, state, terms = self._store, self._handler, self._host, self._state, self._terms
        self.options = options = self._requested_options.under(terms)
        state.set_options(options)
        backoff = options.backoff if terms is None or terms.backoff is None else terms.backoff
        policies = HandlerPolicies(handler, Policy(timeout=options.timeout, backoff=backoff), self.events)
        hooks = Hooks(handler, store, host.isolate, state)
        self._limits = limits = Limits(host, state)

        heartbeats = heartbeats_of(store)
        self._leases = leases = Leases(state)
        self._watchdog = watchdog = LoopWatchdog(policies, host.on_hang, state)
        counter = ThroughputCounter(self._clock.monotonic)
        count = counter.count if isinstance(heartbeats, ThroughputKeeper) else uncounted
        self._heartbeater = heartbeater = Heartbeater(heartbeats, leases, watchdog, counter, limits, state)

        self._settler = settler = Settler(store, leases, policies, count, state)
        self._executor = executor = Executor(hooks, policies, leases, settler, heartbeater, limits, state)
        keeps_slot = host.isolate is not None and options.concurrency > 1
        self._slots = slots = Slots(executor, leases, state, keeps_slot=keeps_slot)

        admission = Admission(handler, state)
        claim_size = ClaimSize(slots, settler, hooks, limits, state, one_by_one=admission.one_by_one)
        claims = Claims(store, leases, heartbeater, state)
        suspects = SuspectSchedule(state, can_isolate=host.isolate is not None)
        self._claimer = claimer = Claimer(admission, claim_size, claims, suspects, slots, limits, state)
        chain = store.capabilities.settle_and_claim
        if admission.one_by_one or hooks.holds_slots or options.fair:
            chain = None  # code of the application's decides on each claim, or tasks take turns
        successors = None if chain is None else SuccessorClaims(chain, claimer, claims, leases, heartbeater, state)
        self._settling = partial(settler.run, successors)
        self._wakeups = Wakeups(store, heartbeater, state)

        task_resources = getattr(handler, "resources", None)
        self._resources = resources = None if task_resources is None else OpenResources(task_resources, watchdog, state)
        heartbeat_moved_at = (
            (lambda: heartbeater.ticked) if resources is None else lambda: max(heartbeater.ticked, resources.moved_at)
        )
        calls = {"claiming": claims.call, "settling": settler.call, "waking": self._wakeups.call}
        moved_at_by_loop = {"loop": lambda: watchdog.last_alive, "heartbeat": heartbeat_moved_at}
        self._liveness.bind(moved_at_by_loop, calls, watchdog.lag, heartbeater.refused_since, limits.unready)
        self.controls = WorkerControls(
            self._liveness, self._quiet, state.set_tasks, leases.list_all, settler.give_up, limits.renewal_reason
        )

    # -- run and stop ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until stopped. When it returns, nothing is in processing under this worker but ``unfinished``.

        Raises what broke one of its own loops (a bug here or in a store), after stopping in order. Cancelled, it first
        returns all its jobs, which takes some seconds at most.
        """
        if self._logs_by_default:
            log_by_default(self.events)
        await self._validate()
        self._state.open()
        if self._resources is None:
            await self._work()
        else:
            try:
                await self._resources.open()
                await self._work()
            finally:
                await self._resources.close()
        self.events.emit(WorkerStopped(self.id, len(self.unfinished)))
        if self._state.supervisor.crash is not None:
            raise self._state.supervisor.crash

    async def _work(self) -> None:
        """Work until stopped, and until nothing is left to record or return."""
        supervisor = self._state.supervisor
        self._heartbeater.start()
        self.events.emit(WorkerStarted(self.id, self.options.tasks, self._state.queues))
        try:
            with inside_a_worker():
                async with asyncio.TaskGroup() as group:
                    watch = supervisor.watch
                    claiming = self._claiming = group.create_task(watch(self._claimer.run))
                    loops = (self._settling, self._wakeups.run, self._guard)
                    others = [group.create_task(watch(loop)) for loop in loops]
                    self._limits.start()
                    try:
                        await asyncio.wait([claiming])
                    except asyncio.CancelledError:
                        self.stop(now=True)
                        raise
                    finally:
                        try:
                            await self._finish(claiming)
                        finally:
                            supervisor.finish()
                            for other in others:
                                other.cancel()
        finally:
            self._settler.give_up()
            await self._close()

    async def _validate(self) -> None:
        """Let the store check that it can be worked on. Its terms are read again: they may have changed since."""
        if self._store.enclosing is not None:
            await self._store.enclosing.validate(self.events)
        terms = self._store.terms
        if terms != self._terms:
            self._terms = terms
            await self._heartbeater.close()
            self._make_parts()

    async def _guard(self) -> None:
        """Stop handlers whose lease may be given away; show the watchdog that the loop runs."""
        while True:
            self._watchdog.mark_alive()
            self._limits.check()
            for job in self._leases.expired(self._clock.monotonic()):
                if job.phase is Phase.RUNNING:
                    self.events.emit(LeaseExpiring(self.id, job.claim.lease, job.claim.task))
                self._leases.lose(job)
            await self._clock.sleep(self._watchdog.interval)

    def stop(self, *, now: bool = False) -> None:
        """Claim nothing new and let running jobs end within the grace; ``now``: return them at once.

        What is returned has not used an attempt. Harmless when repeated. On the worker's own loop; from elsewhere
        through ``call_soon_threadsafe``.
        """
        state = self._state
        first = not state.is_stopping
        if first or (now and not state.skips_grace):
            self.events.emit(WorkerStopping(self.id, self.running, now))
        state.stop(skips_grace=now)
        if first:
            self._return_unstarted()
            if self._claiming is not None:
                self._clock.call_later(LAST_CLAIM_TIMEOUT_SECONDS, self._cancel_claim)

    def wake(self) -> None:
        """Look for jobs now instead of at the next poll: flags are allowed again. On the worker's own loop."""
        self._state.wake()

    @property
    def running(self) -> int:
        """Number of handlers at work."""
        return len(self._state.running)

    @property
    def unfinished(self) -> list[Lease]:
        """Leases of handlers that could not be ended, after ``run()``. Release them only as the last write."""
        return self._executor.unfinished

    def _quiet(self, is_quiet: bool) -> None:
        if is_quiet == self._state.is_quiet or self._state.is_stopping:
            return
        self.events.emit(WorkerQuietChanged(self.id, self.running, is_quiet))
        self._state.set_quiet(on=is_quiet)
        self._slots.resume()  # no slot is kept free for a suspect that will not be claimed
        if is_quiet:
            self._return_unstarted()

    def _cancel_claim(self) -> None:
        assert self._claiming is not None
        self._claiming.cancel()

    # -- the end ---------------------------------------------------------------------------------

    async def _finish(self, claiming: asyncio.Task[None]) -> None:
        """Return what has not started, let the rest end within the grace, then return that too."""
        state, clock, heartbeater = self._state, self._clock, self._heartbeater
        timings = self._host.timings
        await asyncio.wait([claiming])
        self._limits.check()
        self._return_unstarted()
        state.stop(skips_grace=False)
        grace_ends = state.stopped_at + self.options.grace
        await self._until(lambda: state.skips_grace or not state.has_busy_slots, grace_ends)
        last = clock.monotonic() + timings.last_pause
        self._slots.stop_all(Stop.RETURNED)
        await self._until(lambda: not state.running, last - timings.last_calls)
        self.unfinished.extend(job.claim.lease for job in self._leases.all() if job.phase is Phase.RUNNING)
        heartbeater.tick_now()
        await self._until(lambda: not (state.is_unrecorded or state.pending_calls), last)
        deregister_by = min(clock.monotonic() + heartbeater.deregister(), last)
        heartbeater.tick_now()
        await self._until(lambda: not heartbeater.is_deregistering, deregister_by)

    async def _close(self) -> None:
        """End tasks, thread and guardian, however often this is cancelled: no end waits behind another's await."""
        try:
            await self._state.supervisor.close()
        finally:
            try:
                await self._slots.close()
            finally:
                self._heartbeater.stop()  # not before: what the slots give back is still written
                PROGRAM_GROUPS.dismiss()
                try:
                    await self._heartbeater.close()
                except Exception as error:  # noqa: BLE001 - boundary: the end of the thread
                    self._state.supervisor.report(error)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        await self._state.until(condition, deadline - self._clock.monotonic())

    def _return_unstarted(self) -> None:
        unstarted = self._leases.take_unstarted(float("inf"))
        self._heartbeater.return_jobs(unstarted, "the worker stopped before it was started")
        self._heartbeater.tick_now()
