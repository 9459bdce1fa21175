"""The worker: claims jobs from a store, runs a handler for each, and records the outcomes.

A worker is configured with a Store, which keeps the jobs, and a Handler, which runs them. The life of a job:

    wake     wait for a notification that the store may have work (claims.py)
    claim    claim enough jobs for the free slots, and a few more if jobs finish fast (claimer.py)
    run      run the handler in a slot (slots.py, executor.py); its result becomes an Outcome (jobs/outcomes.py)
    settle   derive the next state (policy.py, jobs/lifecycle.py); record all pending settlements at once (settler.py)
    beat     renew the leases from another thread while handlers run (heartbeater.py, leases.py)
    stop     claim nothing new; wait for running jobs until the grace is over; return the others to the queue

Each part receives the parts it uses in its constructor. All of them share one WorkerState (state.py): the tasks to
claim, the jobs in hand, the errors of the worker's own loops, and the signal that something has changed.

The worker makes no decisions of its own. jobs/lifecycle.py decides states, retry.py delays, stores/ how jobs are
stored, and observe/ what is logged.
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
from stowhand.jobs.task_limits import OTHER_LIMITS
from stowhand.protocols.attempt import Stop
from stowhand.protocols.handler import Function, Handler, handler_of
from stowhand.protocols.operator import WorkerList
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Heartbeats, Store, check_arguments, heartbeats_of
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
"""Time for which a stopping worker waits for the reply to a claim, so that its jobs can be returned."""


def new_identity() -> str:
    """Return a new worker name. Its random part makes it unique: hosts and process ids repeat."""
    return f"worker-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


class Worker:
    """A worker on one store. ``run()`` returns after ``stop()``, or, with ``once``, when no job is due."""

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
        """Create a worker.

        Args:
            store: Keeps the jobs.
            handler: Runs them: an object with ``handle(ctx, record)``, or a function.
            options: Options of the worker.
            clock: Time source; tests pass their own.
            events: Receives the worker's events. Without it the worker writes log lines.
            host: What the surrounding process provides. Only this package's own processes pass it.

        Raises:
            ConfigurationError: The options contradict each other, or the store.

        """
        check_arguments(store, options, WorkerOptions)
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
            raise ConfigurationError("queues, exclude_queues: this store has no queues; leave them out")
        self._liveness = LoopLiveness(self._clock)
        self._terms = store.terms
        self._make_parts()

    def _make_parts(self) -> None:
        """Create the parts. Raises ConfigurationError if the options contradict the store's terms."""
        store, handler, host, state, terms = self._store, self._handler, self._host, self._state, self._terms
        self.options = options = self._requested_options.under(terms)
        state.set_options(options)
        backoff = options.backoff if terms is None or terms.backoff is None else terms.backoff
        policies = HandlerPolicies(handler, Policy(timeout=options.timeout, backoff=backoff), self.events)
        hooks = Hooks(handler, store, host.isolate, state)
        self._limits = limits = Limits(host, state)

        heartbeats = heartbeats_of(store)
        _refuse_limits(state, heartbeats)
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
        claim_size = ClaimSize(slots, settler, hooks, limits, state, claims_singly=admission.claims_singly)
        claims = Claims(store, leases, heartbeater, state)
        suspects = SuspectSchedule(state, can_isolate=host.isolate is not None)
        self._claimer = claimer = Claimer(admission, claim_size, claims, suspects, slots, limits, state)
        chain = store.capabilities.settle_and_claim
        if admission.claims_singly or hooks.holds_slots or options.fair or state.limits_per_worker:
            chain = None  # application code or this worker decides on each claim, or tasks take turns
        successors = None if chain is None else SuccessorClaims(chain, claimer, claims, leases, heartbeater, state)
        self._settling = partial(settler.run, successors)
        self._wakeups = Wakeups(store, heartbeater, state)

        task_resources = getattr(handler, "resources", None)
        self._resources = resources = None if task_resources is None else OpenResources(task_resources, watchdog, state)

        def heartbeat_moved_at() -> float:
            return heartbeater.ticked_at if resources is None else max(heartbeater.ticked_at, resources.moved_at)

        calls = {"claiming": claims.call, "settling": settler.call, "waking": self._wakeups.call}
        moved_at_by_loop = {"loop": lambda: watchdog.last_alive, "heartbeat": heartbeat_moved_at}
        self._liveness.bind(moved_at_by_loop, calls, watchdog.lag, heartbeater.refused_since, limits.unready)
        actions = (self._quiet, state.set_tasks, leases.list_all, settler.report_unrecorded)
        self.controls = WorkerControls(self._liveness, *actions, limits.renewal_reason)

    # -- run and stop ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until stopped. Afterwards this worker holds no leases except those in ``unfinished``.

        An error in one of the worker's own loops (a bug here or in a store) stops the worker in order, and is then
        raised. When cancelled, it first returns its jobs to the queue, which takes a few seconds at most.
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
        """Run the loops until the worker is stopped and nothing is left to record or return."""
        supervisor = self._state.supervisor
        self._heartbeater.start()
        self.events.emit(WorkerStarted(self.id, self.options.tasks, self._state.queues))
        try:
            with inside_a_worker():
                async with asyncio.TaskGroup() as group:
                    watch = supervisor.watch
                    claiming = self._claiming = group.create_task(watch(self._claimer.run))
                    loops = (self._settling, self._wakeups.run, self._guard)
                    loop_tasks = [group.create_task(watch(loop)) for loop in loops]
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
                            for task in loop_tasks:
                                task.cancel()
        finally:
            self._settler.report_unrecorded()
            await self._close()

    async def _validate(self) -> None:
        """Let the store validate itself. Make the parts again if its terms have changed meanwhile."""
        if self._store.enclosing is not None:
            await self._store.enclosing.validate(self.events)
        terms = self._store.terms
        if terms != self._terms:
            self._terms = terms
            await self._heartbeater.close()
            self._make_parts()

    async def _guard(self) -> None:
        """Show the watchdog that the loop runs, and stop handlers whose leases have expired, several times a second."""
        while True:
            self._watchdog.mark_alive()
            self._limits.check()
            for job in self._leases.expired(self._clock.monotonic()):
                if job.phase is Phase.RUNNING:
                    self.events.emit(LeaseExpiring(self.id, job.claim.lease, job.claim.task))
                self._leases.lose(job)
            await self._clock.sleep(self._watchdog.interval)

    def stop(self, *, now: bool = False) -> None:
        """Stop claiming, and wait for running jobs until the grace is over.

        Jobs that are returned to the queue have not used an attempt. The call may be repeated. Call it on the
        worker's own loop; from another thread use ``call_soon_threadsafe``.

        Args:
            now: Return running jobs to the queue at once.

        """
        state = self._state
        is_first = not state.is_stopping
        if is_first or (now and not state.skips_grace):
            self.events.emit(WorkerStopping(self.id, self.running, now))
        state.stop(skips_grace=now)
        if is_first:
            self._return_unstarted()
            if self._claiming is not None:
                self._clock.call_later(LAST_CLAIM_TIMEOUT_SECONDS, self._cancel_claim)

    def wake(self) -> None:
        """Claim now, not at the next poll: forbidden flags are allowed again. Call it on the worker's own loop."""
        self._state.wake()

    @property
    def running(self) -> int:
        """Number of running handlers."""
        return len(self._state.running)

    @property
    def unfinished(self) -> list[Lease]:
        """Leases of handlers that did not stop, after ``run()``. Release them only as the last write of the process."""
        return self._executor.unfinished

    def _quiet(self, is_quiet: bool) -> None:
        if is_quiet == self._state.is_quiet or self._state.is_stopping:
            return
        self.events.emit(WorkerQuietChanged(self.id, self.running, is_quiet))
        self._state.set_quiet(on=is_quiet)
        self._slots.resume()  # do not reserve a slot for a suspect that will not be claimed
        if is_quiet:
            self._return_unstarted()

    def _cancel_claim(self) -> None:
        assert self._claiming is not None
        self._claiming.cancel()

    # -- stop -----------------------------------------------------------------------------------

    async def _finish(self, claiming: asyncio.Task[None]) -> None:
        """Return the jobs that have not started, wait for the others until the grace is over, then return those too."""
        state, clock, heartbeater = self._state, self._clock, self._heartbeater
        timings = self._host.timings
        await asyncio.wait([claiming])
        self._limits.check()
        self._return_unstarted()
        state.stop(skips_grace=False)
        grace_end_at = state.stopped_at + self.options.grace
        await self._until(lambda: state.skips_grace or not state.has_busy_slots, grace_end_at)
        last_deadline = clock.monotonic() + timings.final_timeout
        self._slots.stop_all(Stop.RETURNED)
        await self._until(lambda: not state.running, last_deadline - timings.final_calls_time)
        self.unfinished.extend(job.claim.lease for job in self._leases.all() if job.phase is Phase.RUNNING)
        heartbeater.tick_now()
        await self._until(lambda: not (state.is_unrecorded or state.pending_calls), last_deadline)
        deregister_deadline = min(clock.monotonic() + heartbeater.deregister(), last_deadline)
        heartbeater.tick_now()
        await self._until(lambda: not heartbeater.is_deregistering, deregister_deadline)

    async def _close(self) -> None:
        """End tasks, thread and guardian. Each ``finally`` runs even if this is cancelled in the step before it."""
        try:
            await self._state.supervisor.close()
        finally:
            try:
                await self._slots.close()
            finally:
                self._heartbeater.stop()  # after the slots: it still returns their jobs
                PROGRAM_GROUPS.dismiss()
                try:
                    await self._heartbeater.close()
                except Exception as error:  # noqa: BLE001 - boundary: end of the thread; ``run`` raises it
                    self._state.supervisor.report(error)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        await self._state.until(condition, deadline - self._clock.monotonic())

    def _return_unstarted(self) -> None:
        unstarted = self._leases.take_unstarted(float("inf"))
        self._heartbeater.return_jobs(unstarted, "the worker stopped before it was started")
        self._heartbeater.tick_now()


def _refuse_limits(state: WorkerState, heartbeats: Heartbeats) -> None:
    """Raise ConfigurationError if the tasks declare limits and the store keeps none."""
    if (state.declarations.limits or state.limits_per_worker) and not isinstance(heartbeats, WorkerList):
        raise ConfigurationError(
            f"limits: this store keeps no limits of tasks, so they would not hold; declare none, {OTHER_LIMITS}"
        )
