"""Ids that sort by the time of their creation (UUID version 7), strictly within one process."""

from __future__ import annotations

import secrets
import uuid

from stowhand.clock import wall_clock

NUMBERED = 6
"""Hexadecimal digits at the end of an id that number the ids made together."""
MOST_TOGETHER = 16**NUMBERED


class Ids:
    """Makes them. 48 bits of milliseconds, 12 of a counter, 62 of chance."""

    def __init__(self) -> None:
        self._last = 0

    def new(self) -> str:
        """The next one. Where the clock stands still or steps back, the counter goes on."""
        now = int(wall_clock().timestamp() * 1000) << 12
        self._last = max(now, self._last + 1)
        count = self._last & 0xFFF
        number = (self._last >> 12) << 80 | 0x7 << 76 | count << 64 | 0b10 << 62 | secrets.randbits(62)
        return str(uuid.UUID(int=number))

    def stem(self) -> str:
        """The beginning of as many as ``MOST_TOGETHER``, which ``numbered`` completes; they sort by their number."""
        return self.new()[:-NUMBERED]


def numbered(stem: str, number: int) -> str:
    """One of those that were made together."""
    return f"{stem}{number:0{NUMBERED}x}"
