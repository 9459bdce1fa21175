"""The jobs that a worker holds: their phases, and the deadlines of their leases by the worker's own clock.

Two threads write here: the loop (claims, starts, settles) and the heartbeat thread (renews, returns unstarted jobs).
Every step is one method under one lock. In particular a job is either started or returned, never both.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any

from stowhand.clock import Cancelable
from stowhand.jobs.lease import Lease, Pair
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.attempt import Attempt, Stop, control_of
from stowhand.protocols.store import Claim
from stowhand.worker.state import WorkerState


class Phase(IntEnum):
    """Phase of a held job inside this worker."""

    UNSTARTED = 0
    RUNNING = 1
    ENDED = 2
    """The handler has ended; the settlement is not recorded yet."""
    RELEASED = 3
    """Settled, returned to the queue, or lost."""


class HeldJob:
    """A job that this worker holds, from its claim until the store has answered its settlement."""

    __slots__ = (
        "attempt",
        "claim",
        "claimed_at",
        "deadline",
        "is_suspect",
        "on_answered",
        "phase",
        "refusals",
        "renewed_at",
        "seconds",
        "settlement",
        "stop_reason",
        "stopped_at",
        "task",
        "timeout",
        "timer",
        "was_sent",
    )

    def __init__(self, claim: Claim[Any], sent_at: float, claimed_at: float, deadline: float, is_suspect: bool) -> None:
        self.claim = claim
        self.is_suspect = is_suspect
        """Whether workers were lost while running the job. It then runs apart from other jobs."""
        self.phase = Phase.UNSTARTED
        self.claimed_at = claimed_at
        """When the reply to the claim came. The sending time would return the jobs of a slow claim at once."""
        self.renewed_at = sent_at
        """When the last successful renewal was *sent*: the store may have counted the lease from that time."""
        self.deadline = deadline
        """When the store may give the job to another worker."""
        self.attempt: Attempt[Any] | None = None
        self.task: asyncio.Task[None] | None = None
        """Task of the slot that runs the handler."""
        self.timer: Cancelable | None = None
        """Stops the handler after ``timeout`` seconds; after a stop, cancels it if its thread still runs."""
        self.timeout = 0.0
        self.stop_reason: Stop | None = None
        self.stopped_at: float | None = None
        """When the handler was cancelled; ``None`` if it was not, or if its thread may still end by itself."""
        self.seconds = 0.0
        """Run time of the handler."""
        self.settlement = COMPLETED
        """Settlement of the attempt, valid after its end."""
        self.on_answered: Callable[[Attempt[Any]], None] | None = None
        """Called when the store has answered the settlement, whatever the reply."""
        self.was_sent = False
        """Whether an earlier call with this settlement had no reply."""
        self.refusals = 0
        """Number of settlements of this job that the store has refused to write."""

    def cancel(self, now: float) -> None:
        """Cancel the handler if it runs and was not cancelled before."""
        if self.task is not None and self.stopped_at is None:
            self.stopped_at = now
            self.task.cancel()


class Leases:
    """All jobs that a worker holds. Each deadline is a margin before the lease's end: handlers need time to stop."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._clock = state.clock
        self._lease = state.options.lease
        self._thread_end_seconds = state.timings.thread_end_timeout
        self._margin = min(1.0, self._lease / 10)
        self._held_jobs: dict[HeldJob, None] = {}
        """In claim order. Keyed by object: few replies name single jobs, and pairs as keys would cost every job."""
        self._lock = threading.Lock()
        self.taken_at = float("-inf")
        """When a claim last returned jobs."""

    def __len__(self) -> int:
        return len(self._held_jobs)

    def take(
        self, claims: Sequence[Claim[Any]], *, sent_at: float, answered_at: float, suspects: bool = False
    ) -> list[HeldJob]:
        """Add the jobs of a claim, and return them as held jobs."""
        deadline = sent_at + self._lease - self._margin
        new_jobs = [HeldJob(claim, sent_at, answered_at, deadline, suspects) for claim in claims]
        with self._lock:
            self._held_jobs |= dict.fromkeys(new_jobs)
            if new_jobs:
                self.taken_at = answered_at
        return new_jobs

    def start(self, job: HeldJob) -> bool:
        """Mark the job as running. Return False if the heartbeat thread has returned it already."""
        with self._lock:
            if job.phase is not Phase.UNSTARTED:
                return False
            job.phase = Phase.RUNNING
            return True

    def end(self, job: HeldJob) -> None:
        """Mark the job as ended. Its lease must last until the settlement is recorded."""
        if job.phase is Phase.RUNNING:
            job.phase = Phase.ENDED

    def drop(self, released: Iterable[HeldJob]) -> None:
        """Forget jobs that are no longer held."""
        with self._lock:
            for job in released:
                job.phase = Phase.RELEASED
                self._held_jobs.pop(job, None)

    def lose(self, job: HeldJob) -> None:
        """Forget a job whose lease is lost or about to expire, and stop its handler.

        A job whose handler has ended stays: the reply to its settlement reports the loss. Called on the loop.
        """
        if job.phase is not Phase.ENDED:
            self.drop([job])
            self._state.notify_change()  # the claimer may be waiting for this suspect
        self.stop(job, Stop.LOST)

    def stop(self, job: HeldJob, reason: Stop) -> None:
        """Stop the handler if it runs. The first reason is kept, except that a lost lease replaces any other.

        A coroutine is cancelled at once. A thread has some seconds to end by itself if the attempt was canceled or
        timed out, and its lease is renewed meanwhile. Called on the loop.
        """
        if job.task is None or job.attempt is None:
            return
        is_first = job.stop_reason is None
        if is_first or reason is Stop.LOST:
            job.stop_reason = reason
            control_of(job.attempt).lost = reason is Stop.LOST
            job.attempt.cancel(reason.value)
        if reason not in (Stop.CANCELED, Stop.TIMEOUT) or not control_of(job.attempt).in_thread:
            job.cancel(self._clock.monotonic())
        elif is_first:
            if job.timer is not None:
                job.timer.cancel()
            job.timer = self._clock.call_later(self._thread_end_seconds, lambda: job.cancel(self._clock.monotonic()))

    def take_unstarted(self, claimed_by: float, *, excluded: HeldJob | None = None) -> list[HeldJob]:
        """Forget and return the unstarted jobs that were claimed by a time, except one. The caller returns them."""
        if not self._held_jobs:
            return []
        with self._lock:
            ahead = (job for job in self._held_jobs if job.phase is Phase.UNSTARTED and job is not excluded)
            stale = [job for job in ahead if job.claimed_at <= claimed_by]
            for job in stale:
                job.phase = Phase.RELEASED
                del self._held_jobs[job]
        return stale

    def oldest_unstarted(self) -> float | None:
        """Return when the oldest unstarted job was claimed."""
        with self._lock:
            return min((job.claimed_at for job in self._held_jobs if job.phase is Phase.UNSTARTED), default=None)

    def due_for_renewal(self, now: float, interval: float) -> list[HeldJob]:
        """Return the jobs to renew: none until one is due, then all that are past half the interval."""
        with self._lock:
            held_jobs = list(self._held_jobs)
        if not any(now - job.renewed_at >= interval for job in held_jobs):
            return []
        return [job for job in held_jobs if now - job.renewed_at >= interval / 2]

    def set_renewed(self, renewed: Iterable[HeldJob], sent_at: float) -> None:
        """Set new deadlines for jobs renewed by a beat that was sent at ``sent_at``."""
        deadline = sent_at + self._lease - self._margin
        with self._lock:
            for job in renewed:
                job.renewed_at = sent_at
                job.deadline = deadline

    def extend_busy(self, job: HeldJob, until: float) -> None:
        """Extend the deadline of a job that was not renewed because a transaction locks its row.

        While the row is locked, no worker can take the job.
        """
        with self._lock:
            job.deadline = max(job.deadline, until)

    def expired(self, now: float) -> list[HeldJob]:
        """Return the jobs whose deadlines have passed."""
        if not self._held_jobs:
            return []
        with self._lock:
            return [job for job in self._held_jobs if job.deadline <= now]

    def find(self, pairs: Iterable[Pair]) -> list[HeldJob]:
        """Return the held jobs with these pairs. Pairs of other leases are ignored."""
        if not (requested := frozenset(pairs)):
            return []
        with self._lock:
            return [job for job in self._held_jobs if job.claim.lease.pair in requested]

    def all(self) -> list[HeldJob]:
        with self._lock:
            return list(self._held_jobs)

    def list_all(self) -> list[Lease]:
        """Return the leases of all held jobs. Callable from any thread."""
        return leases_of(self.all())


def leases_of(held_jobs: Iterable[HeldJob]) -> list[Lease]:
    """Return the leases ordered by job id, the order in which all statements lock rows."""
    return sorted((job.claim.lease for job in held_jobs), key=lambda lease: lease.job_id)
