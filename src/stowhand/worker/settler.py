"""Records how attempts ended: everything that has piled up, in one call.

No timer: while one call is on its way, finished jobs pile up, and the next call takes them all. Alone on an idle queue
a job is settled at once; under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from stowhand.clock import Clock
from stowhand.errors import StoreError
from stowhand.events import Events, JobEnded, JobLost, JobUnknown, Settled, StoreRecovered, StoreTrouble
from stowhand.jobs.lifecycle import COMPLETED, Settlement
from stowhand.protocols.handler import Attempt, Transaction, control_of
from stowhand.protocols.options import OUTAGE
from stowhand.protocols.store import Reply, Store, Unwritten, Verdict
from stowhand.worker.judge import Judge
from stowhand.worker.leases import Held, Leases
from stowhand.worker.liveness import Call

BATCH = 500
_OK = COMPLETED.ended
BUSY_PAUSE = 0.25


class Ended:
    """An ended attempt on its way to the store."""

    __slots__ = ("held", "marked", "refusals", "repeat", "settlement")

    def __init__(
        self, held: Held, settlement: Settlement, marked: Callable[[Attempt[Any]], None] | None = None
    ) -> None:
        self.held, self.settlement, self.marked = held, settlement, marked
        """``marked``: told when the store has answered, whatever it has."""
        self.repeat = False
        """An earlier call that carried it had no reply."""
        self.refusals = 0
        """How often the store has refused to write an end of it."""


class Settler:
    """One call at a time, on the store's own settling connection."""

    def __init__(
        self,
        store: Store[Any],
        leases: Leases,
        judge: Judge,
        events: Events,
        clock: Clock,
        worker: str,
    ) -> None:
        self._store, self._leases, self._judge = store, leases, judge
        self._events, self._clock, self._worker = events, clock, worker
        self.freed: Callable[[], None] = lambda: None
        """Told when something may have become claimable."""
        self.quiet: Callable[[], None] = lambda: None
        """Told when the pile is gone; what is busy may still come back."""
        self.soon: Callable[[Coroutine[Any, Any, None]], None]
        """Do this in a task of its own."""
        self._pile: list[Ended] = []
        self._flying: list[Ended] = []
        self._later_on: set[Ended] = set()
        """Held by somebody's transaction, or settled in one of their own: not on the pile, and not recorded."""
        self._arrived = asyncio.Event()
        self._failures = 0
        self.settled = 0
        self.call = Call(clock)

    def add(self, ended: Ended) -> None:
        """Put one on the pile."""
        attempt = ended.held.attempt
        if attempt is not None and (transaction := control_of(attempt).transaction) is not None:
            self._apart(ended, transaction)
            return
        if not self._pile:
            self._arrived.set()
        self._pile.append(ended)

    def _apart(self, ended: Ended, transaction: Transaction) -> None:
        """Its end is written in its own transaction, and nowhere else; in a task, since others need not wait for it."""

        async def settled() -> None:
            reply: Reply
            try:
                reply = await transaction.settle(ended.settlement)
            except StoreError as error:
                self._events.emit(StoreTrouble(self._worker, "settle", str(error), 0.0))
                reply = Verdict.UNKNOWN
            self._later_on.discard(ended)
            self._answer([ended], [reply])
            self.quiet()

        self._later_on.add(ended)
        self.soon(settled())

    @property
    def underway(self) -> int:
        """On the pile, or in the call that is on its way: their slots fall free together, soon."""
        return len(self._pile) + len(self._flying)

    @property
    def backlog(self) -> int:
        """Ended and not yet recorded."""
        return len(self._pile) + len(self._flying) + len(self._later_on)

    async def run(self) -> None:
        """Settle until cancelled; what no store has recorded by then is told."""
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._pile:
                    self._flying, self._pile = self._pile[:BATCH], self._pile[BATCH:]
                    await self._record(self._flying)
                    self._flying = []
                self.quiet()
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Tell what no store has recorded, once. From any thread, as the last thing."""
        lost = (*self._flying, *self._pile, *self._later_on)
        self._flying, self._pile = [], []
        self._later_on.clear()
        for ended in lost:
            claim = ended.held.claim
            self._events.emit(JobUnknown(self._worker, claim.lease.job_id, claim.task, ended=ended.settlement.ended))

    async def _record(self, batch: list[Ended]) -> None:
        """Until the store has answered: a lost reply is repeated as it is, the fence makes that harmless."""
        pairs = [(ended.held.claim.lease, ended.settlement) for ended in batch]
        while True:
            try:
                with self.call:
                    replies = await self._store.settle(pairs, repeat=any(ended.repeat for ended in batch))
            except StoreError as error:
                for ended in batch:
                    ended.repeat = True
                await self._pause(error)
                continue
            if self._failures:
                self._events.emit(StoreRecovered(self._worker, "settle", self._failures))
                self._failures = 0
            if self._events.wants(Settled):
                self._events.emit(Settled(self._worker, len(batch), self.call.seconds))
            self._answer(batch, replies)
            return

    async def _pause(self, error: StoreError) -> None:
        self._failures += 1
        pause = OUTAGE(self._failures)
        self._events.emit(StoreTrouble(self._worker, "settle", str(error), pause))
        await self._clock.sleep(pause)

    def _answer(self, batch: list[Ended], replies: Sequence[Reply]) -> None:
        gone: list[Held] = []
        busy: list[Ended] = []
        freed = False
        tell, tell_success = self._events.wants(JobEnded), self._events.wants(JobEnded, success=True)
        for ended, reply in zip(batch, replies, strict=True):
            if reply is Verdict.BUSY:
                busy.append(ended)
                continue
            if isinstance(reply, Unwritten) and self._instead(ended, reply.why):
                continue
            gone.append(ended.held)
            if ended.marked is not None and ended.held.attempt is not None:
                ended.marked(ended.held.attempt)
            if isinstance(reply, Settlement):
                ended.settlement = reply  # what is told is what was recorded
            elif isinstance(reply, Unwritten) or not (reply is Verdict.SETTLED or reply is Verdict.ALREADY_SETTLED):
                self._unsettled(ended, reply)
                continue
            self.settled += 1
            freed = freed or _frees(ended)
            if tell and (tell_success or ended.settlement.ended is not _OK):
                self._events.emit(self._ended(ended))
        self._leases.drop(gone)
        if busy:
            self._later(busy)
        if freed:
            self.freed()

    def _instead(self, ended: Ended, why: str) -> bool:
        """Put another end on the pile, which the store may take. False: it has refused every one."""
        ended.refusals += 1
        attempt = ended.held.attempt
        other = None if attempt is None else self._judge.instead(attempt, ended.settlement, why, ended.refusals)
        if other is None:
            return False
        ended.settlement, ended.repeat = other, False
        self.add(ended)
        return True

    def _later(self, busy: list[Ended]) -> None:
        """Somebody's transaction holds these rows: try them again, apart from the others, their leases kept alive."""
        self._later_on.update(busy)

        def again() -> None:
            self._later_on.difference_update(busy)
            for ended in busy:
                self.add(ended)

        self._clock.call_later(BUSY_PAUSE, again)

    def _unsettled(self, ended: Ended, reply: Verdict | Unwritten) -> None:
        claim = ended.held.claim
        if isinstance(reply, Unwritten):
            why = f"the store refuses every end that it could have, so it is left to its lease ({reply.why})"
            self._events.emit(JobLost(self._worker, claim.lease.job_id, claim.task, why))
        elif reply is Verdict.UNKNOWN:
            self._events.emit(JobUnknown(self._worker, claim.lease.job_id, claim.task))
        else:
            why = "its lease was given to somebody else before the outcome could be recorded"
            self._events.emit(JobLost(self._worker, claim.lease.job_id, claim.task, why))

    def _ended(self, ended: Ended) -> JobEnded:
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


def _frees(ended: Ended) -> bool:
    """Did its settlement make something claimable: its queue, itself, or jobs enqueued along with it?"""
    settlement = ended.settlement
    if settlement is COMPLETED:
        return ended.held.claim.queue is not None
    return ended.held.claim.queue is not None or not settlement.state.terminal or bool(settlement.then)
