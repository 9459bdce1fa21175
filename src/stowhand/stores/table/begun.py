"""When the claims of a store began: what still bears an old claim's token may have become somebody else's since."""

from __future__ import annotations

from stowhand.clock import stopwatch

REMEMBERED = 10_000
"""Claims; whoever abandons one does so soon after it."""


class Begun:
    """Told by the loop that claims, asked by the heart's thread.

    Whoever abandons a claim knows its token, and not the epochs of what it may have taken. Within a lease of its
    beginning nobody can have reset those records; after it, another program may have, and run them again under marks
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
        """What bears this token is the claim's own. True where the claim is not known: another process's, lent anew."""
        began = self._at.get(token)
        return began is None or stopwatch() - began < self._lease
