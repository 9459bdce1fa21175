"""Which connections may stay open: those that sent a valid token, and a bounded number of strangers.

A connection is a stranger until a request on it has been admitted. Strangers have places of their own, a bounded number
for each address, and a newcomer takes the place of the oldest one that is not being answered. So idle connections shut
out only each other: a probe of /healthz and a client with a token always find a place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

C = TypeVar("C")

SHARE = 4
"""One place in this many is for strangers."""
OF_ONE_ADDRESS = 64
"""Strangers of one address at a time."""
STRANGERS_WAIT = 5
"""Seconds in which a stranger's request must arrive completely, and until its next one."""


class Places(Generic[C]):
    """The connections of one server, on its event loop. ``most``: open at a time, strangers included."""

    def __init__(self, most: int, busy: Callable[[C], bool], of_one_address: int = OF_ONE_ADDRESS) -> None:
        """``busy``: is a request on this connection being answered?"""
        self._busy = busy
        self.for_strangers = max(most // SHARE, 1)
        self.for_admitted = max(most - self.for_strangers, 1)
        self._of_one_address = of_one_address
        self._strangers: dict[C, str] = {}
        """By connection, the address; the oldest first."""
        self._admitted: set[C] = set()

    def add(self, newcomer: C, address: str) -> C | None:
        """Add a stranger. Returns the connection to close for it: another, or the newcomer where all are busy."""
        alike = [one for one, theirs in self._strangers.items() if theirs == address]
        crowded = len(alike) >= self._of_one_address
        closing: C | None = None
        if crowded or len(self._strangers) >= self.for_strangers:
            among = alike if crowded else list(self._strangers)
            closing = next((one for one in among if not self._busy(one)), newcomer)
            self.remove(closing)
        if closing is not newcomer:
            self._strangers[newcomer] = address
        return closing

    def admit(self, one: C) -> bool:
        """A request on it was admitted. ``False``: there is no place for another admitted connection."""
        if one in self._admitted:
            return True
        if len(self._admitted) >= self.for_admitted:
            return False
        if self._strangers.pop(one, None) is not None:
            self._admitted.add(one)
        return True

    def is_admitted(self, one: C) -> bool:
        """Was a request on it admitted?"""
        return one in self._admitted

    def remove(self, one: C) -> None:
        """It is closed, or about to be. Harmless when repeated."""
        self._strangers.pop(one, None)
        self._admitted.discard(one)
