"""Takes jobs: how many, when, and how long to sleep when there are none.

    limit    the free slots, and a little ahead in proportion to the measured rate: a slow handler hoards nothing,
             a fast one never waits for a round trip
    claim    one call, under a token made before it
    pause    until a slot falls free, a wake-up comes, something falls due, or the poll interval has passed

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
"""Seconds that the last claim may take when the worker has been told to stop."""
ONCE_PATIENCE = 9
"""Claims in a row that may fail before a run that works once ends: some twenty seconds."""
SCHEMA_PATIENCE = 6
"""Claims in a row, over some seconds, that may find no schema."""
BACKLOG = 1000
"""Ended jobs not yet recorded, above which nothing new is claimed."""
LAST_LOOKS = 0.5
"""Seconds between two looks whether all has ended, where nobody says so."""
FORESEE_EVERY = 1.0
"""Seconds between two questions about foreign leases: over ten thousand running jobs one takes three milliseconds."""


class Claimer:
    """The first of the worker's verbs."""

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
        self._store, self._executor, self._leases = store, executor, leases
        self._settler, self._heartbeater, self._options = settler, heartbeater, options
        self._hooks, self._admission = hooks, admission
        self._events, self._clock, self._worker = events, clock, worker
        self.tasks = options.tasks
        """Claim only these; may be changed at any time."""
        self._claim_size = ClaimSize(executor, hooks, options, clock, one_by_one=admission.one_by_one)
        self._fairness = Fairness(fair=options.fair, tasks=options.tasks)
        self.call = Call(clock)
        self._stir = asyncio.Event()
        self._stopping = self._risen = False
        self._wakes = 0
        self._dry = False  # the last claim brought nothing, and nothing has woken us since
        self._failures = 0
        self._fruitful = False
        """The last ordinary claim brought something: else suspects are asked for after the next one."""
        self.quiet = False
        """Claim nothing for the time being; ``stir`` when that has changed."""
        self._task: asyncio.Task[Any] | None = None
        self._suspects = Suspects(executor, events, clock, worker)
        self._foresaw = float("-inf")  # when we last asked about foreign leases

    async def run(self) -> None:
        """Claim and start until stopped, or, with ``once``, until nothing is due and nothing runs."""
        self._task = asyncio.current_task()
        if self._options.max_active_time is not None:
            self._clock.call_later(self._options.max_active_time, self._end_activity)
        while not self._stopping:
            self._stir.clear()
            if self._suspect_is_next:
                await self._suspect_first()
                continue
            if self._claim_size.is_spent:
                self._executor.go_on()
                if not self._is_at_work:
                    return  # what is still owed to a store that is away is tried once more while the worker stops
                await self._rest(LAST_LOOKS)
                continue
            limit = 0 if self._dry or self._is_full else self._claim_size.limit()
            if self._hooks.holds_slots and 0 < limit < self._settler.underway:
                limit = 0  # more slots are about to fall free than are free: one claim for all of them
            if limit:
                returned = self._heartbeater.returned  # what goes back while it looks, it may not see
                if await self._look(limit) or self._heartbeater.returned != returned:
                    continue
                self._dry = True
                if self._options.once and self.is_idle:
                    return
            await self._pause()

    def stop(self) -> None:
        """Take nothing more. A claim on its way is awaited, so that what it brings can go back; but not for ever."""
        self._stopping = True
        self._stir.set()
        self._clock.call_later(PATIENCE, self._end)

    def _end_activity(self) -> None:
        self._claim_size.over = True
        self._stir.set()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def wake(self) -> None:
        """There may be new work."""
        self._wakes += 1
        self._dry = False
        self._stir.set()

    def stir(self) -> None:
        """A slot fell free, or everything is settled. Not a reason to ask a store again that had nothing."""
        if self._options.once and self._dry and self.is_idle:
            self._dry = False  # look once more before leaving
        self._risen = self._risen or self._claim_size.is_spent
        self._stir.set()

    def suspect_ended(self) -> None:
        """The job in quarantine is done; ordinary ones may run again."""
        self._suspects.ended()
        self.wake()

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits for a slot, or is on its way to the store."""
        return not (self._is_at_work or self._heartbeater.owes)

    @property
    def _is_at_work(self) -> bool:
        """Something runs, waits for a slot, or has ended and is not recorded."""
        executor = self._executor
        return bool(executor.running or executor.ready or self._settler.backlog or self._hooks.pending)

    # -- claim -----------------------------------------------------------------------------------

    async def _look(self, limit: int) -> bool:
        """Claim. False when there was nothing, and nobody has woken us meanwhile."""
        seen = self._wakes
        leave = await self._admission.ask(free=self._claim_size.free, running=self._executor.running, limit=limit)
        if isinstance(leave, Pause):
            return await self._turned_away(leave) or self._wakes != seen
        if await self._claim_in_turn(leave) or self._wakes != seen:
            return True
        return await self._claim_suspect(leave) > 0 or self._wakes != seen

    async def _turned_away(self, shut: Pause) -> bool:
        """Nothing may be claimed now. True: ask again at once, the pause is over."""
        if shut.pause is not None:
            await self._rest(shut.pause)
        return shut.pause is not None

    async def _claim_in_turn(self, leave: Permit) -> int:
        """Ordinary jobs: those of the tasks whose turn it is, or else of all."""
        asked = self._fairness.next(self.tasks)
        found = await self._claim(leave, asked)
        if found or asked is self.tasks:
            return found
        self._fairness.restart()
        return await self._claim(leave, self.tasks)

    async def _claim(self, leave: Permit, tasks: tuple[str, ...] | None) -> int:
        """Ordinary jobs."""
        request = self._request(leave, tasks, limit=leave.limit, ours=self._ours())
        claimed = await self._held(request)
        self._fruitful = bool(claimed)
        if claimed:
            full = len(claimed) == request.limit or getattr(self._store, "rations", False)
            turn = (held.claim.task for held in claimed)
            self._fairness.served(turn, full=full, round_open=tasks is not self.tasks)
            self._start(claimed)
        return len(claimed)

    def _request(self, leave: Permit, tasks: tuple[str, ...] | None, **more: Any) -> ClaimRequest:
        return ClaimRequest(
            worker=self._worker,
            token=str(uuid.uuid4()),
            lease=self._options.lease,
            tasks=tasks,
            forbidden_flags=leave.flags,
            conditions=leave.conditions,
            **more,
        )

    def _start(self, claimed: Sequence[Held], *, first: bool = False) -> None:
        """Let them run, unless the worker stops: then it hands them back as they are."""
        if not self._stopping:
            self._executor.add(claimed, first=first)

    async def _held(self, request: ClaimRequest) -> list[Held]:
        """What the call brought, entered in the book."""
        if self._stopping:
            return []
        sent = self._clock.monotonic()
        try:
            claims = await self._ask(request)
        except StoreError as error:
            await self._give_up(request.token, error)
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
            self._claim_size.forget()  # a worker died in this company: few are to pay for it again
        return self._leases.take(claims, sent=sent, since=self._clock.monotonic(), suspects=request.suspects)

    def _ours(self) -> tuple[Lease, ...] | None:
        """To be told of foreign leases, if it was long ago."""
        now = self._clock.monotonic()
        if now - self._foresaw < FORESEE_EVERY:
            return None
        self._foresaw = now
        return self._heartbeater.ours()

    async def _ask(self, request: ClaimRequest) -> Sequence[Claim[Any]]:
        """The call itself, told to whoever wants to know."""
        if self._events.wants(Claiming):
            self._events.emit(Claiming(self._worker, request.limit))
        with self.call:
            claims = await self._store.claim(request)
        if self._events.wants(Claimed):
            self._events.emit(Claimed(self._worker, len(claims), self.call.seconds))
        return claims

    async def _suspect_first(self) -> None:
        """A slot is free, and it is long since suspects were asked for: it is theirs before anybody else's."""
        leave = await self._admission.ask(free=self._claim_size.free, running=self._executor.running, limit=1)
        self._suspects.asked()  # whatever the answer is
        if isinstance(leave, Permit):
            await self._claim_suspect(leave, first=True)
        self._executor.go_on()

    async def _claim_suspect(self, leave: Permit, *, first: bool = False) -> int:
        """A job that workers died under runs apart: in a child where there is one, else when nothing else runs.

        ``first``: other work waits, and is kept waiting.
        """
        alone = self._executor.can_isolate or (self.is_idle and not first)
        if self._suspects.is_held or not self._claim_size.free or not (alone or first or self._suspects.is_time):
            return 0
        self._suspects.asked()
        overdue = None if alone else OVERDUE
        for held in await self._held(self._request(leave, self.tasks, limit=1, suspects=True, overdue=overdue)):
            self._suspects.taken(held)
            if alone:
                self._start([held], first=True)
            else:
                await self._make_way(held)
            return 1
        return 0

    async def _make_way(self, suspect: Held) -> None:
        """Take nothing more, wait for what runs, one lease at most, and let it run: alone, if it can."""
        suspect.waits = True
        patience = self._options.lease
        self._suspects.clear(suspect, patience)
        self._heartbeater.give_back(
            self._leases.pull_ahead(NEVER), "claimed ahead, and a job in quarantine comes first"
        )
        self._executor.go_on()  # to see that they are gone
        end = self._clock.monotonic() + patience
        timer = self._clock.call_later(patience, self._stir.set)
        await self._until(lambda: suspect.phase is Phase.GONE or not self._is_at_work or self._clock.monotonic() >= end)
        timer.cancel()
        suspect.waits = False
        if suspect.phase is not Phase.GONE and not self._stopping:
            self._suspects.go(suspect)
        self._start([suspect], first=True)

    @property
    def _suspect_is_next(self) -> bool:
        """It is time to ask for one before anything else, and there is a slot for it."""
        may = self._fruitful and not self.quiet and not self._claim_size.is_spent
        return may and self._suspects.is_time and self._claim_size.free > 0

    @property
    def _is_full(self) -> bool:
        """Nothing may be claimed: a job in quarantine runs alone, too much waits to be recorded, or we are quiet."""
        return self.quiet or self._suspects.runs_alone or self._settler.backlog > BACKLOG

    async def _give_up(self, token: str, error: StoreError) -> None:
        """The reply is lost: abandon the token, wait, and beat before going on, for the store may have forgotten us."""
        self._heartbeater.abandon(token)
        self._failures += 1
        if isinstance(error, SchemaError) and self._failures > SCHEMA_PATIENCE:
            raise error  # somebody removed the schema: a worker that starts anew installs one, or says why it cannot
        if self._options.once and self._failures > ONCE_PATIENCE and not self._is_at_work:
            raise error  # nobody waits for the end of an outage with a run that is to end by itself
        pause = OUTAGE(self._failures)
        self._events.emit(StoreTrouble(self._worker, "claim", str(error), pause))
        beats = self._heartbeater.beats
        self._heartbeater.beat_soon()
        await self._rest(pause)
        while len(self._leases) and self._heartbeater.beats == beats and not self._stopping:
            await self._rest(0.05)
        self._wakes += 1  # whatever woke us meanwhile, ask again

    # -- pause -----------------------------------------------------------------------------------

    async def _pause(self) -> None:
        """Until stirred; when the store had nothing, until woken, and no longer than a nap."""
        if not self._dry:
            await self._while_full()
            return
        timer = self._clock.call_later(await self._nap(), self.wake)
        await self._until(lambda: not self._dry or self._claim_size.is_spent)
        timer.cancel()

    async def _while_full(self) -> None:
        """Until stirred. When it is time to ask for suspects, no slot that falls free is filled before."""
        wait = self._suspects.wait if self._fruitful and not (self._executor.holds or self.quiet) else NEVER
        timer = None if wait == NEVER else self._clock.call_later(max(wait, 0.0), self._hold)
        await self._stir.wait()
        if timer is not None:
            timer.cancel()

    def _hold(self) -> None:
        self._executor.hold()
        self._stir.set()

    async def _rest(self, seconds: float) -> None:
        """Sleep, unless stopped."""
        self._risen = False
        timer = self._clock.call_later(seconds, self._rise)
        await self._until(lambda: self._risen)
        timer.cancel()

    def _rise(self) -> None:
        self._risen = True
        self._stir.set()

    async def _until(self, over: Callable[[], bool]) -> None:
        """Wait, however often stirred, until it is over or the worker stops."""
        while not (over() or self._stopping):
            self._stir.clear()
            await self._stir.wait()

    async def _nap(self) -> float:
        """Seconds an idle worker may sleep: a poll interval, or less when something falls due before."""
        poll = self._options.poll(is_listening=self._store.is_listening)
        try:
            due = await self._store.next_due(self.tasks)
        except StoreError:
            return poll  # the next claim will say what is wrong
        if (seen := self._store.foreign()) is not None:
            self._heartbeater.foresee(seen)
        if due is None:
            return poll
        # What is due and was not claimed (locked by somebody, behind a busy queue) frees itself without a word to us:
        # it must not hurry us, but no poll is stretched while it waits.
        return self._options.poll(is_listening=False) if due <= 0 else min(poll, due + 0.001)
