"""Calls that ask the store for work: claims, settlements that claim a successor, and the wait for a wake-up.

If a claim fails, its reply may be lost: its token is abandoned, so that the jobs which it may have claimed return to
the queue. After an outage the worker waits for a successful beat before it claims again, because its leases may be
lost too. Wake-ups are hints: without them jobs start a poll interval later, and cancellations arrive with a heartbeat.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stowhand.errors import SchemaError, StoreError
from stowhand.events import ClaimFinished, ClaimStarted, StoreCallFailed, StoreRecovered
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, Settlement
from stowhand.protocols.options import MAX_ONCE_FAILURES, OUTAGE_BACKOFF
from stowhand.protocols.store import Claim, ClaimRequest, Reply, SettleAndClaim, Store
from stowhand.worker.admission import Permit
from stowhand.worker.heartbeater import Heartbeater
from stowhand.worker.host import CallTimer
from stowhand.worker.leases import HeldJob, Leases, Phase
from stowhand.worker.state import WorkerState

Tasks = tuple[str, ...] | None
MAX_CLAIMS_WITHOUT_SCHEMA = 6
"""Number of consecutive claims, over some seconds, that may find no schema."""
FOREIGN_LEASES_INTERVAL_SECONDS = 1.0
"""Minimum interval of requests for foreign leases: with ten thousand running jobs one takes three milliseconds."""
BEAT_CHECK_INTERVAL_SECONDS = 0.05
"""Interval of the check whether the store has answered a beat."""


class Claims:
    """Sender of a worker's claims, one at a time."""

    def __init__(self, store: Store[Any], leases: Leases, heartbeater: Heartbeater, state: WorkerState) -> None:
        self._store = store
        self._leases = leases
        self._heartbeater = heartbeater
        self._state = state
        self._events = state.events
        self._failures = 0
        self._foreign_requested_at = float("-inf")
        """When a claim last requested foreign leases."""
        self._limit = 0
        """Number of jobs that the last claim requested."""
        self.answered = 0
        """Number of answered claims so far, except those of suspects."""
        self.call = CallTimer(state.clock)

    async def claim(self, permit: Permit, tasks: Tasks, *, suspects: bool = False) -> list[HeldJob]:
        """Claim as many jobs of these tasks as permitted, or one suspect. Add them to ``Leases`` and return them."""
        state = self._state
        rooms = self._rooms()
        tasks = _without_full(tasks, rooms)
        if state.is_ending or tasks == ():
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
            free_slots=max(state.free_slots - len(state.ready), 0),
            task_rooms=rooms,
            own_leases=None if suspects else self._own_leases(),
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
                raise  # the worker stops and does not wait for the reply
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
        """Return the other unstarted jobs to the queue, in case this suspect kills the process."""
        ahead = self._leases.take_unstarted(float("inf"), excluded=suspect)
        self._heartbeater.return_jobs(ahead, "claimed ahead, but a suspect runs now")

    @property
    def limit_underway(self) -> int:
        """Number of jobs that the claim under way may return."""
        return 0 if self.call.started_at is None else self._limit

    @property
    def last_failed(self) -> bool:
        """Whether the last claim failed, so that the next one waits for a beat."""
        return self._failures > 0

    @property
    def is_rationed(self) -> bool:
        """Whether the store may return fewer jobs than requested although there are more."""
        return self._store.capabilities.rations

    async def next_due(self) -> float | None:
        """Return the seconds until a job is due: 0 if one is due but was not claimed; ``None`` if none is known."""
        if (tasks := _without_full(self._state.tasks, self._rooms())) == ():
            return None
        try:
            due = await self._store.next_due(tasks, self._state.queues)
        except StoreError:
            return None  # the next claim will report the error
        if (foreign := self._store.foreign()) is not None:
            self._heartbeater.note_foreign(foreign)
        return due

    def poll_interval(self, *, is_job_left: bool) -> float:
        """Return the seconds until the next poll.

        While a due job cannot be claimed, the interval is short: no notification follows when it becomes claimable.
        """
        return self._state.options.poll(is_listening=self._store.is_listening and not is_job_left)

    def _rooms(self) -> dict[str, int]:
        """Return how many jobs this worker may still claim, for each task with a limit in each worker."""
        limits = self._state.limits_per_worker
        if not limits:
            return {}
        held_jobs = (job for job in self._leases.all() if job.phase in (Phase.UNSTARTED, Phase.RUNNING))
        counts = Counter(job.claim.task for job in held_jobs)
        return {task: max(limit - counts[task], 0) for task, limit in limits.items()}

    def _own_leases(self) -> tuple[Lease, ...] | None:
        """Return this worker's leases; ``None`` if a recent claim has requested foreign leases."""
        now = self._state.clock.monotonic()
        if now - self._foreign_requested_at < FOREIGN_LEASES_INTERVAL_SECONDS:
            return None
        self._foreign_requested_at = now
        return self._heartbeater.list_own_leases()

    async def _recover(self, error: StoreError) -> None:
        """Wait for a beat before the next claim. Raise the error if waiting is useless."""
        state = self._state
        self._failures += 1
        if isinstance(error, SchemaError) and self._failures > MAX_CLAIMS_WITHOUT_SCHEMA:
            raise error  # the schema was removed: a restarted worker installs it, or reports why not
        if state.options.once and self._failures > MAX_ONCE_FAILURES and not state.has_work:
            raise error  # a run with ``once`` does not wait for the end of an outage
        pause = OUTAGE_BACKOFF(self._failures)
        self._events.emit(StoreCallFailed(state.worker, "claim", str(error), pause))
        beats = self._heartbeater.beats
        self._heartbeater.beat_soon()
        await state.until(lambda: state.is_ending, pause)
        while len(self._leases) and self._heartbeater.beats == beats and not state.is_ending:
            await state.until(lambda: state.is_ending, BEAT_CHECK_INTERVAL_SECONDS)
        state.wake()


def _without_full(tasks: Tasks, rooms: Mapping[str, int]) -> Tasks:
    """Return the tasks of which this worker may claim a job."""
    if tasks is None or not rooms:
        return tasks
    return tuple(task for task in tasks if rooms.get(task) != 0)


class Wakeups:
    """Loop that waits for the store's notifications.

    It wakes the claimer, and the heartbeater too, because a running job may have been canceled.
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
                await asyncio.sleep(0)  # let the claim be sent before the next wait starts

    def _check_listening(self) -> None:
        """Report once that no notifications arrive (a pooler without LISTEN, a wrong address): the store is polled."""
        state = self._state
        if self._store.is_listening:
            if self._failures:
                state.events.emit(StoreRecovered(state.worker, "listen", self._failures))
            self._failures = 0
        elif self._failures == 0:
            self._failures = 1
            poll = state.options.poll(is_listening=False)
            state.events.emit(StoreCallFailed(state.worker, "listen", "no wake-ups arrive: polling instead", poll))

    async def _pause(self, error: StoreError) -> None:
        self._failures += 1
        pause = OUTAGE_BACKOFF(self._failures)
        if self._failures == 1:
            self._state.events.emit(StoreCallFailed(self._state.worker, "listen", str(error), pause))
        await self._state.clock.sleep(pause)


if TYPE_CHECKING:
    from stowhand.worker.claimer import Claimer

Entries = Sequence[tuple[Lease, Settlement]]
MAX_SETTLEMENTS_WITH_CLAIM = 16
"""Number of settlements in one call above which a separate claim costs little."""
MAX_JOBS_IN_ROW = 50
"""Number of jobs that settlements claim in a row before an ordinary claim is due."""
MAX_ROW_SECONDS = 0.1


class SuccessorClaims:
    """Claims of the next job of a serial key in the transaction that settles the previous one.

    Each job of a serial key then takes one commit instead of a settlement, a wake-up and a claim. Otherwise these
    claims are like all others: the token is created before the call and abandoned if the reply is lost, and only jobs
    that the claimer would claim are requested. If the worker stops claiming before the reply, the jobs return to the
    queue.

    After ``MAX_JOBS_IN_ROW`` jobs or ``MAX_ROW_SECONDS`` an ordinary claim follows, so that other jobs get their turn.
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
        """Number of answered claims when the current row of jobs started."""
        self._row_started_at = 0.0
        self._row_length = 0
        """Number of jobs claimed by settlements since the last ordinary claim."""

    def request(self, entries: Entries, serial_count: int) -> ClaimRequest | None:
        """Return the claim to send with these settlements, if any. ``serial_count``: how many have a serial key."""
        if len(entries) > MAX_SETTLEMENTS_WITH_CLAIM or any(settlement is not COMPLETED for _, settlement in entries):
            return None
        state = self._state
        limit = min(serial_count, self._claimer.settlement_claim_limit(state.tasks), self._left_in_row())
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
        """Settle and claim. Return the replies, and the serial keys whose next jobs were claimed.

        On StoreError the caller must abandon the request.
        """
        state, events = self._state, self._state.events
        if events.wants(ClaimStarted):
            events.emit(ClaimStarted(state.worker, request.limit))
        sent_at = state.clock.monotonic()  # the store may count the lease from any time after this
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
        """Abandon a request whose reply was lost.

        The returned event is set when the request can claim nothing more, and its jobs are returned or locked.
        """
        expired = asyncio.Event()
        self._heartbeater.abandon(request.token, expired.set)
        self._state.clock.call_later(request.lease, expired.set)  # if the store is away: the lease has expired by then
        return expired

    def _take(self, claims: Sequence[Claim[Any]], request: ClaimRequest, sent_at: float) -> None:
        jobs = self._leases.take(claims, sent_at=sent_at, answered_at=self._state.clock.monotonic())
        if self._claimer.start_from_settlement(jobs, request.tasks):
            self._row_length += len(jobs)
        else:
            self._leases.drop(jobs)
            self._heartbeater.return_jobs(jobs, "claimed with a settlement, but the worker claims nothing now")
            self._heartbeater.tick_now()

    def _left_in_row(self) -> int:
        now = self._state.clock.monotonic()
        if self._claims.answered != self._answered_before_row or self._row_length == 0:
            self._answered_before_row = self._claims.answered
            self._row_started_at = now
            self._row_length = 0
        return MAX_JOBS_IN_ROW - self._row_length if now - self._row_started_at <= MAX_ROW_SECONDS else 0
