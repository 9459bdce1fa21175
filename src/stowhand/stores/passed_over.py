"""Rows that the database refuses to let be claimed: passed over for a while, so that no other waits for them.

A trigger of the application's may keep a row as it is (without a word, or with an error), and a CHECK may know no
``processing``. First in order and never claimed, such a row would be found again by every claim.
"""

from __future__ import annotations

from collections.abc import Callable

from stowhand.clock import stopwatch

FIRST, LONGEST = 10.0, 300.0
"""Seconds; twice as many each time that it is refused again."""
MOST = 1000
"""Rows; beyond that the first ones are tried again."""


class PassedOver:
    """Asked by one loop."""

    def __init__(self, noun: str, warn: Callable[[str], None]) -> None:
        self._noun = noun
        self._warn = warn
        self._until: dict[str, tuple[float, float]] = {}
        """Key -> until when, and for how long this time."""

    def current(self) -> list[str]:
        """Not to be claimed now."""
        now = stopwatch()
        return [key for key, (until, _) in self._until.items() if now < until]

    def refused(self, key: str, why: str, *, report: bool = True) -> None:
        """It could not be changed. Reported the first time and every few minutes, unless the caller reports it."""
        known = self._until.pop(key, None)
        pause = FIRST if known is None else min(2 * known[1], LONGEST)
        self._until[key] = (stopwatch() + pause, pause)
        if len(self._until) > MOST:
            del self._until[next(iter(self._until))]
        if report and (known is None or pause == LONGEST):
            self._warn(f"{self._noun} {key} cannot be claimed: {why}. It is passed over, and tried again now and then")
