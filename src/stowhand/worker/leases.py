"""The leases of this worker: what it holds, in which phase, and until when by its own clock.

Two threads write here: the loop (claims, starts, settles) and the heartbeat thread (renews, gives back what was not
started). Every step is one method under one lock; in particular *claimed ahead -> started* and *claimed ahead -> given
back* exclude each other.
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
    """What a held job is doing inside this worker."""

    UNSTARTED = 0
    RUNNING = 1
    ENDED = 2
    """The handler is done; the settlement is on its way."""
    RELEASED = 3
    """Settled, given back, or lost."""


class HeldJob:
    """One job that this worker holds, from its claim until the store has answered its settlement."""

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
        """Workers died under it before: it runs apart from the others."""
        self.phase = Phase.UNSTARTED
        self.claimed_at = claimed_at
        """When the reply to the claim came: a slow reply is no reason to give the job back at once."""
        self.renewed_at = sent_at
        """When the last good renewal was *sent*, not answered: the lease is sure to last only from that moment on."""
        self.deadline = deadline
        """After this the store may give the job away."""
        self.attempt: Attempt[Any] | None = None
        self.task: asyncio.Task[None] | None = None
        """Task of the slot that runs its handler."""
        self.timer: Cancelable | None = None
        """Stops the handler when it has taken ``timeout`` seconds; after a stop, cancels it if its thread goes on."""
        self.timeout = 0.0
        self.stop_reason: Stop | None = None
        self.stopped_at: float | None = None
        """When the handler was cancelled; ``None``: it was not, or its thread may still end by itself."""
        self.seconds = 0.0
        """How long the handler took."""
        self.settlement = COMPLETED
        """How the attempt ended, once it has."""
        self.on_answered: Callable[[Attempt[Any]], None] | None = None
        """Called when the store has answered the settlement, whatever the reply."""
        self.was_sent = False
        """An earlier call with its settlement had no reply."""
        self.refusals = 0
        """How often the store has refused to write a settlement of it."""

    def cancel(self, now: float) -> None:
        """Cancel its handler, once, if it runs."""
        if self.task is not None and self.stopped_at is None:
            self.stopped_at = now
            self.task.cancel()


class Leases:
    """All leases of a worker. A margin of each is kept back, for the time until a handler is stopped."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._clock = state.clock
        self._lease = state.options.lease
        self._thread_end_seconds = state.timings.thread_ends
        self._margin = min(1.0, self._lease / 10)
        self._held_jobs: dict[HeldJob, None] = {}
        """In the order of their claims. By themselves and not by their pairs: of those few replies are about any, and
        each job would pay for its pair."""
        self._lock = threading.Lock()
        self.taken_at = float("-inf")
        """When a claim last brought anything."""

    def __len__(self) -> int:
        return len(self._held_jobs)

    def take(
        self, claims: Sequence[Claim[Any]], *, sent_at: float, answered_at: float, suspects: bool = False
    ) -> list[HeldJob]:
        """Enter the jobs of a claim that was sent at ``sent`` and answered at ``since``."""
        deadline = sent_at + self._lease - self._margin
        entered = [HeldJob(claim, sent_at, answered_at, deadline, suspects) for claim in claims]
        with self._lock:
            self._held_jobs |= dict.fromkeys(entered)
            if entered:
                self.taken_at = answered_at
        return entered

    def start(self, job: HeldJob) -> bool:
        """Ahead -> running. False when the heartbeat thread gave it back first."""
        with self._lock:
            if job.phase is not Phase.UNSTARTED:
                return False
            job.phase = Phase.RUNNING
            return True

    def end(self, job: HeldJob) -> None:
        """Running -> ended: the lease must live on until the settlement is recorded."""
        if job.phase is Phase.RUNNING:
            job.phase = Phase.ENDED

    def drop(self, released: Iterable[HeldJob]) -> None:
        """No longer held, whatever the reason."""
        with self._lock:
            for job in released:
                job.phase = Phase.RELEASED
                self._held_jobs.pop(job, None)

    def lose(self, job: HeldJob) -> None:
        """Its lease is lost, or may be given away any moment: nothing is written or renewed for it any more, and its
        handler is stopped. A job that has ended learns of it from its settlement. On the loop."""
        if job.phase is not Phase.ENDED:
            self.drop([job])
            self._state.look_again()  # it may be a suspect that keeps the claimer waiting
        self.stop(job, Stop.LOST)

    def stop(self, job: HeldJob, reason: Stop) -> None:
        """Stop its handler, if it runs. The first reason stays, but a lost lease replaces the others.

        A coroutine is cancelled at once. So is the wait for a thread, but not where the attempt was canceled or timed
        out: its thread has some seconds to end by itself, in which the lease is renewed. On the loop.
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
        """Take out what was claimed by that moment and has not started, except one: it is to be given back."""
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
        """When the oldest that has not started was claimed."""
        with self._lock:
            return min((job.claimed_at for job in self._held_jobs if job.phase is Phase.UNSTARTED), default=None)

    def due_for_renewal(self, now: float, interval: float) -> list[HeldJob]:
        """What to renew now: nothing until one is due, then all that are past half their time."""
        with self._lock:
            held_jobs = list(self._held_jobs)
        if not any(now - job.renewed_at >= interval for job in held_jobs):
            return []
        return [job for job in held_jobs if now - job.renewed_at >= interval / 2]

    def set_renewed(self, renewed: Iterable[HeldJob], sent_at: float) -> None:
        """The store has renewed these by a beat sent at ``sent``."""
        deadline = sent_at + self._lease - self._margin
        with self._lock:
            for job in renewed:
                job.renewed_at = sent_at
                job.deadline = deadline

    def extend_busy(self, job: HeldJob, until: float) -> None:
        """Locked by another transaction: not renewed, but it cannot be given away meanwhile either."""
        with self._lock:
            job.deadline = max(job.deadline, until)

    def expired(self, now: float) -> list[HeldJob]:
        """What the store may have given away by now."""
        if not self._held_jobs:
            return []
        with self._lock:
            return [job for job in self._held_jobs if job.deadline <= now]

    def find(self, pairs: Iterable[Pair]) -> list[HeldJob]:
        """Return those of these pairs that are still held. Replies about other leases are thereby ignored."""
        if not (requested := frozenset(pairs)):
            return []
        with self._lock:
            return [job for job in self._held_jobs if job.claim.lease.pair in requested]

    def all(self) -> list[HeldJob]:
        """A copy."""
        with self._lock:
            return list(self._held_jobs)

    def list_all(self) -> list[Lease]:
        """Return the leases of all held jobs. From any thread."""
        return leases_of(self.all())


def leases_of(held_jobs: Iterable[HeldJob]) -> list[Lease]:
    """Return the leases in the order of ids, in which rows are locked everywhere."""
    return sorted((job.claim.lease for job in held_jobs), key=lambda lease: lease.job_id)
