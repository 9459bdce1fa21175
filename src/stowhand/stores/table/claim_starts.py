"""What a store of a user's table remembers of claims: when they began, and whose tokens were abandoned.

The table has no place for it, and only this process claims with these tokens.
"""

from __future__ import annotations

from stowhand.clock import stopwatch

MAX_CLAIMS = 10_000
"""Claims; one is abandoned soon after it, if at all."""


MAX_TOKENS = 10_000
"""Tokens; a claim is asked for by this very process, and ends long before so many others."""


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
        if len(self._at) > MAX_CLAIMS:
            del self._at[next(iter(self._at))]

    def may_hold(self, token: str) -> bool:
        """Records with this token are still this claim's. True for an unknown claim: another process's."""
        began = self._at.get(token)
        return began is None or stopwatch() - began < self._lease


class Abandoned:
    """Tokens that may claim nothing more.

    A token is added, and looked for by its claim, while nothing can come between that and the end of the claim: in a
    write transaction of SQLite; before and under the claim's lock on PostgreSQL.
    """

    def __init__(self, lease: float) -> None:
        self._tokens: dict[str, None] = {}
        self.begun = Begun(lease)

    def __contains__(self, token: str) -> bool:
        return token in self._tokens

    def add(self, token: str) -> None:
        """From any thread."""
        self._tokens[token] = None
        if len(self._tokens) > MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
