"""When the claims of a store began: a record with an old claim's token may have been claimed anew since."""

from __future__ import annotations

from stowhand.clock import stopwatch

REMEMBERED = 10_000
"""Claims; one is abandoned soon after it, if at all."""


class Begun:
    """Written by the loop that claims, read by the heartbeats' thread.

    To abandon a claim its token is known, but not the epochs of what it may have taken. Within a lease of its
    beginning no worker can have reset those records; after it, another program may have, and run them again under marks
    that it does not know. They come back by themselves then.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._at: dict[str, float] = {}

    def note(self, token: str) -> None:
        """A claim under this token begins."""
        self._at[token] = stopwatch()
        if len(self._at) > REMEMBERED:
            del self._at[next(iter(self._at))]

    def may_hold(self, token: str) -> bool:
        """Records with this token are still this claim's. True for an unknown claim: another process's."""
        began = self._at.get(token)
        return began is None or stopwatch() - began < self._lease
