"""The life of a job, top to bottom.

A worker is a generic process configured with a Store (where jobs are kept) and a Handler (what to do with one):

    wake     learn that there may be work (wakeups.py)
    claim    at most the free slots, and a little ahead in proportion to the measured rate (claimer.py)
    run      the handler in a slot (slots.py, executor.py): what it returns or raises is an Outcome (jobs/outcomes.py)
    settle   judge the outcome (judge.py, jobs/lifecycle.py); record all that have piled up in one call (settler.py)
    beat     meanwhile, from another thread, renew the leases (heartbeater.py, leases.py)
    stop     claim nothing new; give running jobs their grace; return the rest without using an attempt; always bounded

Its parts know each other by their constructors. What another part may wait for is signalled in changes.py, errors go to
supervisor.py, and duty.py says what the worker is to do.

Everything here is free of policy: states are decided in jobs/lifecycle.py, delays in retry.py, storage in stores/, and
what is printed in observe/.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from stowhand.clock import Clock, SystemClock
from stowhand.events import Events, LeaseEnding, WorkerQuieted, WorkerStarted, WorkerStopped, WorkerStopping
from stowhand.jobs.lease import Lease
from stowhand.protocols.handler import Function, Handler, Stop, handler_of
from stowhand.protocols.inside import inside_a_worker
from stowhand.protocols.offered import heartbeats_of
from stowhand.protocols.options import WorkerOptions, check_made
from stowhand.protocols.policy import Policy
from stowhand.protocols.store import Store
from stowhand.protocols.throughput import ThroughputKeeper
from stowhand.worker.abandoned_threads import AbandonedThreads
from stowhand.worker.admission import Admission
from stowhand.worker.basis import Basis
from stowhand.worker.changes import Changes
from stowhand.worker.claim_size import ClaimSize
from stowhand.worker.claimer import Claimer
from stowhand.worker.claims import Claims
from stowhand.worker.default_log import log_by_default
from stowhand.worker.duty import Duty
from stowhand.worker.executor import Executor
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.hooks import Hooks
from stowhand.worker.internals import Host, Internals
from stowhand.worker.judge import Judge
from stowhand.worker.leases import Executing, Leases, Phase
from stowhand.worker.liveness import Liveness
from stowhand.worker.load import Load
from stowhand.worker.minute_book import MinuteBook, uncounted
from stowhand.worker.openings import openings_for
from stowhand.worker.program_groups import GUARDED
from stowhand.worker.renewal import Renewal
from stowhand.worker.settler import Settler
from stowhand.worker.slots import Slots
from stowhand.worker.successors import Successors
from stowhand.worker.supervisor import Supervisor
from stowhand.worker.suspects import Suspects
from stowhand.worker.wakeups import Wakeups
from stowhand.worker.watchdog import LoopWatchdog

R = TypeVar("R")
LAST_CLAIM = 5.0
"""Seconds that a claim on its way may take when the worker stops, so that its jobs can be returned."""


def new_identity() -> str:
    """Host, pid and a random boot id: nothing is ever keyed by the host name."""
    return f"worker-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


class Worker:
    """One of these per process and store. ``run()`` works until ``stop()``, or, with ``once``, until nothing is due."""

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
        self._given_options = options or WorkerOptions()
        self._handler = handler_of(handler)
        self._host = host or Host()
        self._logs_by_default = events is None
        self.events = events if events is not None else Events()
        self.id = self._given_options.name or new_identity()
        self._store = store
        self._clock = clock or SystemClock()
        self._claiming: asyncio.Task[None] | None = None
        self._counted_as: Mapping[str, str] = getattr(self._handler, "counted_as", {})
        self._changes = Changes(self._clock, asks_handler=getattr(self._handler, "pre_claim", None) is not None)
        self._duty = Duty(self._given_options.tasks, self._changes)
        self._supervisor = Supervisor(self._changes, partial(self.stop, now=True))
        self._liveness = Liveness(self._clock)
        self._terms = store.terms
        self._make_parts()

    def _make_parts(self) -> None:
        """Each part of those above it. Raises ConfigurationError where the options contradict the store's terms."""
        store, handler, host, terms = self._store, self._handler, self._host, self._terms
        self.options = options = self._given_options.under(terms)
        backoff = options.backoff if terms is None or terms.backoff is None else terms.backoff
        parts = (self._changes, self._duty, self._supervisor, host.timings)
        basis = Basis(self.id, options, self.events, self._clock, *parts)
        judge = Judge(handler, Policy(timeout=options.job_timeout, backoff=backoff), self.events)

        heartbeats = heartbeats_of(store)
        executing = Executing()
        self._leases = leases = Leases(options.lease, self._changes, self._clock)
        self._watchdog = watchdog = LoopWatchdog(executing, judge, host.on_hang, basis)
        book = MinuteBook(self._clock.monotonic, self._counted_as)
        count = book.count if isinstance(heartbeats, ThroughputKeeper) else uncounted
        self._abandoned = abandoned = AbandonedThreads(host.on_threads_exhausted, basis)
        self._heartbeater = heartbeater = Heartbeater(heartbeats, leases, watchdog, book, abandoned, basis)

        hooks = Hooks(handler, store, basis)
        admission = Admission(handler, basis)
        decides = admission.one_by_one or hooks.holds_slots or options.fair
        chain = None if decides else store.capabilities.settle_and_claim
        self._settler = settler = Settler(store, leases, judge, count, basis, chains=chain is not None)
        self._executor = executor = Executor(hooks, judge, leases, settler, heartbeater, abandoned, host.isolate, basis)
        keeps_slot = host.isolate is not None and options.concurrency > 1
        self._slots = slots = Slots(executor, leases, executing, basis, keeps_slot=keeps_slot)
        self._load = load = Load(slots, executor, settler, heartbeater, abandoned, basis)

        claims = Claims(store, leases, heartbeater, load, basis)
        self._renewal = renewal = Renewal(slots, host.resident, basis)
        claim_size = ClaimSize(slots, load, hooks, renewal, basis, one_by_one=admission.one_by_one)
        suspects = Suspects(slots, basis, can_isolate=host.isolate is not None)
        succession = (claims, claim_size, suspects, slots, load, leases, heartbeater, basis)
        self._settling = partial(settler.run, Successors(chain, *succession))
        self._claimer = Claimer(admission, claim_size, claims, suspects, slots, load, basis)
        self._wakeups = Wakeups(store, heartbeater, basis, polls=terms is not None and terms.polls)

        self._openings = openings = openings_for(handler, watchdog, basis)
        beating = (lambda: heartbeater.ticked) if openings is None else lambda: max(heartbeater.ticked, openings.moved)
        calls = {"claiming": claims.call, "settling": settler.call, "waking": self._wakeups.call}
        moments = {"loop": lambda: watchdog.last_alive, "heartbeat": beating}
        self._liveness.bind(moments, calls, watchdog.lag, heartbeater.refused_since, self._unready)
        self.internals = Internals(
            self._liveness, self._quiet, self._duty.retask, leases.list_all, settler.give_up, renewal.reason
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
        self._changes.open()
        self._supervisor.open()
        if self._openings is None:
            await self._work()
        else:
            try:
                await self._openings.open()
                await self._work()
            finally:
                await self._openings.close()
        self.events.emit(WorkerStopped(self.id, len(self.unfinished)))
        if self._supervisor.crash is not None:
            raise self._supervisor.crash

    async def _work(self) -> None:
        """Until stopped, and until nothing is left of it."""
        self._heartbeater.start()
        self.events.emit(WorkerStarted(self.id, self.options.tasks, self._counted_as))
        try:
            with inside_a_worker():
                async with asyncio.TaskGroup() as group:
                    watch = self._supervisor.watch
                    claiming = self._claiming = group.create_task(watch(self._claimer.run))
                    loops = (self._settling, self._wakeups.run, self._guard)
                    others = [group.create_task(watch(loop)) for loop in loops]
                    self._renewal.start()
                    try:
                        await asyncio.wait([claiming])
                    except asyncio.CancelledError:
                        self.stop(now=True)
                        raise
                    finally:
                        try:
                            await self._finish(claiming)
                        finally:
                            self._supervisor.finish()
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
            self._watchdog.alive()
            self._abandoned.look()
            self._renewal.look()
            for held in self._leases.expired(self._clock.monotonic()):
                if held.phase is Phase.RUNNING:
                    self.events.emit(LeaseEnding(self.id, held.claim.lease, held.claim.task))
                self._leases.lose(held)
            await self._clock.sleep(self._watchdog.interval)

    def stop(self, *, now: bool = False) -> None:
        """Claim nothing new and let running jobs end within the grace; ``now``: return them at once.

        What is returned has not used an attempt. Harmless when repeated. On the worker's own loop; from elsewhere
        through ``call_soon_threadsafe``.
        """
        duty = self._duty
        first = not duty.is_stopping
        if first or (now and not duty.at_once):
            self.events.emit(WorkerStopping(self.id, self.running, now))
        duty.stop(self._clock.monotonic(), at_once=now)
        if first:
            self._return_unstarted()
            if self._claiming is not None:
                self._clock.call_later(LAST_CLAIM, self._cancel_claim)

    def wake(self) -> None:
        """Look for jobs now instead of at the next poll: flags are allowed again. On the worker's own loop."""
        self._changes.wake()

    @property
    def running(self) -> int:
        """Handlers at work."""
        return self._slots.running

    @property
    def unfinished(self) -> list[Lease]:
        """After ``run()``: leases of handlers that could not be ended. Release them only as the last write."""
        return self._executor.unfinished

    def _unready(self) -> str | None:
        """Why nothing new is claimed, although nobody asked for that."""
        return self._abandoned.why_exhausted() or self._renewal.reason()

    def _quiet(self, on: bool) -> None:
        if on == self._duty.is_quiet or self._duty.is_stopping:
            return
        self.events.emit(WorkerQuieted(self.id, self.running, on))
        self._duty.quiet(on=on)
        self._slots.resume()  # no slot is kept free for a suspect that will not be claimed
        if on:
            self._return_unstarted()

    def _cancel_claim(self) -> None:
        assert self._claiming is not None
        self._claiming.cancel()

    # -- the end ---------------------------------------------------------------------------------

    async def _finish(self, claiming: asyncio.Task[None]) -> None:
        """Return what has not started, let the rest end within the grace, then return that too."""
        duty, clock, slots, load, heartbeater = self._duty, self._clock, self._slots, self._load, self._heartbeater
        timings = self._host.timings
        await asyncio.wait([claiming])
        self._renewal.look()
        self._return_unstarted()
        duty.stop(clock.monotonic(), at_once=False)
        grace_ends = duty.stopped_at + self.options.grace
        await self._until(lambda: duty.at_once or not load.fills_slots, grace_ends)
        last = clock.monotonic() + timings.last_pause
        slots.stop_all(Stop.RETURNED)
        await self._until(lambda: not slots.running, last - timings.last_calls)
        self.unfinished.extend(held.claim.lease for held in self._leases.all() if held.phase is Phase.RUNNING)
        heartbeater.hurry()
        await self._until(lambda: not (load.is_unrecorded or heartbeater.errands), last)
        patience = min(clock.monotonic() + heartbeater.deregister(), last)
        heartbeater.hurry()
        await self._until(lambda: not heartbeater.deregistering, patience)

    async def _close(self) -> None:
        """End tasks, thread and guardian, however often this is cancelled: no end waits behind another's await."""
        try:
            await self._supervisor.close()
        finally:
            try:
                await self._slots.close()
            finally:
                self._heartbeater.stop()  # not before: what the slots give back is still written
                GUARDED.dismiss()
                try:
                    await self._heartbeater.close()
                except Exception as error:  # noqa: BLE001 - boundary: the end of the thread
                    self._supervisor.report(error)

    async def _until(self, reached: Callable[[], bool], deadline: float) -> None:
        await self._changes.until(reached, deadline - self._clock.monotonic())

    def _return_unstarted(self) -> None:
        unstarted = self._leases.pull_ahead(float("inf"))
        self._heartbeater.give_back(unstarted, "the worker stopped before it was started")
        self._heartbeater.hurry()
