"""Records the settlements of ended attempts: all pending ones in one call.

There is no timer. While one call is under way, settlements collect, and the next call takes them all. On an idle queue
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
from stowhand.protocols.options import OUTAGE_BACKOFF
from stowhand.protocols.store import RecordedSettlement, Reply, Store, Verdict
from stowhand.worker.claims import MAX_SETTLEMENTS_WITH_CLAIM, SuccessorClaims
from stowhand.worker.host import CallTimer
from stowhand.worker.leases import HeldJob, Leases
from stowhand.worker.policy import HandlerPolicies
from stowhand.worker.state import WorkerState

MAX_SETTLEMENTS_PER_CALL = 500
BUSY_RETRY_SECONDS = 0.25
"""Delay before a job is settled again whose row another transaction locks."""


class Settler:
    """Recorder of settlements: one call at a time, on the store's own settling connection."""

    def __init__(
        self,
        store: Store[Any],
        leases: Leases,
        policies: HandlerPolicies,
        on_recorded: Callable[[Sequence[HeldJob]], None],
        state: WorkerState,
    ) -> None:
        """``on_recorded`` is called with the jobs whose settlements the store has recorded."""
        self._store = store
        self._leases = leases
        self._policies = policies
        self._on_recorded = on_recorded
        self._state = state
        self._events = state.events
        self._clock = state.clock
        self._worker = state.worker
        self._successors: SuccessorClaims | None = None
        """``None`` if settlements do not claim."""
        self._pending: list[HeldJob] = []
        self._in_flight: list[HeldJob] = []
        self._separate: set[HeldJob] = set()
        """Unrecorded jobs that are not pending: locked by another transaction, or settled in the attempt's own."""
        self._arrived = asyncio.Event()
        self._failures = 0
        self.call = CallTimer(state.clock)

    def add(self, job: HeldJob) -> None:
        """Record the settlement of this job soon."""
        self._state.unrecorded.add(job)
        attempt = job.attempt
        control = None if attempt is None else known_control_of(attempt)
        if control is not None and control.transaction is not None:
            self._settle_in_transaction(job, control.transaction)
            return
        if not self._pending:
            self._arrived.set()
        self._pending.append(job)

    def _settle_in_transaction(self, job: HeldJob, transaction: Transaction) -> None:
        """Write the settlement in the attempt's own transaction, in a side task so that other jobs do not wait."""

        async def settle() -> None:
            reply: Reply
            try:
                reply = await transaction.settle(job.settlement)
            except StoreError as error:
                self._events.emit(StoreCallFailed(self._worker, "settle", str(error), 0.0))
                reply = Verdict.UNKNOWN
            self._separate.discard(job)
            self._answer([job], [reply])
            self._state.notify_change()

        self._separate.add(job)
        self._state.supervisor.start(settle())

    @property
    def unanswered(self) -> int:
        """Number of settlements that are pending or in the call under way. Their slots soon become free together."""
        return len(self._pending) + len(self._in_flight)

    @property
    def promised_claims(self) -> int:
        """Number of jobs that these settlements may claim: the claimer leaves slots for them."""
        if self._failures or self._successors is None:
            return 0
        return sum(
            _count_serial(batch)
            for batch in (self._pending, self._in_flight)
            if len(batch) <= MAX_SETTLEMENTS_WITH_CLAIM
        )

    async def run(self, successors: SuccessorClaims | None) -> None:
        """Settle until cancelled. A second run repeats a call whose reply was lost."""
        self._successors = successors
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._pending:
                    self._in_flight = self._pending[:MAX_SETTLEMENTS_PER_CALL]
                    self._pending = self._pending[MAX_SETTLEMENTS_PER_CALL:]
                    await self._record(self._in_flight)
                    self._in_flight = []
                self._state.notify_change()
        except asyncio.CancelledError:
            for job in self._in_flight:
                job.was_sent = True
            self._pending = self._in_flight + self._pending
            self._in_flight = []
            self._arrived.set()
            raise
        except BaseException:
            self.report_unrecorded()
            raise

    def report_unrecorded(self) -> None:
        """Emit an event for each outcome that the store has not recorded. The last call, from any thread."""
        lost = (*self._in_flight, *self._pending, *self._separate)
        self._in_flight = []
        self._pending = []
        self._separate.clear()
        self._state.unrecorded.clear()
        for job in lost:
            claim = job.claim
            self._events.emit(JobUnknown(self._worker, claim.lease.job_id, claim.task, outcome=job.settlement.ended))

    async def _record(self, batch: list[HeldJob]) -> None:
        """Record a batch. After a lost reply the call is repeated, which the fence makes harmless.

        Settlements that have arrived meanwhile join the repeated call. If a settlement causes the error, one that
        succeeds shows that the store works.
        """
        pairs = [(job.claim.lease, job.settlement) for job in batch]
        repeat = any(job.was_sent for job in batch)
        successors = self._successors
        serial_count = 0 if successors is None or repeat else _count_serial(batch)
        request = successors.request(pairs, serial_count) if successors is not None and serial_count else None
        continued_keys: Container[str | None] = ()
        while True:
            expired: asyncio.Event | None = None
            try:
                if successors is not None and request is not None:
                    replies, continued_keys = await successors.settle(pairs, request, self.call)
                else:
                    with self.call:
                        replies = await self._store.settle(pairs, repeat=repeat)
            except StoreError as error:
                if successors is not None and request is not None:
                    expired, request = successors.abandon(request), None
                repeat = True
                for job in batch:
                    job.was_sent = True
                await self._pause(error)
                if expired is not None:
                    await expired.wait()
                free_entries = MAX_SETTLEMENTS_PER_CALL - len(batch)
                batch += self._pending[:free_entries]
                self._pending = self._pending[free_entries:]
                pairs = [(job.claim.lease, job.settlement) for job in batch]
                continue
            if self._failures:
                self._events.emit(StoreRecovered(self._worker, "settle", self._failures))
                self._failures = 0
            if self._events.wants(Settled):
                job_ids = tuple(lease.job_id for lease, _ in pairs)
                self._events.emit(Settled(self._worker, len(batch), self.call.seconds, job_ids))
            self._answer(batch, replies, continued_keys)
            return

    async def _pause(self, error: StoreError) -> None:
        self._failures += 1
        self._state.notify_change()  # the claimer may fill the slots reserved for settlements
        pause = OUTAGE_BACKOFF(self._failures)
        self._events.emit(StoreCallFailed(self._worker, "settle", str(error), pause))
        await self._clock.sleep(pause)

    def _answer(
        self, batch: list[HeldJob], replies: Sequence[Reply], continued_keys: Container[str | None] = ()
    ) -> None:
        """Process the replies. ``continued_keys``: serial keys whose next jobs this worker already holds."""
        answered: list[HeldJob] = []
        busy: list[HeldJob] = []
        recorded: list[HeldJob] = []
        claimable = False
        report, report_success = self._events.wants(JobEnded), self._events.wants(JobEnded, success=True)
        for job, reply in zip(batch, replies, strict=True):
            result = RecordedSettlement.of(job.settlement, reply)
            if result.verdict is Verdict.BUSY:
                busy.append(job)
                continue
            if result.verdict is Verdict.UNWRITTEN and self._try_another(job, result.reason):
                continue
            answered.append(job)
            if job.on_answered is not None and job.attempt is not None:
                job.on_answered(job.attempt)
            if result.settlement is None:
                self._unsettled(job, result)
                continue
            job.settlement = result.settlement
            recorded.append(job)
            claimable = claimable or _makes_claimable(job, continued_keys)
            if report and (report_success or job.settlement.ended is not AttemptOutcome.OK):
                self._events.emit(self._job_ended(job))
        self._state.unrecorded.difference_update(answered)
        self._leases.drop(answered)
        self._on_recorded(recorded)
        if busy:
            self._retry_later(busy)
        if claimable:
            self._state.wake()

    def _try_another(self, job: HeldJob, reason: str) -> bool:
        """Try another settlement that the store may accept. Return False if it has refused all of them."""
        job.refusals += 1
        attempt = job.attempt
        alternative = (
            None
            if attempt is None
            else self._policies.fallback_settlement(attempt, job.settlement, reason, job.refusals)
        )
        if alternative is None:
            return False
        job.settlement = alternative
        job.was_sent = False
        self.add(job)
        return True

    def _retry_later(self, busy: list[HeldJob]) -> None:
        """Retry jobs whose rows other transactions lock, apart from the rest. Their leases are still renewed."""
        self._separate.update(busy)

        def retry() -> None:
            self._separate.difference_update(busy)
            for job in busy:
                self.add(job)

        self._clock.call_later(BUSY_RETRY_SECONDS, retry)

    def _unsettled(self, job: HeldJob, result: RecordedSettlement) -> None:
        claim = job.claim
        if result.verdict is Verdict.UNWRITTEN:
            reason = f"the store refuses every settlement of this job, so its lease will expire ({result.reason})"
            self._events.emit(JobLost(self._worker, claim.lease.job_id, claim.task, reason))
        elif result.verdict is Verdict.UNKNOWN:
            self._events.emit(JobUnknown(self._worker, claim.lease.job_id, claim.task))
        else:
            reason = "its lease was lost before its outcome could be recorded"
            self._events.emit(JobLost(self._worker, claim.lease.job_id, claim.task, reason))

    def _job_ended(self, job: HeldJob) -> JobEnded:
        claim, settlement = job.claim, job.settlement
        return JobEnded(
            worker=self._worker,
            job_id=claim.lease.job_id,
            task=claim.task,
            attempt=claim.attempts,
            max_attempts=claim.max_attempts,
            outcome=settlement.ended,
            seconds=job.seconds,
            error=settlement.error,
            retry_in=settlement.delay if settlement.ended is AttemptOutcome.RETRY else None,
        )


def _count_serial(batch: Sequence[HeldJob]) -> int:
    """Count the jobs with a serial key."""
    return sum(job.claim.serial is not None for job in batch)


def _makes_claimable(job: HeldJob, continued_keys: Container[str | None]) -> bool:
    """Return whether the settlement makes jobs claimable: the next of its serial key, itself, or new ones."""
    settlement = job.settlement
    if settlement is COMPLETED:
        return job.claim.serial is not None and job.claim.serial not in continued_keys
    return job.claim.serial is not None or not settlement.state.terminal or bool(settlement.then)
