"""Announces whether this worker is idle, so that an enqueue notifies only while one is: a NOTIFY takes a lock that
all commits share.

An idle worker holds a shared lock on its listening connection (statement ``fall_asleep``), which ends with it. It
claims once more after it has taken the lock. An enqueue tries that lock; if it gets it, no worker is idle. What remains
is an enqueue that tried just before and commits just after: so an idle worker claims again a little later, twice.
Beyond that there are polls.
"""

from __future__ import annotations

from collections.abc import Mapping

from stowhand.clock import SystemClock
from stowhand.stores.database.link import Connection, rows
from stowhand.stores.postgres.shared.listener import Announcement

BUSY_CLAIMS = 5
"""Claims in a row that found jobs: there is more than this worker can do."""
WINDOW_SECONDS = 0.25
"""Seconds."""
BUSY_JOBS = 250
"""Jobs or wake-ups in the last one or two windows. A worker that gets as many claims again soon, not notified."""
BUSY_RECLAIM_SECONDS = 0.005
"""Seconds until a busy worker claims again."""
RECLAIM_DELAYS_SECONDS = (0.05, 1.0)
"""Times after the announcement at which an idle worker claims again.

They serve jobs that no claim can see yet: an enqueue found no idle worker, so it did not notify, and then committed.
A due job that a claim passes over is rechecked by the worker itself, on every store (worker/claimer.py)."""


class IdleAnnouncement(Announcement):
    """Shows whether the worker is idle. When it changes depends on the time and on what claims found."""

    def __init__(self, statements: Mapping[str, bytes]) -> None:
        super().__init__()
        self._statements = statements
        self._clock = SystemClock()
        self.should_sleep = True
        """It should be announced as idle."""
        self.asleep = False
        """It is announced: enqueues can see it."""
        self._looks: list[float] = []
        self._streak = self._recent = self._before = 0
        self._since = float("-inf")
        self._claims = False

    async def begin(self, connection: Connection) -> None:
        """Idle, unless claims say otherwise."""
        if self.should_sleep:
            await self._fall_asleep(connection)

    async def update(self, connection: Connection) -> bool:
        """True when it is announced as idle only since now: until then no enqueue had to notify it."""
        if self.should_sleep and not self.asleep:
            await self._fall_asleep(connection)
            return True
        if self.asleep and not self.should_sleep:
            await rows(connection, self._statements["wake_up"], (), False)
            self.asleep = False
        return False

    def end(self) -> None:
        """The lock is gone with the connection."""
        self.asleep = False

    async def _fall_asleep(self, connection: Connection) -> None:
        await rows(connection, self._statements["fall_asleep"], (), False)
        self.fell_asleep(self._clock.monotonic())

    def claimed(self, jobs: int, now: float | None = None) -> None:
        """A claim found so many: a worker that gets many need not be notified."""
        self._claimed(jobs, self._clock.monotonic() if now is None else now)
        if self.should_sleep is not self.asleep or not jobs:
            self.changed.set()

    def _claimed(self, jobs: int, now: float) -> None:
        if self.asleep and not self._claims:
            self._looks = [now + seconds for seconds in RECLAIM_DELAYS_SECONDS]
        self._claims = True
        busy = self._count(jobs, now)
        if jobs:
            self._streak += 1
            if busy or self._streak >= BUSY_CLAIMS:
                self.should_sleep = False
                self._looks = []
        else:
            self._streak = 0
            if not self.should_sleep:
                self.should_sleep = not busy
                self._looks = [now + BUSY_RECLAIM_SECONDS] if busy else []

    def woken(self, now: float) -> None:
        """By a notification. Many of them count as many jobs, even if they bring none (they may not be due)."""
        if self._count(1, now):
            self.should_sleep = False

    def _count(self, number: int, now: float) -> bool:
        """Counts, and says whether there were many of late."""
        if now - self._since > WINDOW_SECONDS:
            self._before = self._recent if now - self._since < 2 * WINDOW_SECONDS else 0
            self._recent = 0
            self._since = now
        self._recent += number
        return self._recent + self._before >= BUSY_JOBS

    def fell_asleep(self, now: float) -> None:
        """Enqueues can see it from now on."""
        self.asleep = True
        self._looks = [now + seconds for seconds in RECLAIM_DELAYS_SECONDS] if self._claims else []

    def next_look(self) -> float:
        """When to claim again without a notification."""
        return self._looks[0] if self._looks else float("inf")

    def look(self, now: float) -> bool:
        """True once for each of those times that has come."""
        if not self._looks or self._looks[0] > now:
            return False
        del self._looks[0]
        return True
