"""Who may keep a connection open: those whose token was good, and a bounded number of strangers.

A connection is a stranger's until a request on it has been let in. Strangers have places of their own, some of them for
each address, and a newcomer takes the place of the one that came first and is asking nothing. So connections that are
opened and left alone shut out nobody but each other: a probe of /healthz and whoever holds a token find a place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

C = TypeVar("C")

SHARE = 4
"""One connection in so many is for strangers."""
OF_ONE_ADDRESS = 64
"""Strangers, at a time."""
STRANGERS_WAIT = 5
"""Seconds in which a stranger's request must have come in whole, and until the next one."""


class Places(Generic[C]):
    """The connections of one server, on its loop. ``most``: at a time, strangers included."""

    def __init__(self, most: int, busy: Callable[[C], bool], of_one_address: int = OF_ONE_ADDRESS) -> None:
        """``busy``: a request on it is being answered."""
        self._busy = busy
        self.for_strangers = max(most // SHARE, 1)
        self.for_known = max(most - self.for_strangers, 1)
        self._of_one_address = of_one_address
        self._strangers: dict[C, str] = {}
        """In the order in which they came."""
        self._known: set[C] = set()

    def enter(self, newcomer: C, address: str) -> C | None:
        """A stranger. Gives who has to go for it: another, or the newcomer itself where all of them are busy."""
        alike = [one for one, theirs in self._strangers.items() if theirs == address]
        crowded = len(alike) >= self._of_one_address
        leaving: C | None = None
        if crowded or len(self._strangers) >= self.for_strangers:
            among = alike if crowded else list(self._strangers)
            leaving = next((one for one in among if not self._busy(one)), newcomer)
            self.leave(leaving)
        if leaving is not newcomer:
            self._strangers[newcomer] = address
        return leaving

    def know(self, one: C) -> bool:
        """A request on it was let in. False: there is no place for another one that stays."""
        if one in self._known:
            return True
        if len(self._known) >= self.for_known:
            return False
        if self._strangers.pop(one, None) is not None:
            self._known.add(one)
        return True

    def is_known(self, one: C) -> bool:
        """Was a request on it let in?"""
        return one in self._known

    def leave(self, one: C) -> None:
        """It is closed, or being closed. Harmless when repeated."""
        self._strangers.pop(one, None)
        self._known.discard(one)
