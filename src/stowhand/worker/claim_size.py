"""How many jobs to claim: the free slots, and a little ahead in proportion to how fast jobs end, so that a slow handler
hoards nothing and a fast one never waits for a round trip."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.protocols.options import LOOK_AHEAD_SECONDS
from stowhand.worker.basis import Basis
from stowhand.worker.hooks import Hooks
from stowhand.worker.leases import Held
from stowhand.worker.load import Load
from stowhand.worker.renewal import Renewal
from stowhand.worker.slots import Slots


class ClaimSize:
    """Of one worker. ``one_by_one``: the application counts each record before the next claim."""

    def __init__(
        self, slots: Slots, load: Load, hooks: Hooks, renewal: Renewal, basis: Basis, *, one_by_one: bool
    ) -> None:
        self._slots = slots
        self._load = load
        self._hooks = hooks
        self._renewal = renewal
        self._options = basis.options
        self._clock = basis.clock
        self._one_by_one = one_by_one
        self._rate = 0.0
        self._ended = 0
        self._worked = 0.0
        self._measured_at = basis.clock.monotonic()

    def limit(self, *, promised: bool = False) -> int:
        """How many to claim now. ``promised``: those too that settlements under way may claim (successors.py)."""
        limit = int(min(self._one() if self._one_by_one else self._many(), self.left))
        if self._hooks.holds_slots and limit < self._load.underway:
            return 0  # more slots are about to fall free than are free: one claim for all of them
        return limit if promised else max(limit - self._load.promised, 0)

    def _one(self) -> int:
        """When the last record has run to its first wait, and its pre_handle has returned: so it has been counted."""
        return 0 if self._slots.ready or self._hooks.preparing else self._load.free

    def _many(self) -> int:
        ahead = 0
        if not self._hooks.holds_slots:
            ahead = min(self._options.look_ahead, int(self._current_rate() * LOOK_AHEAD_SECONDS))
        waiting = len(self._slots.ready)
        self._slots.refill_at(ahead // 2)
        return 0 if waiting > ahead // 2 else max(self._load.free + ahead - waiting, 0)

    @property
    def left(self) -> float:
        """How many more the worker may ever claim."""
        return self._renewal.jobs_left

    def measure(self, claimed: Sequence[Held]) -> None:
        """Jobs per second since the last claim that brought some, half old and half new.

        Of two ways to count, the slower: by the clock (handlers may share one processor), and by how long handlers
        took (many slow ones that end at one moment are no sign of haste). Beside a job under which a worker died few
        are claimed.
        """
        now = self._clock.monotonic()
        done = self._slots.ended - self._ended
        passed = max(now - self._measured_at, 0.001)
        if done or passed > 1.0:
            worked = max((self._slots.worked - self._worked) / self._options.concurrency, 0.000001)
            self._rate = (self._rate + min(done / passed, done / worked)) / 2
            self._measured_at = now
            self._ended = self._slots.ended
            self._worked = self._slots.worked
        if any(held.claim.resets for held in claimed):
            self._rate = 0.0

    def _current_rate(self) -> float:
        """The rate, unless it has fallen since it was measured: what was given back is not to be claimed at once."""
        passed = self._clock.monotonic() - self._measured_at
        return self._rate if passed <= 1.0 else min(self._rate, (self._slots.ended - self._ended) / passed)
