"""Looks for jobs whose worker died, and gives them back: a part of every worker, and of a Resetter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stowhand.clock import Clock
from stowhand.events import Events, JobsReset
from stowhand.store import Heart, ResetJob

IDLE_FACTOR = 6
MAINTAIN_EVERY = 600.0
CHECK_EVERY = 30.0
ROUNDS = 20
"""Pages per tick, so that a great many stalled jobs cannot keep a beat from being sent."""


class Sweep:
    """``tick`` when you like; it does its work when its time has come. Blocking: for a thread that may block.

    ``interval``: seconds between two looks; 0: each tick is one. ``slack`` seconds are granted beyond a lease's end:
    one beat. For ``memory`` seconds after work it looks as often as while working: whoever died in that time held
    leases that end within it. When it ``is_over``, a look ends with the page under way.
    """

    def __init__(
        self,
        heart: Heart,
        events: Events,
        clock: Clock,
        *,
        name: str,
        interval: float,
        slack: float,
        memory: float = 0.0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._name = name
        self._heart, self._events, self._clock = heart, events, clock
        self._interval, self._slack, self._memory, self._is_over = interval, slack, memory, is_over
        self._last = float("-inf")
        self._maintained = self._checked = float("-inf")

    def tick(self, *, worked: float) -> None:
        """Reset what is stalled, if it is time. Raises StoreUnreachable; the next tick tries again.

        ``worked``: when there was work last, by the monotonic clock.
        """
        now = self._clock.monotonic()
        if now - self._last < self._interval * (1 if now - worked <= self._memory else IDLE_FACTOR):
            return
        for _ in range(ROUNDS):
            found = self._heart.reset_stalled(self._slack)
            self.tell(found)
            if not found or self._is_over():
                break
        self._last = now
        if now - self._checked >= CHECK_EVERY:
            self._heart.check()
            self._checked = now
        if now - self._maintained >= MAINTAIN_EVERY:
            self._maintained = now  # first: what cannot be done now is not tried again at each sweep
            self._heart.maintain()

    def tell(self, found: Sequence[ResetJob]) -> None:
        """Say what was taken back."""
        if found:
            self._events.emit(JobsReset(tuple(found), self._name))
