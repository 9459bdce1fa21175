"""Records how attempts ended: everything that has piled up, in one call.

No timer: while one call is on its way, finished jobs pile up, and the next call takes them all. Alone on an idle queue
a job is settled at once; under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

from stowhand.errors import StoreError
from stowhand.events import JobEnded, JobLost, JobUnknown, Settled, StoreRecovered, StoreTrouble
from stowhand.jobs.lifecycle import COMPLETED, Settlement
from stowhand.protocols.handler import Attempt, Transaction, known_control_of
from stowhand.protocols.options import OUTAGE
from stowhand.protocols.store import Recorded, Reply, Store, Verdict
from stowhand.worker.host import Call
from stowhand.worker.judge import Judge
from stowhand.worker.leases import Held, Leases
from stowhand.worker.state import WorkerState

if TYPE_CHECKING:
    from stowhand.worker.claimer import Successors

BATCH = 500
_OK = COMPLETED.ended
BUSY_PAUSE = 0.25
MAX_CHAINED = 16
"""Settlements in one call beyond which claims are worth a call of their own."""


class PendingSettlement:
    """An ended attempt on its way to the store."""

    __slots__ = ("held", "on_answered", "refusals", "repeat", "settlement")

    def __init__(
        self,
        held: Held,
        settlement: Settlement,
        on_answered: Callable[[Attempt[Any]], None] | None = None,
    ) -> None:
        self.held = held
        self.settlement = settlement
        self.on_answered = on_answered
        """Called when the store has answered, whatever the reply."""
        self.repeat = False
        """An earlier call with it had no reply."""
        self.refusals = 0
        """How often the store has refused to write a settlement of it."""


class Settler:
    """One call at a time, on the store's own settling connection."""

    def __init__(
        self,
        store: Store[Any],
        leases: Leases,
        judge: Judge,
        on_recorded: Callable[[Sequence[PendingSettlement]], None],
        state: WorkerState,
    ) -> None:
        """``on_recorded``: called with those that the store has recorded."""
        self._store = store
        self._leases = leases
        self._judge = judge
        self._on_recorded = on_recorded
        self._state = state
        self._events = state.events
        self._clock = state.clock
        self._worker = state.worker
        self._successors: Successors | None = None
        """``None``: settlements claim nothing."""
        self._pile: list[PendingSettlement] = []
        self._in_flight: list[PendingSettlement] = []
        self._apart: set[PendingSettlement] = set()
        """Locked by another transaction, or settled in the attempt's own: not on the pile, and not recorded."""
        self._arrived = asyncio.Event()
        self._failures = 0
        self.call = Call(state.clock)

    def add(self, ended: PendingSettlement) -> None:
        """Have it recorded."""
        self._state.add_unrecorded(1)
        self._pile_up(ended)

    def _pile_up(self, ended: PendingSettlement) -> None:
        attempt = ended.held.attempt
        control = None if attempt is None else known_control_of(attempt)
        if control is not None and control.transaction is not None:
            self._settle_apart(ended, control.transaction)
            return
        if not self._pile:
            self._arrived.set()
        self._pile.append(ended)

    def _settle_apart(self, ended: PendingSettlement, transaction: Transaction) -> None:
        """Its settlement is written in the attempt's own transaction alone; in a task, for others need not wait."""

        async def settle() -> None:
            reply: Reply
            try:
                reply = await transaction.settle(ended.settlement)
            except StoreError as error:
                self._events.emit(StoreTrouble(self._worker, "settle", str(error), 0.0))
                reply = Verdict.UNKNOWN
            self._apart.discard(ended)
            self._answer([ended], [reply])
            self._state.look_again()

        self._apart.add(ended)
        self._state.supervisor.start(settle())

    @property
    def underway(self) -> int:
        """On the pile, or in the call that is on its way: their slots become free together, soon."""
        return len(self._pile) + len(self._in_flight)

    @property
    def promised(self) -> int:
        """How many jobs these may claim: slots that the claimer leaves to them."""
        if self._failures or self._successors is None:
            return 0
        return sum(_queued(batch) for batch in (self._pile, self._in_flight) if len(batch) <= MAX_CHAINED)

    async def run(self, successors: Successors | None) -> None:
        """Settle until cancelled. It may be run again: a call whose reply was lost is then repeated."""
        self._successors = successors
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._pile:
                    self._in_flight = self._pile[:BATCH]
                    self._pile = self._pile[BATCH:]
                    await self._record(self._in_flight)
                    self._in_flight = []
                self._state.look_again()
        except asyncio.CancelledError:
            for ended in self._in_flight:
                ended.repeat = True
            self._pile = self._in_flight + self._pile
            self._in_flight = []
            self._arrived.set()
            raise
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Emit an event for each outcome that no store has recorded, once. From any thread, as the last thing."""
        lost = (*self._in_flight, *self._pile, *self._apart)
        self._in_flight = []
        self._pile = []
        self._apart.clear()
        self._state.give_up_unrecorded()
        for ended in lost:
            claim = ended.held.claim
            self._events.emit(JobUnknown(self._worker, claim.lease.job_id, claim.task, ended=ended.settlement.ended))

    async def _record(self, batch: list[PendingSettlement]) -> None:
        """Until the store has answered: after a lost reply the call is repeated, which the fence makes harmless.

        What has piled up meanwhile joins the call: where one settlement is at fault, another that passes shows it.
        """
        pairs = [(ended.held.claim.lease, ended.settlement) for ended in batch]
        repeat = any(ended.repeat for ended in batch)
        successors = self._successors
        queued = 0 if successors is None or repeat else _queued(batch)
        request = successors.request(pairs, queued) if successors is not None and queued else None
        goes_on: Container[str | None] = ()
        while True:
            is_dead: asyncio.Event | None = None
            try:
                if successors is not None and request is not None:
                    replies, goes_on = await successors.settle(pairs, request, self.call)
                else:
                    with self.call:
                        replies = await self._store.settle(pairs, repeat=repeat)
            except StoreError as error:
                if successors is not None and request is not None:
                    is_dead, request = successors.abandon(request), None
                repeat = True
                for ended in batch:
                    ended.repeat = True
                await self._pause(error)
                if is_dead is not None:
                    await is_dead.wait()
                room = BATCH - len(batch)
                batch += self._pile[:room]
                self._pile = self._pile[room:]
                pairs = [(ended.held.claim.lease, ended.settlement) for ended in batch]
                continue
            if self._failures:
                self._events.emit(StoreRecovered(self._worker, "settle", self._failures))
                self._failures = 0
            if self._events.wants(Settled):
                job_ids = tuple(lease.job_id for lease, _ in pairs)
                self._events.emit(Settled(self._worker, len(batch), self.call.seconds, job_ids))
            self._answer(batch, replies, goes_on)
            return

    async def _pause(self, error: StoreError) -> None:
        self._failures += 1
        self._state.look_again()  # slots that were left to settlements are the claimer's now
        pause = OUTAGE(self._failures)
        self._events.emit(StoreTrouble(self._worker, "settle", str(error), pause))
        await self._clock.sleep(pause)

    def _answer(
        self, batch: list[PendingSettlement], replies: Sequence[Reply], goes_on: Container[str | None] = ()
    ) -> None:
        """``goes_on``: serial keys whose next job this worker holds already."""
        answered: list[Held] = []
        busy: list[PendingSettlement] = []
        recorded: list[PendingSettlement] = []
        claimable = False
        report, report_success = self._events.wants(JobEnded), self._events.wants(JobEnded, success=True)
        for ended, reply in zip(batch, replies, strict=True):
            found = Recorded.of(ended.settlement, reply)
            if found.verdict is Verdict.BUSY:
                busy.append(ended)
                continue
            if found.verdict is Verdict.UNWRITTEN and self._try_another(ended, found.why):
                continue
            answered.append(ended.held)
            if ended.on_answered is not None and ended.held.attempt is not None:
                ended.on_answered(ended.held.attempt)
            if found.settlement is None:
                self._unsettled(ended, found)
                continue
            ended.settlement = found.settlement
            recorded.append(ended)
            claimable = claimable or _makes_claimable(ended, goes_on)
            if report and (report_success or ended.settlement.ended is not _OK):
                self._events.emit(self._job_ended(ended))
        self._state.add_unrecorded(-len(answered))
        self._leases.drop(answered)
        self._on_recorded(recorded)
        if busy:
            self._retry_later(busy)
        if claimable:
            self._state.wake()

    def _try_another(self, ended: PendingSettlement, why: str) -> bool:
        """Put another settlement on the pile, which the store may accept. False: it has refused every one."""
        ended.refusals += 1
        attempt = ended.held.attempt
        other = None if attempt is None else self._judge.instead(attempt, ended.settlement, why, ended.refusals)
        if other is None:
            return False
        ended.settlement = other
        ended.repeat = False
        self._pile_up(ended)
        return True

    def _retry_later(self, busy: list[PendingSettlement]) -> None:
        """Other transactions have these rows locked: try again, apart from the rest; their leases stay renewed."""
        self._apart.update(busy)

        def again() -> None:
            self._apart.difference_update(busy)
            for ended in busy:
                self._pile_up(ended)

        self._clock.call_later(BUSY_PAUSE, again)

    def _unsettled(self, ended: PendingSettlement, found: Recorded) -> None:
        claim = ended.held.claim
        if found.verdict is Verdict.UNWRITTEN:
            why = f"the store refuses every settlement of it, so its lease will expire ({found.why})"
            self._events.emit(JobLost(self._worker, claim.lease.job_id, claim.task, why))
        elif found.verdict is Verdict.UNKNOWN:
            self._events.emit(JobUnknown(self._worker, claim.lease.job_id, claim.task))
        else:
            why = "its lease was given to another worker before the outcome could be recorded"
            self._events.emit(JobLost(self._worker, claim.lease.job_id, claim.task, why))

    def _job_ended(self, ended: PendingSettlement) -> JobEnded:
        claim, settlement = ended.held.claim, ended.settlement
        return JobEnded(
            worker=self._worker,
            job_id=claim.lease.job_id,
            task=claim.task,
            attempt=claim.attempts,
            max_attempts=claim.max_attempts,
            ended=settlement.ended,
            seconds=ended.held.seconds,
            error=settlement.error,
        )


def _queued(batch: Sequence[PendingSettlement]) -> int:
    """How many of them are of a serial key."""
    return sum(ended.held.claim.serial is not None for ended in batch)


def _makes_claimable(ended: PendingSettlement, goes_on: Container[str | None]) -> bool:
    """Its serial key, the job itself, or jobs enqueued along with it."""
    settlement = ended.settlement
    if settlement is COMPLETED:
        return ended.held.claim.serial is not None and ended.held.claim.serial not in goes_on
    return ended.held.claim.serial is not None or not settlement.state.terminal or bool(settlement.then)
