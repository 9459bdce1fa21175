"""Looks for jobs whose worker died, and gives them back: a part of every worker, and of a Resetter.

    look       ask what is known of foreign leases: is one over, and when is the first of the others?
    take back  page by page, if one is over
    when       every interval; and at the end of the earliest foreign lease, as the last look, or the last claim that
               found nothing, has named it

The end of a lease that is past names nothing: a row that somebody's transaction has locked, or whose reset is refused,
would make every idle worker look again and again. It is looked at every interval.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from stowhand.clock import Clock
from stowhand.events import Events, JobsReset
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.store import Foreign, Heartbeats
from stowhand.worker.refusals import Refusals

IDLE_FACTOR = 6
MAINTAIN_EVERY = 600.0
CHECK_EVERY = 30.0
ROUNDS = 20
"""Pages per tick, so that a great many stalled jobs cannot keep a beat from being sent."""
LONGEST_JITTER = 0.5
"""Seconds: sixty idle workers know the same moment."""
NEVER = float("inf")


class Sweeper:
    """``tick`` when you like; it does its work when its time has come. Blocking: for a thread that may block.

    ``interval``: seconds between two looks; 0: each tick is one. ``slack`` seconds are granted beyond a lease's end.
    For ``memory`` seconds after work it looks as often as while working, else six times rarer; but never later than
    a ``lease`` after it last knew what is held: a job may be claimed, and its worker die, between two looks. When it
    ``is_over``, a look ends with the page under way.
    """

    def __init__(
        self,
        heartbeats: Heartbeats,
        events: Events,
        clock: Clock,
        *,
        name: str,
        interval: float,
        slack: float,
        memory: float = 0.0,
        lease: float = NEVER,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._name = name
        self._heartbeats, self._events, self._clock = heartbeats, events, clock
        self._interval, self._slack, self._memory, self._lease = interval, slack, memory, lease
        self._is_over = is_over
        self.refusals = Refusals(heartbeats, events, name)
        self._jitter = min(LONGEST_JITTER, slack / 2) * zlib.crc32(name.encode()) / 2**32
        self._last = self._known = float("-inf")
        self.ends = NEVER
        """When the first foreign lease has ended, the jitter included."""
        self._late = False
        self._maintained = self._checked = float("-inf")

    def due(self, worked: float) -> float:
        """When to look next. ``worked``: when there was work last; all by the monotonic clock."""
        recent = self._late or self._clock.monotonic() - worked <= self._memory
        every = self._interval if recent else self._interval * IDLE_FACTOR
        return min(self._last + every, self._known + self._lease, self.ends)

    def foresee(self, seen: Foreign) -> None:
        """What a claim that found nothing saw. From any thread."""
        now = self._clock.monotonic()
        self._known = now
        if self.ends - self._jitter > now:  # else it may be over, and what is over was not spoken of
            self.ends = self._after(seen, now)

    def expect(self, seconds: float) -> None:
        """A foreign lease of so many seconds has begun, or was renewed. From any thread."""
        ends = self._clock.monotonic() + seconds + self._slack + self._jitter
        self.ends = min(self.ends, ends)

    def tick(self, *, worked: float, ours: Callable[[], Sequence[Lease]] = tuple) -> None:
        """Reset what is stalled, if it is time. Raises StoreUnreachable; the next tick tries again.

        ``worked``: as with ``due``. ``ours``: the leases that this worker renews.
        """
        now = self._clock.monotonic()
        if now < self.due(worked):
            return
        seen = self._heartbeats.foreign(ours(), self._slack)
        if seen is None or seen.late:
            self._take_back()
        self._last = self._known = now
        self._late = seen is not None and seen.late
        self.ends = NEVER if seen is None else self._after(seen, now)
        if now - self._checked >= CHECK_EVERY:
            self._heartbeats.check()
            self._checked = now
        if now - self._maintained >= MAINTAIN_EVERY:
            self._maintained = now  # first: what cannot be done now is not tried again at each sweep
            self._heartbeats.maintain()

    def _take_back(self) -> None:
        for _ in range(ROUNDS):
            found = self._heartbeats.reset_stalled(self._slack)
            self.tell(found)
            self.refusals.hear()
            if not found or self._is_over():
                break

    def _after(self, seen: Foreign, now: float) -> float:
        return NEVER if seen.ends_in is None else now + seen.ends_in + self._jitter

    def tell(self, found: Sequence[ResetJob]) -> None:
        """Say what was taken back."""
        if found:
            self._events.emit(JobsReset(tuple(found), self._name))
