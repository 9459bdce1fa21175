"""How the store is asked for work: by claims, by settlements that claim, and by a call that waits for a wake-up.

The reply to a claim that failed is lost: its token is abandoned, so that what it may have claimed goes back. After an
outage the worker waits for a beat before it claims again, for its leases may be lost too. Wake-ups are hints: losing
them all costs a poll interval, or for a cancellation a heartbeat interval.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stowhand.errors import SchemaError, StoreError
from stowhand.events import ClaimFinished, ClaimStarted, StoreCallFailed, StoreRecovered
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, Settlement
from stowhand.protocols.options import ONCE_PATIENCE, OUTAGE
from stowhand.protocols.store import Claim, ClaimRequest, Reply, SettleAndClaim, Store
from stowhand.worker.admission import Permit
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.host import CallTimer
from stowhand.worker.leases import HeldJob, Leases
from stowhand.worker.state import WorkerState

Tasks = tuple[str, ...] | None
MAX_CLAIMS_WITHOUT_SCHEMA = 6
"""Claims in a row, over some seconds, that may find no schema."""
FOREIGN_LEASES_INTERVAL_SECONDS = 1.0
"""Seconds between two requests for foreign leases: with ten thousand running jobs one takes three milliseconds."""
BEAT_CHECK_INTERVAL_SECONDS = 0.05
"""Seconds between two looks whether the store has answered a beat."""


class Claims:
    """Sends a worker's claims to the store, one at a time."""

    def __init__(self, store: Store[Any], leases: Leases, heartbeater: Heartbeater, state: WorkerState) -> None:
        self._store = store
        self._leases = leases
        self._heartbeater = heartbeater
        self._state = state
        self._events = state.events
        self._failures = 0
        self._foreign_requested_at = float("-inf")
        """When a claim last asked for foreign leases."""
        self._limit = 0
        """How many jobs the last claim asked for."""
        self.answered = 0
        """Claims so far that were answered, those of suspects apart."""
        self.call = CallTimer(state.clock)

    async def claim(self, permit: Permit, tasks: Tasks, *, suspects: bool = False) -> list[HeldJob]:
        """Claim as many jobs of these tasks as permitted, or one suspect. Return them, entered in ``Leases``."""
        state = self._state
        if state.is_ending:
            return []
        request = ClaimRequest(
            worker=state.worker,
            token=str(uuid.uuid4()),
            limit=1 if suspects else permit.limit,
            lease=state.options.lease,
            tasks=tasks,
            forbidden_flags=permit.flags,
            queues=state.queues,
            suspects=suspects,
            conditions=permit.conditions,
            ours=None if suspects else self._own_leases(),
        )
        if self._events.wants(ClaimStarted):
            self._events.emit(ClaimStarted(state.worker, request.limit))
        sent_at = state.clock.monotonic()
        self._limit = request.limit
        try:
            with self.call:
                claims = await self._store.claim(request)
        except (StoreError, asyncio.CancelledError) as error:
            self._heartbeater.abandon(request.token)
            if not isinstance(error, StoreError):
                raise  # the worker stops and waits no longer for the reply
            await self._recover(error)
            return []
        self.answered += not suspects
        if self._events.wants(ClaimFinished):
            self._events.emit(ClaimFinished(state.worker, len(claims), self.call.seconds))
        if self._failures:
            self._events.emit(StoreRecovered(state.worker, "claim", self._failures))
            self._failures = 0
        answered_at = state.clock.monotonic()
        return self._leases.take(claims, sent_at=sent_at, answered_at=answered_at, suspects=suspects) if claims else []

    def return_unstarted(self, suspect: HeldJob) -> None:
        """Return what was claimed ahead, except this suspect: if it kills the process, they are not implicated."""
        ahead = self._leases.take_unstarted(float("inf"), excluded=suspect)
        self._heartbeater.return_jobs(ahead, "claimed ahead, and a suspect runs now")

    @property
    def limit_underway(self) -> int:
        """How many jobs the claim that is on its way may bring."""
        return 0 if self.call.started_at is None else self._limit

    @property
    def last_failed(self) -> bool:
        """The next one waits for a beat."""
        return self._failures > 0

    @property
    def is_rationed(self) -> bool:
        """The store may give fewer than were asked for although there are more."""
        return self._store.capabilities.rations

    async def next_due(self) -> float | None:
        """Seconds until a job is due: 0 if one is due but was not claimed; ``None`` if none is known."""
        try:
            due = await self._store.next_due(self._state.tasks, self._state.queues)
        except StoreError:
            return None  # the next claim will report what is wrong
        if (foreign := self._store.foreign()) is not None:
            self._heartbeater.note_foreign(foreign)
        return due

    def poll_interval(self, *, leaves_due: bool) -> float:
        """Seconds until the next poll. It is not stretched while a due job cannot be claimed: nothing notifies of its
        release."""
        return self._state.options.poll(is_listening=self._store.is_listening and not leaves_due)

    def _own_leases(self) -> tuple[Lease, ...] | None:
        """``None``: this claim need not report foreign leases, a recent one did."""
        now = self._state.clock.monotonic()
        if now - self._foreign_requested_at < FOREIGN_LEASES_INTERVAL_SECONDS:
            return None
        self._foreign_requested_at = now
        return self._heartbeater.list_own_leases()

    async def _recover(self, error: StoreError) -> None:
        """Wait, and beat: then the store is asked again. Raises the error where that is no use."""
        state = self._state
        self._failures += 1
        if isinstance(error, SchemaError) and self._failures > MAX_CLAIMS_WITHOUT_SCHEMA:
            raise error  # the schema was removed: a worker that starts anew installs one, or says why it cannot
        if state.options.once and self._failures > ONCE_PATIENCE and not state.has_work:
            raise error  # a run that is to end by itself does not wait for the end of an outage
        pause = OUTAGE(self._failures)
        self._events.emit(StoreCallFailed(state.worker, "claim", str(error), pause))
        beats = self._heartbeater.beats
        self._heartbeater.beat_soon()
        await state.until(lambda: state.is_ending, pause)
        while len(self._leases) and self._heartbeater.beats == beats and not state.is_ending:
            await state.until(lambda: state.is_ending, BEAT_CHECK_INTERVAL_SECONDS)
        state.wake()


class Wakeups:
    """Wakes the claimer when the store has work, and the heartbeater, for a running job may have been canceled.

    One waiting call at a time, for as long as the worker lives.
    """

    def __init__(self, store: Store[Any], heartbeater: Heartbeater, state: WorkerState) -> None:
        self._store = store
        self._heartbeater = heartbeater
        self._state = state
        self._polls = store.terms is not None and store.terms.polls
        self._failures = 0
        self.call = CallTimer(state.clock)

    async def run(self) -> None:
        """Wait for wake-ups until cancelled."""
        while True:
            try:
                with self.call:
                    woken = await self._store.wait(self._state.options.poll(is_listening=self._store.is_listening))
            except StoreError as error:
                await self._pause(error)
                continue
            if not self._polls:
                self._check_listening()
            if woken:
                self._state.wake()
                self._heartbeater.find_canceled_soon()
                await asyncio.sleep(0)  # the claim is sent first, and the next wait begins while it is on its way

    def _check_listening(self) -> None:
        """Report once that no wake-ups come (no LISTEN in a pooler, a wrong address), so the store is polled."""
        state = self._state
        if self._store.is_listening:
            if self._failures:
                state.events.emit(StoreRecovered(state.worker, "listen", self._failures))
            self._failures = 0
        elif self._failures == 0:
            self._failures = 1
            poll = state.options.poll(is_listening=False)
            state.events.emit(StoreCallFailed(state.worker, "listen", "no wake-ups are heard: polling instead", poll))

    async def _pause(self, error: StoreError) -> None:
        self._failures += 1
        pause = OUTAGE(self._failures)
        if self._failures == 1:
            self._state.events.emit(StoreCallFailed(self._state.worker, "listen", str(error), pause))
        await self._state.clock.sleep(pause)


if TYPE_CHECKING:
    from stowhand.worker.claimer import Claimer

Entries = Sequence[tuple[Lease, Settlement]]
MAX_SETTLEMENTS_WITH_CLAIM = 16
"""Settlements in one call beyond which claims are worth a call of their own."""
MAX_JOBS_IN_ROW = 50
"""Jobs of a serial key that settlements claim before an ordinary claim has its turn."""
MAX_ROW_SECONDS = 0.1


class SuccessorClaims:
    """Settling claims: along with the end of a serial key's job its next one, in one transaction of the store.

    The jobs of a serial key follow each other one commit apart, instead of a settlement, a wake-up and a claim.
    Otherwise it is a claim like others: under a token made before the call, which is abandoned when the reply is lost,
    and only of what the claimer would claim too. What it would not claim any more when the reply comes goes back.

    In a row at most so many jobs, or so many seconds: then a claim has its turn, which takes what comes first in the
    order of all.
    """

    def __init__(
        self,
        settle_and_claim: SettleAndClaim,
        claimer: Claimer,
        claims: Claims,
        leases: Leases,
        heartbeater: Heartbeater,
        state: WorkerState,
    ) -> None:
        self._settle_and_claim = settle_and_claim
        self._claimer = claimer
        self._claims = claims
        self._leases = leases
        self._heartbeater = heartbeater
        self._state = state
        flags = state.options.forbidden_flags
        self._flags = () if callable(flags) else flags
        self._answered_before_row = 0
        """How many claims had been answered when the row of jobs began."""
        self._row_started_at = 0.0
        self._row_length = 0
        """Jobs claimed in a row without a claim in between."""

    def request(self, entries: Entries, serial_count: int) -> ClaimRequest | None:
        """What may be claimed along with these settlements, of which so many are of serial keys; ``None``: nothing."""
        if len(entries) > MAX_SETTLEMENTS_WITH_CLAIM or any(settlement is not COMPLETED for _, settlement in entries):
            return None
        state = self._state
        limit = min(serial_count, self._claimer.limit_along(state.tasks), self._left_in_row())
        if limit < 1:
            return None
        return ClaimRequest(
            worker=state.worker,
            token=str(uuid.uuid4()),
            limit=limit,
            lease=state.options.lease,
            tasks=state.tasks,
            forbidden_flags=self._flags,
            queues=state.queues,
        )

    async def settle(
        self, entries: Entries, request: ClaimRequest, call: CallTimer
    ) -> tuple[Sequence[Reply], set[str]]:
        """The replies, and the serial keys that go on. Raises StoreError; then the request is to be abandoned."""
        state, events = self._state, self._state.events
        if events.wants(ClaimStarted):
            events.emit(ClaimStarted(state.worker, request.limit))
        sent_at = state.clock.monotonic()  # a lease may begin at any moment from here on
        try:
            with call:
                replies, claims = await self._settle_and_claim(entries, request)
        except asyncio.CancelledError:
            self._heartbeater.abandon(request.token)
            raise
        if events.wants(ClaimFinished):
            events.emit(ClaimFinished(state.worker, len(claims), call.seconds))
        if claims:
            self._take(claims, request, sent_at)
        return replies, {claim.serial for claim in claims if claim.serial is not None}

    def abandon(self, request: ClaimRequest) -> asyncio.Event:
        """The reply was lost. The event: what it may have claimed is given back, or locked, and it claims no more."""
        expired = asyncio.Event()
        self._heartbeater.abandon(request.token, expired.set)
        self._state.clock.call_later(request.lease, expired.set)  # if the store is away: its lease is over then
        return expired

    def _take(self, claims: Sequence[Claim[Any]], request: ClaimRequest, sent_at: float) -> None:
        jobs = self._leases.take(claims, sent_at=sent_at, answered_at=self._state.clock.monotonic())
        if self._claimer.start_along(jobs, request.tasks):
            self._row_length += len(jobs)
        else:
            self._leases.drop(jobs)
            self._heartbeater.return_jobs(jobs, "claimed with a settlement, and the worker claims nothing now")
            self._heartbeater.tick_now()

    def _left_in_row(self) -> int:
        now = self._state.clock.monotonic()
        if self._claims.answered != self._answered_before_row or self._row_length == 0:
            self._answered_before_row = self._claims.answered
            self._row_started_at = now
            self._row_length = 0
        return MAX_JOBS_IN_ROW - self._row_length if now - self._row_started_at <= MAX_ROW_SECONDS else 0
