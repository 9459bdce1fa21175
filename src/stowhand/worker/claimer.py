"""Claims jobs: how many, when, and how long to sleep when there are none.

    limit    the free slots, and a little ahead in proportion to the measured rate: a slow handler hoards nothing,
             a fast one never waits for a round trip
    claim    one call, under a token made before it
    wait     until a slot falls free, a wake-up comes, a job falls due, or the poll interval has passed

Before it sleeps it has claimed once more after the last wake-up, so a wake-up is never slept through.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from stowhand.clock import Clock
from stowhand.errors import SchemaError, StoreError
from stowhand.events import Claimed, Claiming, Events, StoreRecovered, StoreTrouble
from stowhand.jobs.lease import Lease
from stowhand.protocols.options import OUTAGE, WorkerOptions
from stowhand.protocols.store import Claim, ClaimRequest, Store
from stowhand.worker.admission import Admission, Pause, Permit
from stowhand.worker.claim_size import ClaimSize
from stowhand.worker.executor import Executor
from stowhand.worker.fairness import Fairness
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.hooks import Hooks
from stowhand.worker.leases import Held, Leases, Phase
from stowhand.worker.liveness import Call
from stowhand.worker.settler import Settler
from stowhand.worker.suspects import NEVER, OVERDUE, Suspects

PATIENCE = 5.0
"""Seconds that the last claim may take when the worker stops."""
ONCE_PATIENCE = 9
"""Claims in a row that may fail before a run with ``once`` ends: some twenty seconds."""
SCHEMA_PATIENCE = 6
"""Claims in a row, over some seconds, that may find no schema."""
BACKLOG = 1000
"""Ended jobs not yet recorded, above which nothing new is claimed."""
LAST_LOOKS = 0.5
"""Seconds between two looks whether everything has ended, where no part signals it."""
FORESEE_EVERY = 1.0
"""Seconds between two requests for foreign leases: with ten thousand running jobs one takes three milliseconds."""


class Claimer:
    """The first of the worker's loops.

    Two calls end its waiting: ``wake`` means that the store may have work; ``look_again`` means that something changed
    in this worker, which is no reason to ask a store again that had nothing.
    """

    def __init__(
        self,
        store: Store[Any],
        executor: Executor,
        leases: Leases,
        settler: Settler,
        heartbeater: Heartbeater,
        hooks: Hooks,
        admission: Admission,
        options: WorkerOptions,
        events: Events,
        clock: Clock,
        worker: str,
    ) -> None:
        self._store = store
        self._executor = executor
        self._leases = leases
        self._settler = settler
        self._heartbeater = heartbeater
        self._hooks = hooks
        self._admission = admission
        self._options = options
        self._events = events
        self._clock = clock
        self._worker = worker
        self.tasks = options.tasks
        """Claim only these; may be changed at any time."""
        self.is_quiet = False
        """Claim nothing for the time being; call ``wake`` after a change."""
        self.call = Call(clock)
        self._claim_size = ClaimSize(executor, hooks, options, clock, one_by_one=admission.one_by_one)
        self._fairness = Fairness(fair=options.fair, tasks=options.tasks)
        self._suspects = Suspects(executor, events, clock, worker)
        self._task: asyncio.Task[Any] | None = None
        self._changed = asyncio.Event()
        self._stopping = False
        self._wakes = 0
        self._store_is_empty = False
        """The last claim brought nothing, and there was no wake-up since."""
        self._found_jobs = False
        """The last ordinary claim brought something: else suspects are asked for after the next one."""
        self._rest_is_over = False
        self._failures = 0
        self._foresaw_at = float("-inf")
        """When a claim last asked for foreign leases."""

    async def run(self) -> None:
        """Claim and start jobs until stopped, or, with ``once``, until nothing is due and nothing runs."""
        self._task = asyncio.current_task()
        if self._options.max_active_time is not None:
            self._clock.call_later(self._options.max_active_time, self._end_activity)
        while not self._stopping:
            self._changed.clear()
            if self._suspect_is_next:
                await self._suspect_first()
                continue
            if self._claim_size.is_spent:
                self._executor.resume()
                if not self._is_at_work:
                    return  # calls that a store has not answered yet are tried once more while the worker stops
                await self._rest(LAST_LOOKS)
                continue
            limit = 0 if self._store_is_empty or self._is_full else self._claim_size.limit()
            if self._hooks.holds_slots and limit < self._settler.underway:
                limit = 0  # more slots are about to fall free than are free: one claim for all of them
            if limit:
                returned = self._heartbeater.returned  # jobs given back during the claim may be invisible to it
                if await self._claim_any(limit) or self._heartbeater.returned != returned:
                    continue
                self._store_is_empty = True
                if self._options.once and self.is_idle:
                    return
            await self._wait()

    def stop(self) -> None:
        """Claim nothing more. A claim on its way is awaited, so that its jobs can be returned; but not for ever."""
        self._stopping = True
        self._changed.set()
        self._clock.call_later(PATIENCE, self._cancel)

    def _end_activity(self) -> None:
        self._claim_size.over = True
        self._changed.set()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def wake(self) -> None:
        """The store may have work."""
        self._wakes += 1
        self._store_is_empty = False
        self._changed.set()

    def look_again(self) -> None:
        """A slot fell free, or everything is settled. Not a reason to ask a store again that had nothing."""
        if self._options.once and self._store_is_empty and self.is_idle:
            self._store_is_empty = False  # claim once more before the end
        if self._claim_size.is_spent:
            self._rest_is_over = True
        self._changed.set()

    def suspect_ended(self) -> None:
        """The suspect has ended; ordinary jobs may run again."""
        self._suspects.ended()
        self.wake()

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits for a slot, or is on its way to the store."""
        return not (self._is_at_work or self._heartbeater.errands)

    @property
    def _is_at_work(self) -> bool:
        """Something runs, waits for a slot, or has ended and is not recorded."""
        executor = self._executor
        return bool(executor.running or executor.ready or self._settler.backlog or self._hooks.pending)

    # -- claim -----------------------------------------------------------------------------------

    async def _claim_any(self, limit: int) -> bool:
        """Claim. False when there was nothing, and no wake-up came meanwhile."""
        wakes = self._wakes
        permit = await self._admission.ask(free=self._claim_size.free, running=self._executor.running, limit=limit)
        if isinstance(permit, Pause):
            return await self._sit_out(permit) or self._wakes != wakes
        if await self._claim_in_turn(permit) or self._wakes != wakes:
            return True
        return await self._claim_suspect(permit) > 0 or self._wakes != wakes

    async def _sit_out(self, pause: Pause) -> bool:
        """Nothing may be claimed now. True: ask again at once, the pause is over."""
        if pause.pause is None:
            return False
        await self._rest(pause.pause)
        return True

    async def _claim_in_turn(self, permit: Permit) -> int:
        """Ordinary jobs: those of the tasks whose turn it is, or else of all."""
        tasks = self._fairness.next(self.tasks)
        found = await self._claim_ordinary(permit, tasks)
        if found or tasks is self.tasks:
            return found
        self._fairness.restart()
        return await self._claim_ordinary(permit, self.tasks)

    async def _claim_ordinary(self, permit: Permit, tasks: tuple[str, ...] | None) -> int:
        request = self._request(permit, tasks, limit=permit.limit, ours=self._own_leases())
        claimed = await self._claim(request)
        self._found_jobs = bool(claimed)
        if claimed:
            full = len(claimed) == request.limit or getattr(self._store, "rations", False)
            served = (held.claim.task for held in claimed)
            self._fairness.served(served, full=full, round_open=tasks is not self.tasks)
            self._start(claimed)
        return len(claimed)

    def _request(self, permit: Permit, tasks: tuple[str, ...] | None, **more: Any) -> ClaimRequest:
        return ClaimRequest(
            worker=self._worker,
            token=str(uuid.uuid4()),
            lease=self._options.lease,
            tasks=tasks,
            forbidden_flags=permit.flags,
            conditions=permit.conditions,
            **more,
        )

    def _start(self, claimed: Sequence[Held], *, first: bool = False) -> None:
        """Queue them for a slot, unless the worker stops: then it returns them as they are."""
        if not self._stopping:
            self._executor.add(claimed, first=first)

    async def _claim(self, request: ClaimRequest) -> list[Held]:
        """What the call brought, entered in ``Leases``."""
        if self._stopping:
            return []
        sent = self._clock.monotonic()
        try:
            claims = await self._call_store(request)
        except StoreError as error:
            await self._recover(request.token, error)
            return []
        except asyncio.CancelledError:
            self._heartbeater.abandon(request.token)  # the worker stops and waits no longer for the reply
            raise
        if self._failures:
            self._events.emit(StoreRecovered(self._worker, "claim", self._failures))
            self._failures = 0
        if not claims:
            return []
        self._claim_size.measure()
        if any(claim.resets for claim in claims):
            self._claim_size.forget()  # a worker died while it held one of these: claim few beside it
        return self._leases.take(claims, sent=sent, since=self._clock.monotonic(), suspects=request.suspects)

    def _own_leases(self) -> tuple[Lease, ...] | None:
        """``None``: this claim need not report foreign leases, a recent one did."""
        now = self._clock.monotonic()
        if now - self._foresaw_at < FORESEE_EVERY:
            return None
        self._foresaw_at = now
        return self._heartbeater.own_leases()

    async def _call_store(self, request: ClaimRequest) -> Sequence[Claim[Any]]:
        if self._events.wants(Claiming):
            self._events.emit(Claiming(self._worker, request.limit))
        with self.call:
            claims = await self._store.claim(request)
        if self._events.wants(Claimed):
            self._events.emit(Claimed(self._worker, len(claims), self.call.seconds))
        return claims

    async def _recover(self, token: str, error: StoreError) -> None:
        """The reply is lost: abandon the token, wait, and beat before the next claim: leases may be lost too."""
        self._heartbeater.abandon(token)
        self._failures += 1
        if isinstance(error, SchemaError) and self._failures > SCHEMA_PATIENCE:
            raise error  # the schema was removed: a worker that starts anew installs one, or says why it cannot
        if self._options.once and self._failures > ONCE_PATIENCE and not self._is_at_work:
            raise error  # a run that is to end by itself does not wait for the end of an outage
        pause = OUTAGE(self._failures)
        self._events.emit(StoreTrouble(self._worker, "claim", str(error), pause))
        beats = self._heartbeater.beats
        self._heartbeater.beat_soon()
        await self._rest(pause)
        while len(self._leases) and self._heartbeater.beats == beats and not self._stopping:
            await self._rest(0.05)
        self._wakes += 1  # as after a wake-up: claim again

    # -- suspects --------------------------------------------------------------------------------

    @property
    def _suspect_is_next(self) -> bool:
        """It is time to ask for a suspect before anything else, and there is a slot for it."""
        if self.is_quiet or self._claim_size.is_spent or not self._found_jobs:
            return False
        return self._suspects.is_time and self._claim_size.free > 0

    async def _suspect_first(self) -> None:
        """A slot is free, and suspects have not been asked for in a while: it is offered to them first."""
        permit = await self._admission.ask(free=self._claim_size.free, running=self._executor.running, limit=1)
        self._suspects.asked()  # whatever the answer is
        if isinstance(permit, Permit):
            await self._claim_suspect(permit, first=True)
        self._executor.resume()

    async def _claim_suspect(self, permit: Permit, *, first: bool = False) -> int:
        """A suspect runs apart: in a child process where there is one, else when nothing else runs.

        ``first``: other work waits, and is kept waiting.
        """
        alone = self._executor.can_isolate or (self.is_idle and not first)
        if self._suspects.is_held or not self._claim_size.free:
            return 0
        if not (alone or first or self._suspects.is_time):
            return 0
        self._suspects.asked()
        overdue = None if alone else OVERDUE
        for held in await self._claim(self._request(permit, self.tasks, limit=1, suspects=True, overdue=overdue)):
            self._suspects.taken(held)
            if alone:
                self._start([held], first=True)
            else:
                await self._make_way(held)
            return 1
        return 0

    async def _make_way(self, suspect: Held) -> None:
        """Claim nothing more, wait for what runs, one lease at most, and run the suspect: alone, if it can."""
        suspect.waits = True
        patience = self._options.lease
        self._suspects.clear(suspect, patience)
        ahead = self._leases.pull_ahead(NEVER)
        self._heartbeater.give_back(ahead, "claimed ahead, and a job in quarantine comes first")
        self._executor.resume()  # so that it drops them from its queue
        end = self._clock.monotonic() + patience
        timer = self._clock.call_later(patience, self._changed.set)
        await self._until(lambda: suspect.phase is Phase.GONE or not self._is_at_work or self._clock.monotonic() >= end)
        timer.cancel()
        suspect.waits = False
        if suspect.phase is not Phase.GONE and not self._stopping:
            self._suspects.go(suspect)
        self._start([suspect], first=True)

    # -- wait ------------------------------------------------------------------------------------

    @property
    def _is_full(self) -> bool:
        """Nothing may be claimed: the worker is quiet, a suspect runs alone, or too much waits to be recorded."""
        return self.is_quiet or self._suspects.runs_alone or self._settler.backlog > BACKLOG

    async def _wait(self) -> None:
        """Until something changes; when the store had nothing, until a wake-up, and at most for ``_nap``."""
        if not self._store_is_empty:
            await self._wait_for_room()
            return
        timer = self._clock.call_later(await self._nap(), self.wake)
        await self._until(lambda: not self._store_is_empty or self._claim_size.is_spent)
        timer.cancel()

    async def _wait_for_room(self) -> None:
        """Until something changes. From the time when suspects are due, no slot that falls free is filled before."""
        wait = NEVER
        if self._found_jobs and not (self._executor.on_hold or self.is_quiet):
            wait = self._suspects.wait
        timer = None if wait == NEVER else self._clock.call_later(max(wait, 0.0), self._hold)
        await self._changed.wait()
        if timer is not None:
            timer.cancel()

    def _hold(self) -> None:
        self._executor.hold()
        self._changed.set()

    async def _rest(self, seconds: float) -> None:
        """Sleep, unless stopped; a worker that is spent sleeps no longer than until ``look_again``."""
        self._rest_is_over = False
        timer = self._clock.call_later(seconds, self._end_rest)
        await self._until(lambda: self._rest_is_over)
        timer.cancel()

    def _end_rest(self) -> None:
        self._rest_is_over = True
        self._changed.set()

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Wait, whatever else changes, until it is reached or the worker stops."""
        while not (reached() or self._stopping):
            self._changed.clear()
            await self._changed.wait()

    async def _nap(self) -> float:
        """Seconds an idle worker may sleep: a poll interval, or less when a job falls due before."""
        poll = self._options.poll(is_listening=self._store.is_listening)
        try:
            due = await self._store.next_due(self.tasks)
        except StoreError:
            return poll  # the next claim will report what is wrong
        if (seen := self._store.foreign()) is not None:
            self._heartbeater.foresee(seen)
        if due is None:
            return poll
        if due <= 0:
            # What is due and was not claimed (its row is locked, its queue is busy) becomes free without a wake-up: no
            # reason to hurry, but no poll is stretched while it waits.
            return self._options.poll(is_listening=False)
        return min(poll, due + 0.001)
