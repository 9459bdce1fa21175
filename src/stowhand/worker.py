"""The life of a job, top to bottom.

A worker is a generic process configured with a Store (where jobs are kept) and a Handler (what to do with one):

    take     claim at most the free slots, and a little ahead in proportion to the measured rate (taker.py)
    work     run the handler in a lane (lanes.py); whatever it returns or raises is an Outcome (outcomes.py)
    settle   judge the outcome (lifecycle.py) and record it, everything that has piled up in one call (settler.py)
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
from collections.abc import Callable
from typing import Any

from stowhand.clock import Clock, SystemClock
from stowhand.errors import StoreError
from stowhand.events import (
    Events,
    JobLost,
    JobStarted,
    ResultDropped,
    StoreTrouble,
    ThreadAbandoned,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from stowhand.handler import Handler, Policy
from stowhand.keeper import Keeper
from stowhand.lanes import Isolate, Lanes, Stop
from stowhand.leases import Held, Leases, Phase
from stowhand.lifecycle import Complete, Outcome, Settlement, settle
from stowhand.options import WorkerOptions
from stowhand.settler import Ended, Settler
from stowhand.store import Claim, Lease, Store
from stowhand.taker import Taker

LAST_PAUSE = 5.0
"""Seconds that handlers have to end once they were told to stop, and the store to answer the last calls."""
GUARD = 0.25


def new_identity() -> str:
    """Host, pid and a random boot id: nothing is ever keyed by the host name."""
    return f"worker-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


class Worker:
    """One of these per process and store. ``run()`` works until ``stop()``, or, with ``once``, until nothing is due."""

    def __init__(
        self,
        store: Store[Any],
        handler: Handler,
        options: WorkerOptions | None = None,
        *,
        clock: Clock | None = None,
        events: Events | None = None,
        isolate: Isolate | None = None,
        on_hang: Callable[[], None] = lambda: None,
    ) -> None:
        self.options = options or WorkerOptions()
        self.id = self.options.name or new_identity()
        self.events = events or Events()
        self._store, self._handler = store, handler
        self._clock = clock or SystemClock()
        self._leases = Leases(self.options.lease)
        self._default = Policy(timeout=self.options.timeout, backoff=self.options.backoff)
        self._policy: Callable[[Claim[Any]], Policy] = getattr(handler, "policy", lambda claim: self._default)
        self._lanes = Lanes(
            handler,
            self._leases,
            self,
            self._clock,
            concurrency=self.options.concurrency,
            default=self._default,
            isolate=isolate,
        )
        self._settler = Settler(store, self._leases, self.events, self._clock, self.id)
        self._keeper = self._make_keeper(on_hang)
        self._taker = Taker(
            store,
            self._lanes,
            self._leases,
            self._settler,
            self._keeper,
            self.options,
            self.events,
            self._clock,
            self.id,
            can_isolate=isolate is not None,
        )
        self._lanes.starved = self._settler.quiet = self._taker.stir
        self._settler.freed = self._taker.wake
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = self._now = False
        self._crash: BaseException | None = None
        self.unfinished: list[Lease] = []
        """After ``run()``: leases of handlers that could not be ended. Release them only as the last write."""

    # -- the worker's own life -------------------------------------------------------------------

    async def run(self) -> None:
        """Work until stopped. When it returns, nothing is in processing under this worker but ``unfinished``."""
        self._loop = asyncio.get_running_loop()
        self._keeper.watch.here()
        self._lanes.open(self._lane_crashed)
        ticker = self._clock.ticker("stowhand heart", self._keeper.tick)
        self.events.emit(WorkerStarted(self.id, self.options.tasks))
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(verb) for verb in (self._settler.run(), self._listen(), self._guard())]
                await self._taker.run()
                await self._finish(ticker.poke)
                for helper in helpers:
                    helper.cancel()
        finally:
            self._lanes.close()
            ticker.stop()
            self._keeper.close()
        self.events.emit(WorkerStopped(self.id, len(self.unfinished)))
        if self._crash is not None:
            raise self._crash

    def stop(self, *, now: bool = False) -> None:
        """Take nothing new and let running jobs end within the grace; ``now``: hand them back unspent at once.

        Harmless when repeated. On the worker's own loop; from elsewhere through ``call_soon_threadsafe``.
        """
        if (now and not self._now) or not self._stopping:
            self.events.emit(WorkerStopping(self.id, self._lanes.running, now))
        self._stopping = True
        self._now = self._now or now
        self._taker.stop()

    @property
    def running(self) -> int:
        """Handlers at work."""
        return self._lanes.running

    # -- wake -----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Pass on the store's wake-ups. They are hints: losing them all costs a poll interval."""
        failures = 0
        while True:
            try:
                if await self._store.wait(self.options.poll(hears=self._store.hears)):
                    self._taker.wake()
                failures = 0
            except StoreError as error:
                pause = min(0.1 * 2**failures, 5.0)
                failures += 1
                if failures == 1:
                    self.events.emit(StoreTrouble(self.id, "listen", str(error), pause))
                await self._clock.sleep(pause)

    # -- work and settle (Ending, for the lanes) --------------------------------------------------

    def started(self, held: Held) -> None:
        """A handler begins."""
        if self.events.wants(JobStarted):
            claim = held.claim
            self.events.emit(JobStarted(self.id, claim.lease.job_id, claim.task, claim.attempts))

    def ended(self, held: Held, outcome: Outcome | None, stop: Stop | None) -> None:
        """A handler ended: judge it, and put the settlement on the pile."""
        if held is self._taker.suspect:
            self._taker.suspect_ended()
        attempt, claim = held.attempt, held.claim
        assert attempt is not None
        if attempt.detached:
            self.events.emit(ThreadAbandoned(self.id, claim.lease.job_id, claim.task))
        if outcome is None:
            self._unrecorded(held, stop)
            return
        settlement = self._settlement(held, outcome)
        self._settler.add(Ended(held, settlement, self._clock.monotonic() - attempt.started))

    def _settlement(self, held: Held, outcome: Outcome) -> Settlement:
        claim, attempt = held.claim, held.attempt
        assert attempt is not None
        result = None
        if isinstance(outcome, Complete) and outcome.result is not None:
            result = self._encoded(claim, outcome.result)
        return settle(
            outcome,
            attempts=claim.attempts,
            max_attempts=claim.max_attempts,
            backoff=self._policy(claim).backoff,
            result=result,
            then=tuple(attempt.then),
        )

    def _encoded(self, claim: Claim[Any], result: object) -> str | None:
        """The result as JSON text; one that cannot be kept is dropped with an event, and the job stays completed."""
        encode: Callable[[object], str] | None = getattr(self._handler, "encode", None)
        if encode is None:
            return None
        try:
            return encode(result)
        except (ValueError, TypeError) as error:
            self.events.emit(ResultDropped(claim.lease.job_id, claim.task, str(error)))
            return None

    def _unrecorded(self, held: Held, stop: Stop | None) -> None:
        """It ended without an outcome to record: lost, returned unspent, or its child died."""
        assert held.attempt is not None
        lease = held.claim.lease
        if stop is Stop.RETURNED and held.attempt.detached:
            self.unfinished.append(lease)  # a thread still runs for it: its lease is kept to the last moment
            return
        self._leases.drop([held])
        if stop is Stop.LOST:
            why = "its lease ended before the handler did"
            self.events.emit(JobLost(self.id, lease.job_id, held.claim.task, why))
        elif stop is Stop.CRASHED:
            self._keeper.crashed(lease)
        else:
            self._keeper.give_back([held], "the worker stopped before its handler had ended")

    # -- beat ------------------------------------------------------------------------------------

    def _make_keeper(self, on_hang: Callable[[], None]) -> Keeper:
        keeper = Keeper(
            self._store.heart(),
            self._leases,
            self.options,
            self.events,
            self._clock,
            self.id,
            tell_lost=self._from_keeper(Stop.LOST),
            tell_canceled=self._from_keeper(Stop.CANCELED),
        )
        keeper.watch.driving = lambda: self._lanes.driving
        keeper.watch.timeout_of = lambda claim: self._policy(claim).timeout
        keeper.watch.on_hang = on_hang
        return keeper

    def _from_keeper(self, why: Stop) -> Callable[[list[Held]], None]:
        """What the keeper's thread hears about leases is done on the loop."""

        def tell(held: list[Held]) -> None:
            assert self._loop is not None
            for one in held:
                self._loop.call_soon_threadsafe(self._stop_one, one, why)

        return tell

    def _stop_one(self, held: Held, why: Stop) -> None:
        if held.phase is Phase.AHEAD and why is Stop.LOST:
            self._leases.drop([held])
        else:
            self._lanes.stop(held, why)

    async def _guard(self) -> None:
        """Stop handlers whose lease may be given away; show the watchdog that the loop runs."""
        while True:
            now = self._clock.monotonic()
            self._keeper.watch.seen()
            for held in self._leases.expired(now):
                self._stop_one(held, Stop.LOST)
            await self._clock.sleep(min(GUARD, self.options.lease / 20))

    # -- stop ------------------------------------------------------------------------------------

    async def _finish(self, poke: Callable[[], None]) -> None:
        """Hand back what has not started, let the rest end within the grace, then hand that back too."""
        self._keeper.give_back(self._leases.pull_ahead(float("inf")), "the worker stopped before it was started")
        poke()
        grace_ends = self._clock.monotonic() + self.options.grace
        await self._until(lambda: not self._lanes.running or self._now, grace_ends)
        self._lanes.stop_all(Stop.RETURNED)
        last = self._clock.monotonic() + LAST_PAUSE
        await self._until(lambda: not self._lanes.running, last)
        self.unfinished += [held.claim.lease for held in self._leases.all() if held.phase is Phase.RUNNING]
        await self._until(lambda: not self._settler.backlog, last)
        poke()
        await self._until(lambda: not self._keeper.owes, last)

    def _lane_crashed(self, error: BaseException) -> None:
        """A lane ended by itself, which is our own mistake: stop, and let ``run`` raise it. Nothing ends silently."""
        self._crash = error
        self.stop(now=True)

    async def _until(self, reached: Callable[[], bool], deadline: float) -> None:
        while not reached() and self._clock.monotonic() < deadline:
            await self._clock.sleep(0.005)
