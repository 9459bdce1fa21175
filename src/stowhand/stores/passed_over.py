"""Rows that cannot be claimed because the database refuses the change: claims pass over them for a while.

An application's trigger may keep a row unchanged, silently or with an error, and a CHECK may not allow ``processing``.
Such a row may be the first in order, and then every claim would fail at it.
"""

from __future__ import annotations

from collections.abc import Callable

from stowhand.clock import stopwatch

MIN_PAUSE_SECONDS = 10.0
"""The first pause of a row. It doubles each time that the row is refused again."""
MAX_PAUSE_SECONDS = 300.0
MAX_ROWS = 1000
"""Beyond this number, the oldest row is claimed again."""


class PassedOver:
    """The rows that claims pass over, used by one event loop."""

    def __init__(self, noun: str, warn: Callable[[str], None]) -> None:
        self._noun = noun
        self._warn = warn
        self._until: dict[str, tuple[float, float]] = {}
        """By key, the end and the duration of the current pause."""

    def current(self) -> list[str]:
        """Return the keys of the rows that are passed over now."""
        now = stopwatch()
        return [key for key, (until, _) in self._until.items() if now < until]

    def add(self, key: str, reason: str, *, report: bool = True) -> None:
        """Pass over a refused row. ``report``: emit a warning, the first time and then every few minutes."""
        previous = self._until.pop(key, None)
        pause = MIN_PAUSE_SECONDS if previous is None else min(2 * previous[1], MAX_PAUSE_SECONDS)
        self._until[key] = (stopwatch() + pause, pause)
        if len(self._until) > MAX_ROWS:
            del self._until[next(iter(self._until))]
        if report and (previous is None or pause == MAX_PAUSE_SECONDS):
            self._warn(f"{self._noun} {key} cannot be claimed: {reason}. It is skipped, and retried from time to time")
