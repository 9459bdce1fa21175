"""The life of a job, top to bottom.

A worker is a generic process configured with a Store (where jobs are kept) and a Handler (what to do with one):

    wake     learn that there may be work (wakeups.py)
    claim    at most the free slots, and a little ahead in proportion to the measured rate (claimer.py)
    run      the handler in a slot (executor.py); whatever it returns or raises becomes an Outcome (jobs/outcomes.py)
    settle   judge the outcome (judge.py, jobs/lifecycle.py); record all that have piled up in one call (settler.py)
    beat     meanwhile, from another thread, renew the leases (heartbeater.py, leases.py)
    stop     claim nothing new; give running jobs their grace; return the rest without using an attempt; always bounded

Everything here is free of policy: states are decided in jobs/lifecycle.py, delays in retry.py, storage in stores/, and
what is printed in observe/.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from stowhand.clock import Clock, SystemClock, Ticker
from stowhand.events import Events, JobSaid, LeaseEnding, WorkerQuieted, WorkerStarted, WorkerStopped, WorkerStopping
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt_logger import AttemptLogger
from stowhand.protocols.handler import EnclosingStore, Function, Handler, Policy, handler_of
from stowhand.protocols.options import WorkerOptions, check_made
from stowhand.protocols.store import Claim, Store, Terms
from stowhand.worker.admission import Admission
from stowhand.worker.claimer import Claimer
from stowhand.worker.default_log import log_by_default
from stowhand.worker.endings import Endings
from stowhand.worker.executor import Executor
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.hooks import Hooks
from stowhand.worker.internals import Host, Internals
from stowhand.worker.judge import Judge
from stowhand.worker.leases import Held, Leases, Phase
from stowhand.worker.liveness import Liveness
from stowhand.worker.program_groups import GUARDED
from stowhand.worker.settler import Settler
from stowhand.worker.slot import Stop
from stowhand.worker.wakeups import Wakeups

R = TypeVar("R")
LAST_PAUSE = 4.0
"""Seconds after the grace, for handlers that were cancelled and for the last calls to the store."""
LAST_CALLS = 0.5
"""Of these, the seconds that are kept for the store."""


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
        self._loop: asyncio.AbstractEventLoop
        self._ticker: Ticker | None = None
        self._progress = asyncio.Event()
        """Something ended that a stopping worker may be waiting for."""
        self._stopped_at: float | None = None
        self._stop_now = False
        self._crash: BaseException | None = None
        liveness = Liveness(self._clock)
        self.internals = Internals(liveness, self._quiet, self._retask, self._held, self._give_up)
        self._terms = self._store_terms()
        self._make_parts(self._given_options.tasks)

    def _store_terms(self) -> Terms | None:
        """What the store prescribes; a store may know it only once it is open."""
        return getattr(self._store, "terms", None)

    def _make_parts(self, tasks: tuple[str, ...] | None) -> None:
        """All parts, under the terms of the store. Raises ConfigurationError where the options contradict them."""
        store, handler, events, clock, terms = self._store, self._handler, self.events, self._clock, self._terms
        self.options = options = self._given_options.under(terms)
        self._leases = leases = Leases(options.lease)
        backoff = options.backoff if terms is None or terms.backoff is None else terms.backoff
        self._judge = judge = Judge(handler, Policy(timeout=options.job_timeout, backoff=backoff), events)
        self._hooks = hooks = Hooks(handler, store, events, clock, self.id)
        self._endings = Endings(leases, judge, hooks, events, self.id)
        self._executor = Executor(
            hooks.handle,
            leases,
            self._endings,
            clock,
            options.concurrency,
            judge.timeout,
            self._host.isolate,
            self._attempt_logger,
        )
        self._settler = Settler(store, leases, judge, events, clock, self.id)
        self._heartbeater = self._make_heartbeater()
        admission = Admission(handler, options, events, clock, self.id)
        self._claimer = Claimer(
            store,
            self._executor,
            leases,
            self._settler,
            self._heartbeater,
            hooks,
            admission,
            options,
            events,
            clock,
            self.id,
        )
        self._claimer.tasks = tasks
        polls = terms is not None and terms.polls
        self._wakeups = Wakeups(store, options, events, clock, self.id, self._claimer.wake, polls)
        self._bind_liveness()
        self._connect_parts(asks_handler=admission.asks)

    def _connect_parts(self, *, asks_handler: bool) -> None:
        """Which part calls which. ``asks_handler``: there is a ``pre_claim``."""
        claimer, settler, hooks, endings = self._claimer, self._settler, self._hooks, self._endings
        self._executor.on_slot_free = claimer.look_again
        settler.on_pile_empty = self._look_again
        settler.on_claimable = claimer.wake
        settler.run_soon = hooks.run_soon
        hooks.on_error = self._fail
        # What ends, or has been prepared, changes what pre_claim will answer: it is asked again.
        hooks.on_progress = self._wake_and_look_again if asks_handler else self._look_again
        endings.settler = settler
        endings.heartbeater = self._heartbeater
        endings.on_suspect_ended = claimer.suspect_ended
        endings.on_ended = self._wake_and_look_again if asks_handler else self._progress.set

    def _bind_liveness(self) -> None:
        heartbeater = self._heartbeater
        watchdog = heartbeater.watchdog
        calls = {"claiming": self._claimer.call, "settling": self._settler.call, "waking": self._wakeups.call}
        moments = {"loop": lambda: watchdog.last_alive, "heartbeat": lambda: heartbeater.ticked}
        self.internals.liveness.bind(moments, calls, watchdog.lag, heartbeater.refused_since)

    def _attempt_logger(self, claim: Claim[Any]) -> AttemptLogger:
        if self.events.wants(JobSaid):
            return AttemptLogger(self.events.emit, self.id, claim.task, claim.lease.job_id)
        return AttemptLogger.mute()

    # -- run and stop ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until stopped. When it returns, nothing is in processing under this worker but ``unfinished``.

        Raises what broke one of its own loops (a bug here or in a store), after stopping in order. Cancelled, it first
        returns all its jobs, which takes some seconds at most.
        """
        if self._logs_by_default:
            log_by_default(self.events)
        await self._validate()
        self._loop = asyncio.get_running_loop()
        self._heartbeater.watchdog.watch_this_thread()
        self._executor.open(self._fail)
        self._ticker = self._clock.ticker("stowhand heartbeat", self._tick)
        self.events.emit(WorkerStarted(self.id, self.options.tasks))
        try:
            async with asyncio.TaskGroup() as group:
                claiming = group.create_task(self._supervise(self._claimer.run))
                loops = (self._settler.run, self._wakeups.run, self._guard)
                others = [group.create_task(self._supervise(loop)) for loop in loops]
                try:
                    await asyncio.wait([claiming])
                except asyncio.CancelledError:
                    self.stop(now=True)
                    raise
                finally:
                    await self._finish(claiming)
                    for other in others:
                        other.cancel()
        finally:
            await self._hooks.close()
            await self._executor.close()
            self._ticker.stop()
            self._heartbeater.close()
            GUARDED.dismiss()
        self.events.emit(WorkerStopped(self.id, len(self.unfinished)))
        if self._crash is not None:
            raise self._crash

    async def _validate(self) -> None:
        """Let the store check that it can be worked on. Its terms are read again: they may have changed since."""
        if isinstance(self._store, EnclosingStore):
            await self._store.validate(self.events)
        terms = self._store_terms()
        if terms != self._terms and self._ticker is None:
            self._terms = terms
            self._heartbeater.close()
            self._make_parts(self._claimer.tasks)
            if self._stopped_at is not None:
                self._claimer.stop()

    def stop(self, *, now: bool = False) -> None:
        """Claim nothing new and let running jobs end within the grace; ``now``: return them at once.

        What is returned has not used an attempt. Harmless when repeated. On the worker's own loop; from elsewhere
        through ``call_soon_threadsafe``.
        """
        first = self._stopped_at is None
        if first or (now and not self._stop_now):
            self.events.emit(WorkerStopping(self.id, self._executor.running, now))
        self._stop_now = self._stop_now or now
        self._progress.set()
        if first:
            self._stopped_at = self._clock.monotonic()
            self._claimer.stop()
            self._return_unstarted()

    def wake(self) -> None:
        """Look for jobs now instead of at the next poll: flags are allowed again. On the worker's own loop."""
        self._claimer.wake()

    @property
    def running(self) -> int:
        """Handlers at work."""
        return self._executor.running

    @property
    def unfinished(self) -> list[Lease]:
        """After ``run()``: leases of handlers that could not be ended. Release them only as the last write."""
        return self._endings.unfinished

    def _quiet(self, on: bool) -> None:
        if on == self._claimer.is_quiet or self._stopped_at is not None:
            return
        self.events.emit(WorkerQuieted(self.id, self._executor.running, on))
        self._claimer.is_quiet = on
        self._executor.resume()  # no slot is kept free for a suspect that will not be claimed
        self._claimer.wake()
        if on:
            self._return_unstarted()

    def _retask(self, tasks: tuple[str, ...] | None) -> None:
        self._claimer.tasks = tasks
        self._claimer.wake()

    def _held(self) -> list[Lease]:
        return [held.claim.lease for held in self._leases.all()]

    def _give_up(self) -> None:
        self._settler.give_up()

    async def _supervise(self, loop: Callable[[], Awaitable[None]]) -> None:
        """None of our loops ends in silence: what it raises stops the worker, in order, and ``run`` raises it."""
        try:
            await loop()
        except Exception as error:  # noqa: BLE001 - boundary: the top of each of our own loops
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._crash = self._crash or error
        self.stop(now=True)

    # -- beat ------------------------------------------------------------------------------------

    def _make_heartbeater(self) -> Heartbeater:
        heartbeater = Heartbeater(
            self._store.heartbeats(),
            self._leases,
            self.options,
            self.events,
            self._clock,
            self.id,
            self._stop_on_loop(Stop.LOST),
            self._stop_on_loop(Stop.CANCELED),
        )
        heartbeater.watchdog.current = lambda: self._executor.current
        heartbeater.watchdog.timeout_of = self._judge.timeout
        heartbeater.watchdog.on_hang = self._host.on_hang
        heartbeater.registration.status = self._status
        return heartbeater

    def _status(self) -> tuple[tuple[str, ...] | None, bool]:
        return self._claimer.tasks, self._stopped_at is not None or self._claimer.is_quiet

    def _tick(self) -> float:
        """Beats go on while the worker stops because of an error in one of them."""
        try:
            return self._heartbeater.tick()
        except Exception as error:  # noqa: BLE001 - boundary: the top of the heartbeat thread
            self._call_on_loop(self._fail, error)
            return 1.0
        finally:
            if self._stopped_at is not None or self._heartbeater.is_leaving:
                self._call_on_loop(self._progress.set)

    def _stop_on_loop(self, why: Stop) -> Callable[[list[Held]], None]:
        """A callback for the heartbeat thread; the loop acts on it."""

        def stop(held: list[Held]) -> None:
            for one in held:
                self._call_on_loop(self._stop_one, one, why)

        return stop

    def _call_on_loop(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # a last tick may outlive the loop; nothing depends on it then
            self._loop.call_soon_threadsafe(call, *args)

    def _stop_one(self, held: Held, why: Stop) -> None:
        """For a lost lease nothing is written or renewed; a job that has ended learns of it from its settlement."""
        if why is Stop.LOST and held.phase is not Phase.ENDED:
            self._leases.drop([held])
            self._look_again()  # the worker may be making way for it
        self._executor.stop(held, why)

    async def _guard(self) -> None:
        """Stop handlers whose lease may be given away; show the watchdog that the loop runs."""
        while True:
            self._heartbeater.watchdog.alive()
            for held in self._leases.expired(self._clock.monotonic()):
                if held.phase is Phase.RUNNING:
                    self.events.emit(LeaseEnding(self.id, held.claim.lease, held.claim.task))
                self._stop_one(held, Stop.LOST)
            await self._clock.sleep(self._heartbeater.watchdog.interval)

    # -- the end ---------------------------------------------------------------------------------

    async def _finish(self, claiming: asyncio.Task[None]) -> None:
        """Return what has not started, let the rest end within the grace, then return that too."""
        executor, clock, hooks, heartbeater = self._executor, self._clock, self._hooks, self._heartbeater
        await asyncio.wait([claiming])
        self._return_unstarted()
        if self._stopped_at is None:
            self._stopped_at = clock.monotonic()
        grace_ends = self._stopped_at + self.options.grace
        await self._until(lambda: self._stop_now or not (executor.running or hooks.occupied), grace_ends)
        last = clock.monotonic() + LAST_PAUSE
        executor.stop_all(Stop.RETURNED)
        await self._until(lambda: not executor.running, last - LAST_CALLS)
        self._endings.unfinished += [held.claim.lease for held in self._leases.all() if held.phase is Phase.RUNNING]
        self._tick_soon()
        await self._until(lambda: not (self._settler.backlog or heartbeater.errands or hooks.pending), last)
        patience = min(clock.monotonic() + heartbeater.deregister(), last)
        self._tick_soon()
        await self._until(lambda: not heartbeater.registration.removing, patience)

    def _look_again(self) -> None:
        self._claimer.look_again()
        self._progress.set()

    def _wake_and_look_again(self) -> None:
        self._claimer.wake()
        self._look_again()

    def _return_unstarted(self) -> None:
        unstarted = self._leases.pull_ahead(float("inf"), waiting=True)
        self._heartbeater.give_back(unstarted, "the worker stopped before it was started")
        self._tick_soon()

    def _tick_soon(self) -> None:
        if self._ticker is not None:
            self._ticker.poke()

    async def _until(self, reached: Callable[[], bool], deadline: float) -> None:
        while not reached() and (left := deadline - self._clock.monotonic()) > 0:
            self._progress.clear()
            timer = self._clock.call_later(left, self._progress.set)
            await self._progress.wait()
            timer.cancel()
