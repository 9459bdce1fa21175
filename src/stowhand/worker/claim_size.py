"""How many jobs to claim: the free slots, and a little ahead in proportion to how fast jobs end, so that a slow handler
hoards nothing and a fast one never waits for a round trip."""

from __future__ import annotations

from stowhand.clock import Clock
from stowhand.protocols.options import LOOK_AHEAD_SECONDS, WorkerOptions
from stowhand.worker.executor import Executor
from stowhand.worker.hooks import Hooks


class ClaimSize:
    """Of one worker."""

    def __init__(
        self, executor: Executor, hooks: Hooks, options: WorkerOptions, clock: Clock, *, one_by_one: bool
    ) -> None:
        self._executor = executor
        self._hooks = hooks
        self._options = options
        self._clock = clock
        self._one_by_one = one_by_one
        self.over = False
        """The worker has been active for as long as it may."""
        self._rate = 0.0
        self._ended = 0
        self._worked = 0.0
        self._measured_at = clock.monotonic()

    def limit(self) -> int:
        """How many to claim now."""
        waiting = len(self._executor.ready)
        if self._one_by_one:
            # The last record has run to its first wait, and its pre_handle has returned: the application has counted
            # it before it is called again.
            return 0 if waiting or self._hooks.preparing else self._at_most_left(self.free)
        ahead = 0
        if not self._hooks.holds_slots:
            ahead = min(self._options.look_ahead, int(self._current_rate() * LOOK_AHEAD_SECONDS))
        self._executor.low_water = ahead // 2
        if waiting > ahead // 2:
            return 0
        return self._at_most_left(max(self.free + ahead - waiting, 0))

    @property
    def free(self) -> int:
        """Slots in which nothing runs, post_handle included."""
        return max(self._executor.free - self._hooks.occupied, 0)

    @property
    def is_spent(self) -> bool:
        """The worker has claimed as many jobs as it may ever, or has been active for as long as it may."""
        return self.over or self._left == 0

    def _at_most_left(self, limit: int) -> int:
        return limit if self._left is None else min(limit, self._left)

    @property
    def _left(self) -> int | None:
        """How many more the worker may claim; ``None``: there is no limit."""
        if self._options.max_jobs is None:
            return None
        claimed = self._executor.ended + self._executor.running + len(self._executor.ready)
        return max(self._options.max_jobs - claimed, 0)

    def measure(self) -> None:
        """Jobs per second since the last claim that brought some, half old and half new.

        Of two ways to count, the slower: by the clock (handlers may share one processor), and by how long handlers
        took (many slow ones that end at one moment are no sign of haste).
        """
        now = self._clock.monotonic()
        done = self._executor.ended - self._ended
        passed = max(now - self._measured_at, 0.001)
        if done or passed > 1.0:
            worked = max((self._executor.worked - self._worked) / self._options.concurrency, 0.000001)
            self._rate = (self._rate + min(done / passed, done / worked)) / 2
            self._measured_at = now
            self._ended = self._executor.ended
            self._worked = self._executor.worked

    def forget(self) -> None:
        """Claim nothing ahead until the rate has been measured anew."""
        self._rate = 0.0

    def _current_rate(self) -> float:
        """The rate, unless it has fallen since it was measured: what was given back is not to be claimed at once."""
        passed = self._clock.monotonic() - self._measured_at
        return self._rate if passed <= 1.0 else min(self._rate, (self._executor.ended - self._ended) / passed)
