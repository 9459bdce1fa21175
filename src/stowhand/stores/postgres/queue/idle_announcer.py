"""Announces whether this worker is idle, so that an enqueue notifies only while one is: a NOTIFY takes a lock that
all commits share.

An idle worker holds a shared lock on its listening connection (statement ``fall_asleep``), which ends with it. It
claims once more after it has taken the lock. An enqueue tries that lock; if it gets it, no worker is idle. What remains
is an enqueue that tried just before and commits just after: so an idle worker claims again a little later, twice.
Beyond that there are polls.
"""

from __future__ import annotations

STREAK = 5
"""Claims in a row that found jobs: there is more than this worker can do."""
WINDOW = 0.25
"""Seconds."""
MANY = 250
"""Jobs or wake-ups in the last one or two windows. A worker that gets as many claims again soon, not notified."""
SOON = 0.005
"""Seconds until a busy worker claims again."""
RECLAIM_DELAYS_SECONDS = (0.05, 1.0)
"""Times after the announcement at which an idle worker claims again.

They serve jobs that no claim can see yet: an enqueue found no idle worker, so it did not notify, and then committed.
A due job that a claim passes over is rechecked by the worker itself, on every store (worker/claimer.py)."""


class IdleAnnouncer:
    """Pure: the time, and what claims found, are arguments."""

    def __init__(self) -> None:
        self.should_sleep = True
        """It should be announced as idle."""
        self.asleep = False
        """It is announced: enqueues can see it."""
        self._looks: list[float] = []
        self._streak = self._recent = self._before = 0
        self._since = float("-inf")
        self._claims = False

    def claimed(self, jobs: int, now: float) -> None:
        """A claim found so many."""
        if self.asleep and not self._claims:
            self._looks = [now + seconds for seconds in RECLAIM_DELAYS_SECONDS]
        self._claims = True
        busy = self._count(jobs, now)
        if jobs:
            self._streak += 1
            if busy or self._streak >= STREAK:
                self.should_sleep = False
                self._looks = []
        else:
            self._streak = 0
            if not self.should_sleep:
                self.should_sleep = not busy
                self._looks = [now + SOON] if busy else []

    def woken(self, now: float) -> None:
        """By a notification. Many of them count as many jobs, even if they bring none (they may not be due)."""
        if self._count(1, now):
            self.should_sleep = False

    def _count(self, things: int, now: float) -> bool:
        """Counts, and says whether there were many of late."""
        if now - self._since > WINDOW:
            self._before = self._recent if now - self._since < 2 * WINDOW else 0
            self._recent = 0
            self._since = now
        self._recent += things
        return self._recent + self._before >= MANY

    def fell_asleep(self, now: float) -> None:
        """Enqueues can see it from now on."""
        self.asleep = True
        self._looks = [now + seconds for seconds in RECLAIM_DELAYS_SECONDS] if self._claims else []

    def woke_up(self) -> None:
        """Enqueues can see that it is busy, or the connection is gone."""
        self.asleep = False

    def next_look(self) -> float:
        """When to claim again without a notification."""
        return self._looks[0] if self._looks else float("inf")

    def look(self, now: float) -> bool:
        """True once for each of those times that has come."""
        if not self._looks or self._looks[0] > now:
            return False
        del self._looks[0]
        return True
