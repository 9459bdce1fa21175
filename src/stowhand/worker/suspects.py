"""Whose turn it is: that of a job which workers died under, or that of the others.

    a child can be made   a suspect is asked for every few seconds, before other work, and runs in its child
    none can              it runs alone: while this worker is idle; and when it has waited too long behind other work.
                          Then the worker claims it for a slot that has fallen free, takes nothing more, waits for what
                          runs, a lease at most, and runs it

Between two for which it made way, other jobs get at least as long as the first one took.
"""

from __future__ import annotations

from stowhand.clock import Clock
from stowhand.events import DrainEnded, DrainStarted, Events
from stowhand.worker.executor import Executor
from stowhand.worker.leases import Held, Phase

EVERY = 5.0
"""Seconds between two questions for suspects while there is other work."""
OVERDUE = 5.0
"""Seconds for which one is due before a worker makes way: with the time between two questions, ten at most."""
NEVER = float("inf")


class Suspects:
    """Of one worker."""

    def __init__(self, executor: Executor, events: Events, clock: Clock, worker: str) -> None:
        self._executor, self._events, self._clock, self._worker = executor, events, clock, worker
        self._held: Held | None = None
        self._asked = clock.monotonic()
        self._cleared: float | None = None
        """When the worker began to make way for the one that it holds."""
        self._others_until = float("-inf")

    @property
    def is_held(self) -> bool:
        """One is held. One that was given back before it started leaves nothing behind to wait for."""
        one = self._held
        return one is not None and (one.phase is not Phase.GONE or one.attempt is not None)

    @property
    def runs_alone(self) -> bool:
        """Nothing else may be taken."""
        return self.is_held and not self._executor.can_isolate

    @property
    def wait(self) -> float:
        """Seconds until suspects are to be asked for although there is other work."""
        if self.is_held:
            return NEVER
        return max(self._asked + EVERY, self._others_until) - self._clock.monotonic()

    @property
    def is_time(self) -> bool:
        """The next slot is a suspect's, if there is one."""
        return self.wait <= 0

    def asked(self) -> None:
        """They have been asked for."""
        self._asked = self._clock.monotonic()

    def taken(self, held: Held) -> None:
        """It has one now."""
        self._held = held

    def clear(self, held: Held, patience: float) -> None:
        """The worker begins to make way for it: for so many seconds at most."""
        self._cleared = self._clock.monotonic()
        claim = held.claim
        self._events.emit(
            DrainStarted(self._worker, claim.lease.job_id, claim.task, claim.resets, self._executor.running, patience)
        )

    def go(self, held: Held) -> None:
        """It may run now."""
        assert self._cleared is not None
        took, claim = self._clock.monotonic() - self._cleared, held.claim
        self._events.emit(DrainEnded(self._worker, claim.lease.job_id, claim.task, took, self._executor.running))

    def ended(self) -> None:
        """It is over; others may run again."""
        self._held = None
        if self._cleared is not None:
            now = self._clock.monotonic()
            self._others_until, self._cleared = now + now - self._cleared, None
