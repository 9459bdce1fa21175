"""How many jobs to take: the free slots, and a little ahead in proportion to how fast jobs end, so that a slow handler
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
        self._executor, self._hooks, self._options, self._clock = executor, hooks, options, clock
        self._one_by_one = one_by_one
        self.over = False
        """It has been active for as long as it may."""
        self._rate = 0.0
        self._counted = 0
        self._worked = 0.0
        self._mark = clock.monotonic()

    def limit(self) -> int:
        """How many to claim now."""
        waiting = len(self._executor.ready)
        if self._one_by_one:
            # What was claimed last has run to its first wait, and its pre_handle has returned: what they counted is
            # seen by the next answer.
            return 0 if waiting or self._hooks.preparing else self._left_of(self.free)
        ahead = 0 if self._hooks.holds_slots else min(self._options.look_ahead, int(self._now() * LOOK_AHEAD_SECONDS))
        self._executor.low_water = ahead // 2
        if waiting > ahead // 2:
            return 0
        return self._left_of(max(self.free + ahead - waiting, 0))

    @property
    def free(self) -> int:
        """Slots in which nothing runs, post_handle included."""
        return max(self._executor.free - self._hooks.occupied, 0)

    @property
    def is_spent(self) -> bool:
        """It has started, or holds, as many as it may ever, or has been active for as long as it may."""
        return self.over or self._left == 0

    def _left_of(self, limit: int) -> int:
        return limit if self._left is None else min(limit, self._left)

    @property
    def _left(self) -> int | None:
        """How many more it may take."""
        if self._options.max_jobs is None:
            return None
        return max(
            self._options.max_jobs - self._executor.ended - self._executor.running - len(self._executor.ready), 0
        )

    def measure(self) -> None:
        """Jobs per second since the last claim that brought some, half old and half new.

        Of two ways to count, the slower: by the clock (handlers may share one processor), and by how long handlers
        took (many slow ones that end at one moment are no sign of haste).
        """
        now, ended, worked = self._clock.monotonic(), self._executor.ended, self._executor.worked
        done, took = ended - self._counted, max(now - self._mark, 0.001)
        if done or took > 1.0:
            each = max((worked - self._worked) / self._options.concurrency, 0.000001)
            self._rate = (self._rate + min(done / took, done / each)) / 2
            self._mark, self._counted, self._worked = now, ended, worked

    def forget(self) -> None:
        """Take no more than runs, until it has been measured anew."""
        self._rate = 0.0

    def _now(self) -> float:
        """The rate, but not that of a past that is over: what was handed back is not to be taken again at once."""
        took = self._clock.monotonic() - self._mark
        return self._rate if took <= 1.0 else min(self._rate, (self._executor.ended - self._counted) / took)
