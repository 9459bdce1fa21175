"""The life of a job, top to bottom.

A worker is a generic process configured with a Store (where jobs are kept) and a Handler (what to do with one):

    wake     hear that there may be work (wakeups.py)
    take     claim at most the free slots, and a little ahead in proportion to the measured rate (taker.py)
    work     run the handler in a lane (lanes.py); whatever it returns or raises is an Outcome (outcomes.py)
    settle   judge the outcome (judge.py, lifecycle.py); record all that have piled up in one call (settler.py)
    beat     meanwhile, from another thread, keep the leases true (keeper.py, leases.py)
    stop     take nothing new; give running jobs their grace; hand the rest back unspent; bounded, always

Everything here is free of policy: states are decided in lifecycle.py, delays in retry.py, storage in stores/, and what
is printed in observe/.
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
from stowhand.worker.endings import Endings
from stowhand.worker.executor import Executor
from stowhand.worker.guarded import GUARDED
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.hooks import Hooks
from stowhand.worker.judge import Judge
from stowhand.worker.leases import Held, Leases, Phase
from stowhand.worker.liveness import Liveness
from stowhand.worker.settler import Settler
from stowhand.worker.slot import Isolate, Stop
from stowhand.worker.speaking import speak
from stowhand.worker.wakeups import Wakeups

R = TypeVar("R")
LAST_PAUSE, LAST_CALLS = 4.0, 0.5
"""Seconds after the grace: for handlers that were told to end and the last calls to the store; of them the store's."""


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
        isolate: Isolate | None = None,
        on_hang: Callable[[], None] = lambda: None,
    ) -> None:
        check_made(store, options, WorkerOptions)
        self._given, self._handler = options or WorkerOptions(), handler_of(handler)
        self._isolate, self._on_hang = isolate, on_hang
        self._speaks = events is None
        self.events = events if events is not None else Events()
        self.id = self._given.name or new_identity()
        self._store, self._clock = store, clock or SystemClock()
        self._loop: asyncio.AbstractEventLoop
        self._ticker: Ticker | None = None
        self._progress = asyncio.Event()
        """Something ended that a stopping worker may be waiting for."""
        self._stopped_at: float | None = None
        self._now = False
        self._crash: BaseException | None = None
        self.liveness = Liveness(self._clock)
        self._terms = self._ask_terms()
        self._make(self._given.tasks)

    def _ask_terms(self) -> Terms | None:
        """What the store lays down; a store may know it only once it is open."""
        return getattr(self._store, "terms", None)

    def _make(self, tasks: tuple[str, ...] | None) -> None:
        """All parts, under the terms of the store. Raises ConfigurationError where the options contradict them."""
        store, handler, events, clock, terms = self._store, self._handler, self.events, self._clock, self._terms
        self.options = options = self._given.under(terms)
        self._leases = leases = Leases(options.lease)
        backoff = options.backoff if terms is None or terms.backoff is None else terms.backoff
        self._judge = judge = Judge(handler, Policy(timeout=options.job_timeout, backoff=backoff), events)
        self._hooks = hooks = Hooks(handler, store, events, clock, self.id)
        self._endings = Endings(leases, judge, hooks, events, self.id)
        self._executor = Executor(
            *(hooks.handle, leases, self._endings, clock, options.concurrency, judge.timeout, self._isolate),
            self._logger,
        )
        self._settler = Settler(store, leases, judge, events, clock, self.id)
        self._heartbeater = self._make_keeper(self._on_hang)
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
        self._examine()
        self._introduce(wakes=admission.asks)

    def _introduce(self, *, wakes: bool) -> None:
        """Who is told by whom."""
        claimer, settler, hooks, endings = self._claimer, self._settler, self._hooks, self._endings
        self._executor.starved, settler.quiet, settler.freed = claimer.stir, self._stir, claimer.wake
        settler.soon, hooks.broke = hooks.soon, self._broke
        # What ends, or has been prepared, changes what pre_claim will say: it is asked again.
        hooks.freed = self._wake_and_stir if wakes else self._stir
        endings.settler, endings.heartbeater, endings.suspect_ended = settler, self._heartbeater, claimer.suspect_ended
        endings.progress = self._wake_and_stir if wakes else self._progress.set

    def _examine(self) -> None:
        heartbeater, watch = self._heartbeater, self._heartbeater.watch
        calls = {"claiming": self._claimer.call, "settling": self._settler.call, "waking": self._wakeups.call}
        moments = {"loop": lambda: watch.last, "heartbeat": lambda: heartbeater.ticked}
        self.liveness.watch(moments, calls, watch.late, heartbeater.refused)

    def _logger(self, claim: Claim[Any]) -> AttemptLogger:
        events = self.events if self.events.wants(JobSaid) else None
        return AttemptLogger(events.emit, self.id, claim.task, claim.lease.job_id) if events else AttemptLogger.mute()

    # -- the worker's own life -------------------------------------------------------------------

    async def run(self) -> None:
        """Work until stopped. When it returns, nothing is in processing under this worker but ``unfinished``.

        Raises what broke one of its own loops (a bug here or in a store), after stopping in order. Cancelled, it hands
        everything back first, which takes some seconds at most.
        """
        if self._speaks:
            speak(self.events)
        await self._validate()
        self._loop = asyncio.get_running_loop()
        self._heartbeater.watch.here()
        self._executor.open(self._broke)
        self._ticker = self._clock.ticker("stowhand heart", self._tick)
        self.events.emit(WorkerStarted(self.id, self.options.tasks))
        try:
            async with asyncio.TaskGroup() as group:
                taking = group.create_task(self._supervise(self._claimer.run))
                verbs = (self._settler.run, self._wakeups.run, self._guard)
                helpers = [group.create_task(self._supervise(verb)) for verb in verbs]
                try:
                    await asyncio.wait([taking])
                except asyncio.CancelledError:
                    self.stop(now=True)
                    raise
                finally:
                    await self._finish(taking)
                    for helper in helpers:
                        helper.cancel()
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
        """The store is fit to be worked on. What it lays down is asked now, whatever it said when this was made."""
        if isinstance(self._store, EnclosingStore):
            await self._store.validate(self.events)
        terms = self._ask_terms()
        if terms != self._terms and self._ticker is None:
            self._terms = terms
            self._heartbeater.close()
            self._make(self._claimer.tasks)
            if self._stopped_at is not None:
                self._claimer.stop()

    def give_up(self) -> None:
        """Tell what no store has recorded, once. From any thread, as the last thing."""
        self._settler.give_up()

    def stop(self, *, now: bool = False) -> None:
        """Take nothing new and let running jobs end within the grace; ``now``: hand them back unspent at once.

        Harmless when repeated. On the worker's own loop; from elsewhere through ``call_soon_threadsafe``.
        """
        if (first := self._stopped_at is None) or (now and not self._now):
            self.events.emit(WorkerStopping(self.id, self._executor.running, now))
        self._now = self._now or now
        self._progress.set()
        if first:
            self._stopped_at = self._clock.monotonic()
            self._claimer.stop()
            self._return_unstarted()

    def quiet(self, *, on: bool = True) -> None:
        """Take nothing new, and stay: what runs goes on, what was claimed ahead goes back. Not ``on``: take again.

        Harmless when repeated. On the worker's own loop.
        """
        if on == self._claimer.quiet or self._stopped_at is not None:
            return
        self.events.emit(WorkerQuieted(self.id, self._executor.running, on))
        self._claimer.quiet = on
        self._executor.go_on()  # none is held free for a suspect that is not asked for
        self._claimer.wake()
        if on:
            self._return_unstarted()

    async def _supervise(self, verb: Callable[[], Awaitable[None]]) -> None:
        """None of our loops ends in silence: what it raises stops the worker, in order, and ``run`` raises it."""
        try:
            await verb()
        except Exception as error:  # noqa: BLE001 - boundary: the top of each of our own loops
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        self._crash = self._crash or error
        self.stop(now=True)

    def wake(self) -> None:
        """Look for jobs now instead of at the next poll: flags are allowed again. On the worker's own loop."""
        self._claimer.wake()

    def retask(self, tasks: tuple[str, ...] | None) -> None:
        """Claim jobs of these tasks from now on. On the worker's own loop."""
        self._claimer.tasks = tasks
        self._claimer.wake()

    @property
    def running(self) -> int:
        """Handlers at work."""
        return self._executor.running

    @property
    def unfinished(self) -> list[Lease]:
        """After ``run()``: leases of handlers that could not be ended. Release them only as the last write."""
        return self._endings.unfinished

    @property
    def held(self) -> list[Lease]:
        """Every lease of this worker just now. As with ``unfinished``: release them only as the last write."""
        return [held.claim.lease for held in self._leases.all()]

    # -- beat ------------------------------------------------------------------------------------

    def _make_keeper(self, on_hang: Callable[[], None]) -> Heartbeater:
        heartbeats, lost, canceled = (
            self._store.heartbeats(),
            self._from_keeper(Stop.LOST),
            self._from_keeper(Stop.CANCELED),
        )
        heartbeater = Heartbeater(
            heartbeats, self._leases, self.options, self.events, self._clock, self.id, lost, canceled
        )
        heartbeater.watch.driving = lambda: self._executor.driving
        heartbeater.watch.timeout_of = self._judge.timeout
        heartbeater.watch.on_hang = on_hang
        heartbeater.registration.says = lambda: (
            self._claimer.tasks,
            self._stopped_at is not None or self._claimer.quiet,
        )
        return heartbeater

    def _tick(self) -> float:
        """The heart goes on beating while the worker stops because of an error in it."""
        try:
            return self._heartbeater.tick()
        except Exception as error:  # noqa: BLE001 - boundary: the top of the heart's thread
            self._on_loop(self._broke, error)
            return 1.0
        finally:
            if self._stopped_at is not None or self._heartbeater.is_leaving:
                self._on_loop(self._progress.set)

    def _from_keeper(self, why: Stop) -> Callable[[list[Held]], None]:
        """What the keeper's thread hears about leases is done on the loop."""

        def tell(held: list[Held]) -> None:
            for one in held:
                self._on_loop(self._stop_one, one, why)

        return tell

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # a last tick may outlive the loop; what it hears then concerns nobody
            self._loop.call_soon_threadsafe(call, *args)

    def _stop_one(self, held: Held, why: Stop) -> None:
        """Nothing is written for a lost lease, nor is it renewed; what has ended hears it from its settlement."""
        if why is Stop.LOST and held.phase is not Phase.ENDED:
            self._leases.drop([held])
            self._stir()  # the worker may be making way for it
        self._executor.stop(held, why)

    async def _guard(self) -> None:
        """Stop handlers whose lease may be given away; show the watchdog that the loop runs."""
        while True:
            self._heartbeater.watch.seen()
            for held in self._leases.expired(self._clock.monotonic()):
                if held.phase is Phase.RUNNING:
                    self.events.emit(LeaseEnding(self.id, held.claim.lease, held.claim.task))
                self._stop_one(held, Stop.LOST)
            await self._clock.sleep(self._heartbeater.watch.pause)

    # -- stop ------------------------------------------------------------------------------------

    async def _finish(self, taking: asyncio.Task[None]) -> None:
        """Hand back what has not started, let the rest end within the grace, then hand that back too."""
        executor, clock, hooks, heartbeater = self._executor, self._clock, self._hooks, self._heartbeater
        await asyncio.wait([taking])
        self._return_unstarted()
        self._stopped_at = since = clock.monotonic() if self._stopped_at is None else self._stopped_at
        await self._until(lambda: not (executor.running or hooks.occupied) or self._now, since + self.options.grace)
        last = clock.monotonic() + LAST_PAUSE
        executor.stop_all(Stop.RETURNED)
        await self._until(lambda: not executor.running, last - LAST_CALLS)
        self._endings.unfinished += [held.claim.lease for held in self._leases.all() if held.phase is Phase.RUNNING]
        self._poke()
        await self._until(lambda: not (self._settler.backlog or heartbeater.owes or hooks.pending), last)
        patience = min(clock.monotonic() + heartbeater.leave(), last)
        self._poke()
        await self._until(lambda: not heartbeater.registration.leaving, patience)

    def _stir(self) -> None:
        self._claimer.stir()
        self._progress.set()

    def _wake_and_stir(self) -> None:
        self._claimer.wake()
        self._stir()

    def _return_unstarted(self) -> None:
        self._heartbeater.give_back(
            self._leases.pull_ahead(float("inf"), waiting=True), "the worker stopped before it was started"
        )
        self._poke()

    def _poke(self) -> None:
        if self._ticker is not None:
            self._ticker.poke()

    async def _until(self, reached: Callable[[], bool], deadline: float) -> None:
        while not reached() and (left := deadline - self._clock.monotonic()) > 0:
            self._progress.clear()
            timer = self._clock.call_later(left, self._progress.set)
            await self._progress.wait()
            timer.cancel()
