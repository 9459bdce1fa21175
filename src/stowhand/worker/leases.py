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

    AHEAD = 0
    RUNNING = 1
    ENDED = 2
    """The handler is done; the settlement is on its way."""
    GONE = 3
    """Settled, given back, or lost."""


class Held:
    """One job that this worker holds, from its claim until the store has answered its settlement."""

    __slots__ = (
        "attempt",
        "beaten",
        "claim",
        "deadline",
        "on_answered",
        "phase",
        "refusals",
        "repeat",
        "seconds",
        "settlement",
        "since",
        "stop_reason",
        "stopped_at",
        "suspect",
        "task",
        "timeout",
        "timer",
    )

    def __init__(self, claim: Claim[Any], sent: float, since: float, deadline: float, suspect: bool) -> None:
        self.claim = claim
        self.suspect = suspect
        """Workers died under it before: it runs apart from the others."""
        self.phase = Phase.AHEAD
        self.since = since
        """When the reply to the claim came: a slow reply is no reason to give the job back at once."""
        self.beaten = sent
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
        self.repeat = False
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
        self._thread_ends = state.timings.thread_ends
        self._margin = min(1.0, self._lease / 10)
        self._held: dict[Held, None] = {}
        """In the order of their claims. By themselves and not by their pairs: of those few replies are about any, and
        each job would pay for its pair."""
        self._lock = threading.Lock()
        self.taken_at = float("-inf")
        """When a claim last brought anything."""

    def __len__(self) -> int:
        return len(self._held)

    def take(self, claims: Sequence[Claim[Any]], *, sent: float, since: float, suspects: bool = False) -> list[Held]:
        """Enter the jobs of a claim that was sent at ``sent`` and answered at ``since``."""
        deadline = sent + self._lease - self._margin
        entered = [Held(claim, sent, since, deadline, suspects) for claim in claims]
        with self._lock:
            self._held |= dict.fromkeys(entered)
            if entered:
                self.taken_at = since
        return entered

    def start(self, held: Held) -> bool:
        """Ahead -> running. False when the heartbeat thread gave it back first."""
        with self._lock:
            if held.phase is not Phase.AHEAD:
                return False
            held.phase = Phase.RUNNING
            return True

    def end(self, held: Held) -> None:
        """Running -> ended: the lease must live on until the settlement is recorded."""
        if held.phase is Phase.RUNNING:
            held.phase = Phase.ENDED

    def drop(self, gone: Iterable[Held]) -> None:
        """No longer held, whatever the reason."""
        with self._lock:
            for held in gone:
                held.phase = Phase.GONE
                self._held.pop(held, None)

    def lose(self, held: Held) -> None:
        """Its lease is lost, or may be given away any moment: nothing is written or renewed for it any more, and its
        handler is stopped. A job that has ended learns of it from its settlement. On the loop."""
        if held.phase is not Phase.ENDED:
            self.drop([held])
            self._state.look_again()  # it may be a suspect that keeps the claimer waiting
        self.stop(held, Stop.LOST)

    def stop(self, held: Held, why: Stop) -> None:
        """Stop its handler, if it runs. The first reason stays, but a lost lease replaces the others.

        A coroutine is cancelled at once. So is the wait for a thread, but not where the attempt was canceled or timed
        out: its thread has some seconds to end by itself, in which the lease is renewed. On the loop.
        """
        if held.task is None or held.attempt is None:
            return
        is_first = held.stop_reason is None
        if is_first or why is Stop.LOST:
            held.stop_reason = why
            control_of(held.attempt).lost = why is Stop.LOST
            held.attempt.cancel(why.value)
        if why not in (Stop.CANCELED, Stop.TIMEOUT) or not control_of(held.attempt).in_thread:
            held.cancel(self._clock.monotonic())
        elif is_first:
            if held.timer is not None:
                held.timer.cancel()
            held.timer = self._clock.call_later(self._thread_ends, lambda: held.cancel(self._clock.monotonic()))

    def pull_ahead(self, before: float, *, but: Held | None = None) -> list[Held]:
        """Take out what was claimed by that moment and has not started, except one: it is to be given back."""
        if not self._held:
            return []
        with self._lock:
            ahead = (held for held in self._held if held.phase is Phase.AHEAD and held is not but)
            stale = [held for held in ahead if held.since <= before]
            for held in stale:
                held.phase = Phase.GONE
                del self._held[held]
        return stale

    def oldest_ahead(self) -> float | None:
        """When the oldest that has not started was claimed."""
        with self._lock:
            return min((one.since for one in self._held if one.phase is Phase.AHEAD), default=None)

    def due(self, now: float, every: float) -> list[Held]:
        """What to renew now: nothing until one is due, then all that are past half their time."""
        with self._lock:
            held = list(self._held)
        if not any(now - one.beaten >= every for one in held):
            return []
        return [one for one in held if now - one.beaten >= every / 2]

    def renewed(self, beaten: Iterable[Held], sent: float) -> None:
        """The store has renewed these by a beat sent at ``sent``."""
        deadline = sent + self._lease - self._margin
        with self._lock:
            for held in beaten:
                held.beaten = sent
                held.deadline = deadline

    def kept_busy(self, held: Held, until: float) -> None:
        """Locked by another transaction: not renewed, but it cannot be given away meanwhile either."""
        with self._lock:
            held.deadline = max(held.deadline, until)

    def expired(self, now: float) -> list[Held]:
        """What the store may have given away by now."""
        if not self._held:
            return []
        with self._lock:
            return [held for held in self._held if held.deadline <= now]

    def find(self, pairs: Iterable[Pair]) -> list[Held]:
        """Return those of these pairs that are still held. Replies about other leases are thereby ignored."""
        if not (wanted := frozenset(pairs)):
            return []
        with self._lock:
            return [held for held in self._held if held.claim.lease.pair in wanted]

    def all(self) -> list[Held]:
        """A copy."""
        with self._lock:
            return list(self._held)

    def list_all(self) -> list[Lease]:
        """Return the leases of all held jobs. From any thread."""
        return leases_of(self.all())


def leases_of(held: Iterable[Held]) -> list[Lease]:
    """Return the leases in the order of ids, in which rows are locked everywhere."""
    return sorted((one.claim.lease for one in held), key=lambda lease: lease.job_id)
