"""Keeps leases valid while the worker's loop is busy: one tick, called repeatedly on a loop in a separate thread.

    beat      renew leases; learn which are lost, canceled or locked
    return    return jobs to the queue that were claimed but not started, or that stopped unfinished
    cancel    after a wake-up, find running jobs whose cancellation was requested
    sweep     reset the jobs of lost workers
    count     write the throughput (reports.py)
    report    write this worker's entry in the list of workers, and the progress of its handlers (reports.py)

A failed call is repeated at the next tick; it stops no handler. Each lease has a local deadline, which the worker's
loop checks (``Worker._guard``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from stowhand.clock import Clock, Ticker
from stowhand.errors import SchemaTooNew, StoreError
from stowhand.events import HeartbeatFinished, JobsReturned, StoreCallFailed, StoreRecovered
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import slack
from stowhand.protocols.attempt import ProgressKeeper, Stop
from stowhand.protocols.options import OUTAGE_BACKOFF
from stowhand.protocols.store import CancellationFinder, Foreign, Heartbeats
from stowhand.worker.leases import HeldJob, Leases, Phase, leases_of
from stowhand.worker.limits import Limits
from stowhand.worker.reports import (
    RETRY_DELAY_SECONDS,
    ProgressBoard,
    Registration,
    ThroughputCounter,
    ThroughputWriter,
)
from stowhand.worker.resetter import Sweeper, SweepTimes
from stowhand.worker.state import WorkerState
from stowhand.worker.watchdog import LoopWatchdog

MAX_UNSTARTED_SECONDS = 1.0
"""Time after which a job that has not started is returned to the queue."""
MAX_LOST_TOKENS = 100
"""Maximum number of lost claims that wait to be abandoned."""
TICK_SECONDS = 0.5
MIN_TICK_SECONDS = 0.01
DEREGISTER_TIMEOUT_SECONDS = 1.0
"""Time that a stopping worker waits for the removal of its entry in the list of workers."""
CHECK_INTERVAL_SECONDS = 2.0
"""Interval of the check that the store is writable."""
CHECK_DURATION_SECONDS = 60.0
"""Time for which these checks continue after a health probe. Probes come every few seconds."""


class Heartbeater:
    """Thread whose loop calls ``tick`` until the worker stops.

    It renews nothing while the worker's loop hangs, so that other workers can take its jobs.
    """

    def __init__(
        self,
        heartbeats: Heartbeats,
        leases: Leases,
        watchdog: LoopWatchdog,
        counter: ThroughputCounter,
        limits: Limits,
        state: WorkerState,
    ) -> None:
        self._heartbeats = heartbeats
        self._leases = leases
        self._watchdog = watchdog
        self._registration = Registration(heartbeats, watchdog, limits, state)
        self._throughput = ThroughputWriter(state.worker, counter, state.events)
        self._state = state
        self._options = state.options
        self._events = state.events
        self._clock = state.clock
        self._worker = state.worker
        self._sweeper = _sweeper_of(heartbeats, counter, state)
        self._write_check = WriteCheck(heartbeats, state.clock)
        self.progress = (
            ProgressBoard(heartbeats, state.options.lease) if isinstance(heartbeats, ProgressKeeper) else None
        )
        """``None`` if the store keeps no progress."""
        self._finder = heartbeats if isinstance(heartbeats, CancellationFinder) else None
        """``None`` if only beats report cancellations."""
        self._should_find_canceled = False
        self._ticker: Ticker | None = None
        self._lock = threading.Lock()
        self._returns: list[tuple[list[Lease], str]] = []
        self._lost_tokens: dict[str, Callable[[], None] | None] = {}
        """Tokens of claims without a reply, with callbacks for when they can claim nothing more."""
        self._crashed: list[Lease] = []
        self._failures = 0
        self._refused_since: float | None = None
        self._should_beat_now = False
        self.beats = 0
        """Number of successful beats. After an outage the worker waits for one before it claims."""
        self.ticked_at = state.clock.monotonic()
        """When a tick last started or ended. Older than two seconds only if a call to the store hangs."""

    # -- called by the worker's loop -------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, which watches the caller's thread."""
        self._watchdog.watch_this_thread()
        ticks = (self._state.supervisor.watch_tick(tick) for tick in (self._watchdog.look, self.tick))
        self._ticker = self._clock.ticker("stowhand heartbeat", *ticks, on_end=self._heartbeats.close)

    def tick_now(self) -> None:
        """Call ``tick`` now."""
        if self._ticker is not None:
            self._ticker.poke()

    def stop(self) -> None:
        """Start to end the thread. A tick under way may finish within its time limit."""
        if self._ticker is not None:
            self._ticker.stop()

    async def close(self) -> None:
        """End the thread and close the connection. Raises errors of the thread that are bugs."""
        if self._ticker is None:
            await self._heartbeats.close()
        else:
            self.stop()
            with suppress(StoreError):  # an unreachable store has no connection to close
                await self._ticker.ended()

    def return_jobs(self, held_jobs: list[HeldJob], reason: str) -> None:
        """Return jobs to the queue at the next tick, attempt not counted. ``Leases`` has forgotten them already."""
        if held_jobs:
            with self._lock:
                self._returns.append((leases_of(held_jobs), reason))
                self._count_pending_calls()

    def abandon(self, token: str, on_abandoned: Callable[[], None] | None = None) -> None:
        """Abandon a claim whose reply was lost. In a long outage the oldest are forgotten: their leases have expired.

        ``on_abandoned`` is called on the worker's loop when the token can claim nothing more, unless it was forgotten.
        """
        with self._lock:
            self._lost_tokens[token] = on_abandoned
            if len(self._lost_tokens) > MAX_LOST_TOKENS:
                del self._lost_tokens[next(iter(self._lost_tokens))]
            self._count_pending_calls()
        if on_abandoned is not None:
            self.tick_now()

    def report_child_crash(self, lease: Lease) -> None:
        """Reset this job at the next tick, because its child process died."""
        with self._lock:
            self._crashed.append(lease)
            self._count_pending_calls()

    def _count_pending_calls(self) -> None:
        """Update the number of pending calls. Called under the lock."""
        self._state.set_pending_calls(len(self._returns) + len(self._lost_tokens) + len(self._crashed))

    def list_own_leases(self) -> tuple[Lease, ...]:
        """Return the leases that this worker renews; all others are foreign. Callable from any thread."""
        now = self._clock.monotonic()
        return tuple(job.claim.lease for job in self._leases.all() if self._is_worth_renewing(job, now))

    def note_foreign(self, foreign: Foreign) -> None:
        """Schedule the next sweep for the end of the first of these leases, seen by a claim that found no job."""
        self._sweeper.note_foreign(foreign)

    def refused_since(self) -> float | None:
        """Return since when the store refuses writes; ``None`` if it does not. Prolongs the write checks."""
        self._write_check.note_probe()
        return self._refused_since

    def find_canceled_soon(self) -> None:
        """Look for canceled jobs at the next tick, within half a second: the store has changed."""
        self._should_find_canceled = True

    def beat_soon(self) -> None:
        """Renew all leases at the next tick, due or not."""
        self._should_beat_now = True

    def deregister(self) -> float:
        """Write the last counts and remove the worker's entry at the next tick, unless the store is unreachable.

        Returns the seconds to wait for that.
        """
        if self._failures:
            return 0.0
        self._throughput.finish()
        self._registration.remove()
        return DEREGISTER_TIMEOUT_SECONDS

    @property
    def is_deregistering(self) -> bool:
        """Whether the last counts or the removal of the worker's entry are still pending."""
        return self._throughput.is_finishing or self._registration.is_removing

    # -- the tick --------------------------------------------------------------------------------

    async def tick(self) -> float:
        """Do one round. Return the seconds until the next."""
        now = self.ticked_at = self._clock.monotonic()
        try:
            await self._beat(now)
            await self._find_canceled()
            stale = self._leases.take_unstarted(now - MAX_UNSTARTED_SECONDS)
            self.return_jobs(stale, "claimed ahead and not started within a second")
            await self._make_pending_calls()
            await self._sweeper.tick(last_work_at=self._last_work_at(now), list_own_leases=self.list_own_leases)
            await self._write_check.tick(now)
            await self._throughput.tick(self._heartbeats, now)
            await self._registration.tick(now)
            if self.progress is not None:
                await self.progress.tick(now, self._is_beat_due)
        except SchemaTooNew:
            raise  # this version must not write to a newer schema
        except StoreError as error:
            return self._failed(error, now)
        finally:
            self.ticked_at = self._clock.monotonic()
            if self._state.is_stopping:
                self._state.from_thread(self._state.notify_change)  # the stop waits for the pending calls
        if self._failures and self._is_written:
            self._events.emit(StoreRecovered(self._worker, "beat", self._failures))
            self._failures = 0
            self._refused_since = None
        return self._pause()

    def _failed(self, error: StoreError, now: float) -> float:
        """Report the error. Return the seconds until the next tick."""
        self._failures += 1
        if self._refused_since is None:
            self._refused_since = now
        pause = float(min(OUTAGE_BACKOFF(self._failures), self._options.every_beat / 2, 2.0))
        if self._failures == 1 or self._failures % 10 == 0:
            retry_in = pause if self._is_written else max(pause, RETRY_DELAY_SECONDS)
            self._events.emit(StoreCallFailed(self._worker, "beat", str(error), retry_in))
        return pause

    @property
    def _is_written(self) -> bool:
        """Whether the last write succeeded. A tick without an error may have had nothing to write."""
        return self._registration.is_recorded and self._write_check.succeeded

    def _last_work_at(self, now: float) -> float:
        """Return when the worker last had a job."""
        return now if len(self._leases) else self._leases.taken_at

    def _pause(self) -> float:
        """Return the seconds until the next tick: at most until unstarted jobs are returned, or the next sweep."""
        now = self._clock.monotonic()
        sweep = self._sweeper.due(self._last_work_at(now)) - now
        pause = min(TICK_SECONDS, self._options.every_beat / 2, max(sweep, MIN_TICK_SECONDS))
        oldest = self._leases.oldest_unstarted()
        if oldest is not None:
            pause = min(pause, max(oldest + MAX_UNSTARTED_SECONDS - self._clock.monotonic(), MIN_TICK_SECONDS))
        return float(pause)

    def _is_beat_due(self) -> bool:
        return self._should_beat_now or bool(
            self._leases.due_for_renewal(self._clock.monotonic(), self._options.every_beat)
        )

    async def _beat(self, now: float) -> None:
        due = (
            self._leases.all() if self._should_beat_now else self._leases.due_for_renewal(now, self._options.every_beat)
        )
        due = [job for job in due if self._is_worth_renewing(job, now)]
        # Reset before the await: a full heartbeat may be requested again meanwhile.
        is_full = self._should_beat_now
        self._should_beat_now = False
        try:
            if due:
                await self._renew(due)
        except BaseException:  # a cancelled tick included
            self._should_beat_now = self._should_beat_now or is_full
            raise
        if due or is_full:
            self.beats += 1

    async def _renew(self, due: list[HeldJob]) -> None:
        sent_at = self._clock.monotonic()  # before the await: the store may count the lease from any later time
        pulse = await self._heartbeats.beat(leases_of(due), self._options.lease)
        if self._events.wants(HeartbeatFinished):
            self._events.emit(HeartbeatFinished(self._worker, len(due), self._clock.monotonic() - sent_at))
        self._sweeper.refusals.report()
        not_renewed = pulse.lost | pulse.busy | pulse.refused
        self._leases.set_renewed((job for job in due if job.claim.lease.pair not in not_renewed), sent_at)
        for job in self._leases.find(pulse.busy):  # not renewed, so due again at the next tick
            self._leases.extend_busy(job, sent_at + self._options.every_beat)
        for job in self._leases.find(pulse.lost):
            self._state.from_thread(self._leases.lose, job)
        for job in self._leases.find(pulse.canceled):
            self._state.from_thread(self._leases.stop, job, Stop.CANCELED)

    async def _find_canceled(self) -> None:
        if self._finder is None or not self._should_find_canceled:
            return
        self._should_find_canceled = False  # before the await: another wake-up may come meanwhile
        held_jobs = [job for job in self._leases.all() if job.stop_reason is None]
        if not held_jobs:
            return
        try:
            canceled = self._leases.find(await self._finder.find_canceled(leases_of(held_jobs)))
        except BaseException:
            self._should_find_canceled = True
            raise
        for job in canceled:
            self._should_find_canceled |= job.phase is Phase.UNSTARTED  # no handler runs that could be stopped
            self._state.from_thread(self._leases.stop, job, Stop.CANCELED)

    def _is_worth_renewing(self, job: HeldJob, now: float) -> bool:
        """Return whether to renew the job. Handlers that ignore a stop, and a loop that hangs, lose their jobs."""
        if self._watchdog.is_hung:
            return False
        return job.stopped_at is None or now - job.stopped_at < 3 * self._options.lease

    async def _make_pending_calls(self) -> None:
        """Make the pending calls. Each stays until the store has answered, and may be repeated."""
        while self._crashed:
            self._sweeper.report(await self._heartbeats.reset_lease(self._crashed[0]))
            with self._lock:
                self._crashed.pop(0)
                self._count_pending_calls()
        for token, on_abandoned in tuple(self._lost_tokens.items()):
            is_done = await self._heartbeats.abandon(token)
            if on_abandoned is not None:
                self._state.from_thread(on_abandoned)
            with self._lock:
                if is_done:
                    self._lost_tokens.pop(token, None)  # it may have been forgotten meanwhile
                elif token in self._lost_tokens:
                    self._lost_tokens[token] = None
                self._count_pending_calls()
        for _ in range(len(self._returns)):
            leases, reason = self._returns[0]
            busy = await self._heartbeats.release(leases)
            # Jobs whose release is refused return to the queue when their leases expire.
            refused = {refusal.job_id for refusal in self._sweeper.refusals.report()}
            self._state.add_returned(len(leases) - len(busy))  # before ``pending_calls`` can be 0
            with self._lock:
                self._returns.pop(0)
                if busy:  # locked by another transaction: if forgotten, they would be reset as if this worker were lost
                    self._returns.append((list(busy), reason))
                self._count_pending_calls()
            released = (lease.job_id for lease in leases if lease not in busy)
            if job_ids := tuple(job_id for job_id in released if job_id not in refused):
                self._events.emit(JobsReturned(self._worker, job_ids, reason))


class WriteCheck:
    """Check that the store is writable, made while health probes arrive. An idle worker would not notice otherwise."""

    def __init__(self, heartbeats: Heartbeats, clock: Clock) -> None:
        self._heartbeats = heartbeats
        self._clock = clock
        self._probed_at = float("-inf")
        self._checked_at = float("-inf")
        self.succeeded = True
        """Whether the last check succeeded."""

    def note_probe(self) -> None:
        """Note a health probe: more may follow. Callable from any thread."""
        self._probed_at = self._clock.monotonic()

    async def tick(self, now: float) -> None:
        """Check if it is time. Raises StoreError if the store is not writable."""
        due = not self.succeeded or now - self._probed_at < CHECK_DURATION_SECONDS
        if due and now - self._checked_at >= CHECK_INTERVAL_SECONDS:
            self._checked_at = now
            self.succeeded = False
            await self._heartbeats.check_writable()
            self.succeeded = True


def _sweeper_of(heartbeats: Heartbeats, counter: ThroughputCounter, state: WorkerState) -> Sweeper:
    options = state.options
    return Sweeper(
        heartbeats,
        state.events,
        state.clock,
        state.worker,
        SweepTimes(
            interval=options.sweep_interval,
            slack=slack(options.lease),
            memory=options.lease + options.every_beat + options.sweep_interval,
            lease=options.lease,
        ),
        on_reset=counter.count_resets,
    )
