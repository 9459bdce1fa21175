"""Rows that the database refuses to claim: passed over for a while, so that no other row waits for them.

An application's trigger may keep a row unchanged, silently or with an error, and a CHECK may lack ``processing``.
Such a row may be the first in order, and every claim would find it again.
"""

from __future__ import annotations

from collections.abc import Callable

from stowhand.clock import stopwatch

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 10.0, 300.0
"""The pause doubles each time that a row is refused again."""
MAX_ROWS = 1000
"""Beyond that, the rows passed over first are tried again."""


class PassedOver:
    """The rows passed over, used by one event loop."""

    def __init__(self, noun: str, warn: Callable[[str], None]) -> None:
        self._noun = noun
        self._warn = warn
        self._until: dict[str, tuple[float, float]] = {}
        """By key, the end and the length of the current pause."""

    def current(self) -> list[str]:
        """Return the keys that must not be claimed now."""
        now = stopwatch()
        return [key for key, (until, _) in self._until.items() if now < until]

    def refused(self, key: str, reason: str, *, report: bool = True) -> None:
        """Pass over a row. Reported the first time and every few minutes, unless the caller reports it."""
        previous = self._until.pop(key, None)
        pause = MIN_PAUSE_SECONDS if previous is None else min(2 * previous[1], MAX_PAUSE_SECONDS)
        self._until[key] = (stopwatch() + pause, pause)
        if len(self._until) > MAX_ROWS:
            del self._until[next(iter(self._until))]
        if report and (previous is None or pause == MAX_PAUSE_SECONDS):
            self._warn(f"{self._noun} {key} cannot be claimed: {reason}. It is skipped, and retried from time to time")
