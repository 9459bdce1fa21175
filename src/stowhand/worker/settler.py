"""Records how attempts ended: everything that has piled up, in one call.

No timer: while one call is on its way, finished jobs pile up, and the next call takes them all. Alone on an idle queue
a job is settled at once; under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from typing import Any

from stowhand.errors import StoreError
from stowhand.events import JobEnded, JobLost, JobUnknown, Settled, StoreCallFailed, StoreRecovered
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome
from stowhand.protocols.attempt import Transaction, known_control_of
from stowhand.protocols.options import OUTAGE
from stowhand.protocols.store import RecordedSettlement, Reply, Store, Verdict
from stowhand.worker.claims import MAX_CHAINED, Successors
from stowhand.worker.host import Call
from stowhand.worker.leases import Held, Leases
from stowhand.worker.policy import Judge
from stowhand.worker.state import WorkerState

BATCH = 500
_OK = COMPLETED.ended
BUSY_PAUSE = 0.25


class Settler:
    """One call at a time, on the store's own settling connection."""

    def __init__(
        self,
        store: Store[Any],
        leases: Leases,
        judge: Judge,
        on_recorded: Callable[[Sequence[Held]], None],
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
        self._pile: list[Held] = []
        self._in_flight: list[Held] = []
        self._apart: set[Held] = set()
        """Locked by another transaction, or settled in the attempt's own: not on the pile, and not recorded."""
        self._arrived = asyncio.Event()
        self._failures = 0
        self.call = Call(state.clock)

    def add(self, held: Held) -> None:
        """Have the end of the attempt recorded."""
        self._state.unrecorded.add(held)
        attempt = held.attempt
        control = None if attempt is None else known_control_of(attempt)
        if control is not None and control.transaction is not None:
            self._settle_apart(held, control.transaction)
            return
        if not self._pile:
            self._arrived.set()
        self._pile.append(held)

    def _settle_apart(self, held: Held, transaction: Transaction) -> None:
        """Its settlement is written in the attempt's own transaction alone; in a task, for others need not wait."""

        async def settle() -> None:
            reply: Reply
            try:
                reply = await transaction.settle(held.settlement)
            except StoreError as error:
                self._events.emit(StoreCallFailed(self._worker, "settle", str(error), 0.0))
                reply = Verdict.UNKNOWN
            self._apart.discard(held)
            self._answer([held], [reply])
            self._state.look_again()

        self._apart.add(held)
        self._state.supervisor.start(settle())

    @property
    def underway(self) -> int:
        """Number of jobs on the pile or in the call on its way. Their slots become free together, soon."""
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
            for held in self._in_flight:
                held.repeat = True
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
        self._state.unrecorded.clear()
        for held in lost:
            claim = held.claim
            self._events.emit(JobUnknown(self._worker, claim.lease.job_id, claim.task, ended=held.settlement.ended))

    async def _record(self, batch: list[Held]) -> None:
        """Until the store has answered: after a lost reply the call is repeated, which the fence makes harmless.

        What has piled up meanwhile joins the call: where one settlement is at fault, another that passes shows it.
        """
        pairs = [(held.claim.lease, held.settlement) for held in batch]
        repeat = any(held.repeat for held in batch)
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
                for held in batch:
                    held.repeat = True
                await self._pause(error)
                if is_dead is not None:
                    await is_dead.wait()
                room = BATCH - len(batch)
                batch += self._pile[:room]
                self._pile = self._pile[room:]
                pairs = [(held.claim.lease, held.settlement) for held in batch]
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
        self._events.emit(StoreCallFailed(self._worker, "settle", str(error), pause))
        await self._clock.sleep(pause)

    def _answer(self, batch: list[Held], replies: Sequence[Reply], goes_on: Container[str | None] = ()) -> None:
        """``goes_on``: serial keys whose next job this worker holds already."""
        answered: list[Held] = []
        busy: list[Held] = []
        recorded: list[Held] = []
        claimable = False
        report, report_success = self._events.wants(JobEnded), self._events.wants(JobEnded, success=True)
        for held, reply in zip(batch, replies, strict=True):
            found = RecordedSettlement.of(held.settlement, reply)
            if found.verdict is Verdict.BUSY:
                busy.append(held)
                continue
            if found.verdict is Verdict.UNWRITTEN and self._try_another(held, found.why):
                continue
            answered.append(held)
            if held.on_answered is not None and held.attempt is not None:
                held.on_answered(held.attempt)
            if found.settlement is None:
                self._unsettled(held, found)
                continue
            held.settlement = found.settlement
            recorded.append(held)
            claimable = claimable or _makes_claimable(held, goes_on)
            if report and (report_success or held.settlement.ended is not _OK):
                self._events.emit(self._job_ended(held))
        self._state.unrecorded.difference_update(answered)
        self._leases.drop(answered)
        self._on_recorded(recorded)
        if busy:
            self._retry_later(busy)
        if claimable:
            self._state.wake()

    def _try_another(self, held: Held, why: str) -> bool:
        """Put another settlement on the pile, which the store may accept. False: it has refused every one."""
        held.refusals += 1
        attempt = held.attempt
        other = None if attempt is None else self._judge.instead(attempt, held.settlement, why, held.refusals)
        if other is None:
            return False
        held.settlement = other
        held.repeat = False
        self.add(held)
        return True

    def _retry_later(self, busy: list[Held]) -> None:
        """Other transactions have these rows locked: try again, apart from the rest; their leases stay renewed."""
        self._apart.update(busy)

        def again() -> None:
            self._apart.difference_update(busy)
            for held in busy:
                self.add(held)

        self._clock.call_later(BUSY_PAUSE, again)

    def _unsettled(self, held: Held, found: RecordedSettlement) -> None:
        claim = held.claim
        if found.verdict is Verdict.UNWRITTEN:
            why = f"the store refuses every settlement of it, so its lease will expire ({found.why})"
            self._events.emit(JobLost(self._worker, claim.lease.job_id, claim.task, why))
        elif found.verdict is Verdict.UNKNOWN:
            self._events.emit(JobUnknown(self._worker, claim.lease.job_id, claim.task))
        else:
            why = "its lease was given to another worker before the outcome could be recorded"
            self._events.emit(JobLost(self._worker, claim.lease.job_id, claim.task, why))

    def _job_ended(self, held: Held) -> JobEnded:
        claim, settlement = held.claim, held.settlement
        return JobEnded(
            worker=self._worker,
            job_id=claim.lease.job_id,
            task=claim.task,
            attempt=claim.attempts,
            max_attempts=claim.max_attempts,
            ended=settlement.ended,
            seconds=held.seconds,
            error=settlement.error,
            retry_in=settlement.delay if settlement.ended is AttemptOutcome.RETRY else None,
        )


def _queued(batch: Sequence[Held]) -> int:
    """How many of them are of a serial key."""
    return sum(held.claim.serial is not None for held in batch)


def _makes_claimable(held: Held, goes_on: Container[str | None]) -> bool:
    """Its serial key, the job itself, or jobs enqueued along with it."""
    settlement = held.settlement
    if settlement is COMPLETED:
        return held.claim.serial is not None and held.claim.serial not in goes_on
    return held.claim.serial is not None or not settlement.state.terminal or bool(settlement.then)
