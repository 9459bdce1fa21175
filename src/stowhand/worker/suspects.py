"""When a suspect runs, which is a job that workers died under, and when the other jobs run.

    in a child process   where one can be made: suspects are asked for every few seconds, before other work
    alone                elsewhere: while this worker is idle; or when the suspect has waited too long behind other
                         work. Then the worker claims it for a slot that has fallen free, claims nothing more, waits for
                         what runs, a lease at most, and runs it

Between two suspects for which it made way, other jobs get at least as long as the first one took.
"""

from __future__ import annotations

from stowhand.clock import Clock
from stowhand.events import DrainEnded, DrainStarted, Events
from stowhand.worker.executor import Executor
from stowhand.worker.leases import Held, Phase

EVERY = 5.0
"""Seconds between two claims of suspects while there is other work."""
OVERDUE = 5.0
"""Seconds for which one is due before a worker makes way: with the time between two claims, ten at most."""
NEVER = float("inf")


class Suspects:
    """Of one worker."""

    def __init__(self, executor: Executor, events: Events, clock: Clock, worker: str) -> None:
        self._executor = executor
        self._events = events
        self._clock = clock
        self._worker = worker
        self._held: Held | None = None
        self._asked_at = clock.monotonic()
        self._cleared_at: float | None = None
        """When the worker began to make way for the one that it holds."""
        self._others_until = float("-inf")

    @property
    def is_held(self) -> bool:
        """One is held. One that was given back before it started does not count."""
        one = self._held
        return one is not None and (one.phase is not Phase.GONE or one.attempt is not None)

    @property
    def runs_alone(self) -> bool:
        """Nothing else may be claimed."""
        return self.is_held and not self._executor.can_isolate

    @property
    def wait(self) -> float:
        """Seconds until suspects are to be claimed although there is other work."""
        if self.is_held:
            return NEVER
        return max(self._asked_at + EVERY, self._others_until) - self._clock.monotonic()

    @property
    def is_time(self) -> bool:
        """The next slot is for a suspect, if there is one."""
        return self.wait <= 0

    def asked(self) -> None:
        """A claim of suspects has gone out."""
        self._asked_at = self._clock.monotonic()

    def taken(self, held: Held) -> None:
        """The worker holds this one now."""
        self._held = held

    def clear(self, held: Held, patience: float) -> None:
        """The worker begins to make way for it: for ``patience`` seconds at most."""
        self._cleared_at = self._clock.monotonic()
        claim = held.claim
        self._events.emit(
            DrainStarted(self._worker, claim.lease.job_id, claim.task, claim.resets, self._executor.running, patience)
        )

    def go(self, held: Held) -> None:
        """It may run now."""
        assert self._cleared_at is not None
        took = self._clock.monotonic() - self._cleared_at
        claim = held.claim
        self._events.emit(DrainEnded(self._worker, claim.lease.job_id, claim.task, took, self._executor.running))

    def ended(self) -> None:
        """It has ended; other jobs may run again."""
        self._held = None
        if self._cleared_at is not None:
            now = self._clock.monotonic()
            self._others_until = now + (now - self._cleared_at)
            self._cleared_at = None
