"""Is this worker asleep? Whoever enqueues need only wake those who are: a NOTIFY takes a lock that all commits share.

A sleeper holds a shared lock on its listening connection (statement ``fall_asleep``), which ends with it. It looks
once more after it has taken the lock. One who enqueues tries that lock; if it can be had, nobody sleeps. Left is an
enqueueing statement that looked just before and commits just after: so a sleeper looks again a little later, twice.
Beyond that there are polls.
"""

from __future__ import annotations

STREAK = 5
"""Claims that brought something, one after the other: there is more than this worker can do."""
WINDOW = 0.25
MANY = 250
"""Jobs or wake-ups in the last one or two windows. Who gets as many looks again soon, and is not woken for each."""
SOON = 0.005
AGAIN = (0.05, 1.0)
"""Seconds after falling asleep."""


class IdleAnnouncer:
    """Pure: told the time, and what claims brought."""

    def __init__(self) -> None:
        self.wish = True
        """Ought it to sleep?"""
        self.asleep = False
        """Does it, as far as others can see?"""
        self._looks: list[float] = []
        self._streak = self._recent = self._before = 0
        self._since = float("-inf")
        self._claims = False

    def claimed(self, jobs: int, now: float) -> None:
        """A claim brought so many."""
        if self.asleep and not self._claims:
            self._looks = [now + seconds for seconds in AGAIN]
        self._claims = True
        busy = self._count(jobs, now)
        if jobs:
            self._streak += 1
            if busy or self._streak >= STREAK:
                self.wish = False
                self._looks = []
        else:
            self._streak = 0
            if not self.wish:
                self.wish = not busy
                self._looks = [now + SOON] if busy else []

    def woken(self, now: float) -> None:
        """By a notification. Many of them are as good as many jobs, even if they bring none (they may not be due)."""
        if self._count(1, now):
            self.wish = False

    def _count(self, things: int, now: float) -> bool:
        """Were there many of late?"""
        if now - self._since > WINDOW:
            self._before = self._recent if now - self._since < 2 * WINDOW else 0
            self._recent, self._since = 0, now
        self._recent += things
        return self._recent + self._before >= MANY

    def fell_asleep(self, now: float) -> None:
        """Others can see it from now on."""
        self.asleep = True
        self._looks = [now + seconds for seconds in AGAIN] if self._claims else []

    def woke_up(self) -> None:
        """Others can see that it does not sleep, or it is cut off from them."""
        self.asleep = False

    def next_look(self) -> float:
        """When to look again without having been woken."""
        return self._looks[0] if self._looks else float("inf")

    def look(self, now: float) -> bool:
        """Is it time?"""
        if not self._looks or self._looks[0] > now:
            return False
        del self._looks[0]
        return True
