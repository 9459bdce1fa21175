"""Announcements of whether this worker is idle. An enqueue notifies only while a worker is idle, because a NOTIFY takes
a lock that all commits share.

An idle worker holds a shared lock on its listening connection (statement ``fall_asleep``); the lock ends with the
connection. The worker claims once more after it has taken the lock. An enqueue tries that lock; if it succeeds, no
worker is idle. An enqueue may try the lock just before the worker takes it, and commit after the worker's claim.
Therefore an idle worker claims twice more a little later. After that, it polls.
"""

from __future__ import annotations

from collections.abc import Mapping

from stowhand.clock import SystemClock
from stowhand.stores.database.link import Connection, rows
from stowhand.stores.postgres.shared.listener import Announcement

BUSY_CLAIMS = 5
"""After this number of claims in a row that return jobs, the worker is busy."""
WINDOW_SECONDS = 0.25
BUSY_JOBS = 250
"""After this number of jobs or wake-ups in one or two windows, a worker claims again soon without notifications."""
BUSY_RECLAIM_SECONDS = 0.005
RECLAIM_DELAYS_SECONDS = (0.05, 1.0)
"""Times after the announcement at which an idle worker claims again.

They serve jobs that no claim can see yet: an enqueue found no idle worker, so it did not notify, and then committed.
A due job that a claim passes over is rechecked by the worker itself, on every store (worker/claimer.py)."""


class IdleAnnouncement(Announcement):
    """Announcement of whether the worker is idle, derived from the time and the results of claims."""

    def __init__(self, statements: Mapping[str, bytes]) -> None:
        super().__init__()
        self._statements = statements
        self._clock = SystemClock()
        self.should_sleep = True
        """Whether the worker should be announced as idle."""
        self.is_asleep = False
        """Whether the worker is announced as idle, so that enqueues notify."""
        self._reclaim_times: list[float] = []
        self._filled_claims_in_a_row = 0
        self._recent_jobs = 0
        """Jobs and wake-ups in the current window."""
        self._previous_jobs = 0
        """Jobs and wake-ups in the window before."""
        self._window_start = float("-inf")
        self._has_claimed = False

    async def begin(self, connection: Connection) -> None:
        """Announce the worker as idle on a new connection, unless its claims show that it is busy."""
        if self.should_sleep:
            await self._fall_asleep(connection)

    async def update(self, connection: Connection) -> bool:
        """Update the announcement. Return True if the worker became idle: earlier enqueues may not have notified it."""
        if self.should_sleep and not self.is_asleep:
            await self._fall_asleep(connection)
            return True
        if self.is_asleep and not self.should_sleep:
            await rows(connection, self._statements["wake_up"], (), False)
            self.is_asleep = False
        return False

    def end(self) -> None:
        """Record that the lock ended with the connection."""
        self.is_asleep = False

    async def _fall_asleep(self, connection: Connection) -> None:
        await rows(connection, self._statements["fall_asleep"], (), False)
        self.note_asleep(self._clock.monotonic())

    def note_claim(self, jobs: int, now: float | None = None) -> None:
        """Record the number of jobs of a claim. A worker that gets many jobs needs no notifications."""
        self._update(jobs, self._clock.monotonic() if now is None else now)
        if self.should_sleep is not self.is_asleep or not jobs:
            self.changed.set()

    def _update(self, jobs: int, now: float) -> None:
        if self.is_asleep and not self._has_claimed:
            self._reclaim_times = [now + seconds for seconds in RECLAIM_DELAYS_SECONDS]
        self._has_claimed = True
        is_busy = self._count(jobs, now)
        if jobs:
            self._filled_claims_in_a_row += 1
            if is_busy or self._filled_claims_in_a_row >= BUSY_CLAIMS:
                self.should_sleep = False
                self._reclaim_times = []
        else:
            self._filled_claims_in_a_row = 0
            if not self.should_sleep:
                self.should_sleep = not is_busy
                self._reclaim_times = [now + BUSY_RECLAIM_SECONDS] if is_busy else []

    def note_wakeup(self, now: float) -> None:
        """Record a wake-up by a notification. It counts as a job, even if no job is due."""
        if self._count(1, now):
            self.should_sleep = False

    def _count(self, number: int, now: float) -> bool:
        """Add to the count of the window. Return whether the recent count is high."""
        if now - self._window_start > WINDOW_SECONDS:
            self._previous_jobs = self._recent_jobs if now - self._window_start < 2 * WINDOW_SECONDS else 0
            self._recent_jobs = 0
            self._window_start = now
        self._recent_jobs += number
        return self._recent_jobs + self._previous_jobs >= BUSY_JOBS

    def note_asleep(self, now: float) -> None:
        """Record that the worker is announced as idle from now on."""
        self.is_asleep = True
        self._reclaim_times = [now + seconds for seconds in RECLAIM_DELAYS_SECONDS] if self._has_claimed else []

    def next_recheck_at(self) -> float:
        """Return the time of the next claim without a notification."""
        return self._reclaim_times[0] if self._reclaim_times else float("inf")

    def take_recheck(self, now: float) -> bool:
        """Return True once for each of these times that has passed."""
        if not self._reclaim_times or self._reclaim_times[0] > now:
            return False
        del self._reclaim_times[0]
        return True
