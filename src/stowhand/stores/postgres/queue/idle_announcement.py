"""The announcement of whether this worker is idle. An enqueue notifies only while a worker is idle, because a NOTIFY
takes a lock that all commits share.

An idle worker holds a shared advisory lock on its listening connection (statement ``fall_asleep``), until it is busy or
the connection ends. An enqueue tries to take this lock exclusively. If it succeeds, no worker is idle, so it does not
notify.

After an idle worker has taken the lock, it claims once: earlier enqueues did not notify it. This claim may miss a job.
An enqueue may try the lock just before the worker takes it, and commit after the worker's claim. Therefore the worker
claims twice more a little later (RECLAIM_DELAYS_SECONDS). After that, it waits for notifications and polls.
"""

from __future__ import annotations

from collections.abc import Mapping

from stowhand.clock import SystemClock
from stowhand.stores.database.link import Connection, rows
from stowhand.stores.postgres.shared.listener import Announcement

BUSY_CLAIMS = 5
"""After this number of claims in a row that return jobs, the worker is busy."""
WINDOW_SECONDS = 0.25
"""Length of a window, in which jobs and wake-ups are counted."""
BUSY_JOBS = 250
"""Number of jobs and wake-ups, in the current and the previous window, from which the worker is busy.

Such a worker stays busy even if a claim returns no job: it claims again soon, without notifications."""
BUSY_RECLAIM_SECONDS = 0.005
"""Time after which a busy worker claims again if a claim returned no job."""
RECLAIM_DELAYS_SECONDS = (0.05, 1.0)
"""Times after the announcement at which an idle worker claims again.

These claims find the jobs of enqueues that did not notify and committed after the worker's first claim. A due job that
a claim can see but passes over needs none of them: on every store, the worker rechecks it (worker/claimer.py)."""


class IdleAnnouncement(Announcement):
    """Announcement of whether the worker is idle, derived from the times and results of its claims.

    ``statements`` contains ``fall_asleep`` and ``wake_up``. An error of the connection is raised to the listener.
    """

    def __init__(self, statements: Mapping[str, bytes]) -> None:
        super().__init__()
        self._statements = statements
        self._clock = SystemClock()
        self.should_sleep = True
        """Whether the worker should be announced as idle."""
        self.is_asleep = False
        """Whether the worker is announced as idle, so that enqueues notify."""
        self._reclaim_times: list[float] = []
        """Monotonic times at which to claim without a notification, the next one first."""
        self._consecutive_filled_claims = 0
        """Number of latest claims that all returned jobs."""
        self._window_jobs = 0
        """Jobs and wake-ups in the current window."""
        self._previous_window_jobs = 0
        """Jobs and wake-ups in the window before."""
        self._window_start = float("-inf")
        self._has_claimed = False

    async def begin(self, connection: Connection) -> None:
        """Announce the worker as idle on a new connection, unless its claims show that it is busy."""
        if self.should_sleep:
            await self._fall_asleep(connection)

    async def update(self, connection: Connection) -> bool:
        """Take or release the lock, if necessary.

        Return True if the worker became idle, so that it claims: earlier enqueues may not have notified it.
        """
        if self.should_sleep and not self.is_asleep:
            await self._fall_asleep(connection)
            return True
        if self.is_asleep and not self.should_sleep:
            await rows(connection, self._statements["wake_up"], (), False)
            self.is_asleep = False
        return False

    def end(self) -> None:
        """Record that the server has released the lock, because the connection ended."""
        self.is_asleep = False

    async def _fall_asleep(self, connection: Connection) -> None:
        await rows(connection, self._statements["fall_asleep"], (), False)
        self.note_asleep(self._clock.monotonic())

    def note_claim(self, jobs: int, now: float | None = None) -> None:
        """Record a claim that returned this number of jobs. A worker that gets many jobs needs no notifications."""
        self._record_claim(jobs, self._clock.monotonic() if now is None else now)
        # An empty claim may have set a new time to claim. The waiting listener reads it only after a change.
        if self.should_sleep is not self.is_asleep or not jobs:
            self.changed.set()

    def _record_claim(self, jobs: int, now: float) -> None:
        if self.is_asleep and not self._has_claimed:
            # The worker was announced before its first claim, so the delays start with this claim.
            self._reclaim_times = [now + seconds for seconds in RECLAIM_DELAYS_SECONDS]
        self._has_claimed = True
        is_busy = self._count(jobs, now)
        if jobs:
            self._consecutive_filled_claims += 1
            if is_busy or self._consecutive_filled_claims >= BUSY_CLAIMS:
                self.should_sleep = False
                self._reclaim_times = []
        else:
            self._consecutive_filled_claims = 0
            if not self.should_sleep:
                self.should_sleep = not is_busy
                self._reclaim_times = [now + BUSY_RECLAIM_SECONDS] if is_busy else []

    def note_wakeup(self, now: float) -> None:
        """Record a wake-up by a notification. It counts as a job, even if the claim that follows returns none."""
        if self._count(1, now):
            self.should_sleep = False

    def _count(self, number: int, now: float) -> bool:
        """Add this number of jobs or wake-ups to the current window. Return whether the worker is busy."""
        window_age = now - self._window_start
        if window_age > WINDOW_SECONDS:
            has_just_ended = window_age < 2 * WINDOW_SECONDS
            self._previous_window_jobs = self._window_jobs if has_just_ended else 0
            self._window_jobs = 0
            self._window_start = now
        self._window_jobs += number
        return self._window_jobs + self._previous_window_jobs >= BUSY_JOBS

    def note_asleep(self, now: float) -> None:
        """Record that the worker is announced as idle from now on."""
        self.is_asleep = True
        self._reclaim_times = [now + seconds for seconds in RECLAIM_DELAYS_SECONDS] if self._has_claimed else []

    def next_recheck_at(self) -> float:
        """Return the monotonic time of the next claim without a notification; infinity if none is planned."""
        return self._reclaim_times[0] if self._reclaim_times else float("inf")

    def take_recheck(self, now: float) -> bool:
        """Return True if the time of the next claim has passed, and remove this time."""
        if not self._reclaim_times or self._reclaim_times[0] > now:
            return False
        del self._reclaim_times[0]
        return True
