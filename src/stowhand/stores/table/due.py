"""When the next record falls due: read no oftener than the cost of reading allows.

A table without an index is walked for it, at every poll of an idle worker. Without an answer that worker looks again
after its plain poll interval, so nothing starts later than promised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from stowhand.clock import stopwatch

EXPENSIVE_SECONDS = 0.05
"""Seconds. A look is expensive when two in a row took as long: one alone may have met a busy machine."""
PAUSE_PER_SECOND = 50.0
"""Seconds without another look for each second that an expensive one took."""
PLAIN_POLL_SECONDS = 2.0
"""Seconds: what is due later than the next plain poll need not be known."""


class Due:
    """Of one store."""

    def __init__(self, now: Callable[[], float] = stopwatch) -> None:
        self._now = now
        self._took, self._not_before = 0.0, float("-inf")
        self._at = float("inf")
        """When the first was due, as far as was known."""

    async def ask(
        self, look: Callable[[], Awaitable[float | None]], touch: Callable[[], Awaitable[object]]
    ) -> float | None:
        """Seconds; ``None``: nothing waits. 0 while it is too early to look again: claim again after a plain poll.

        ``touch`` runs instead then, and costs little: a caller also learns by this call whether the store answers.
        """
        began = self._now()
        if began < self._not_before:
            await touch()
            left = self._at - began
            return left if 0 < left < PLAIN_POLL_SECONDS else 0.0
        found = await look()
        over = self._now()
        self._at = float("inf") if found is None else over + found
        price, self._took = min(over - began, self._took), over - began
        if price >= EXPENSIVE_SECONDS:
            self._not_before = over + PAUSE_PER_SECOND * price
        return found
