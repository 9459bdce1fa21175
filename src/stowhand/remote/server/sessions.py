"""How a person stays signed in to a server of ours: a session, begun by a token or by a one-time link.

Links and sessions are secrets of this process, of which it keeps hashes, and end with it.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable

from stowhand.clock import Clock
from stowhand.remote.server.grants import Grant
from stowhand.remote.server.token_file import hash_of

LINK_LIFE, LINK_PAUSE = 600.0, 10.0
"""Seconds for which the one-time link is good, and between two: anybody here may ask for one."""
SESSION_LIFE = 12 * 3600.0
"""Seconds."""
MOST = 1000
"""Sessions at a time; one more ends the oldest."""


class Link:
    """Signs in whoever uses it first. ``show``: is given its path, and shows it to the owner of this process alone."""

    def __init__(self, show: Callable[[str], None], clock: Clock) -> None:
        self._show = show
        self._clock = clock
        self._code, self._until = "", 0.0

    def make(self) -> None:
        """A new one, which makes the one before void; but not within some seconds of one that was not used."""
        now = self._clock.monotonic()
        if not self._code or now >= self._until - LINK_LIFE + LINK_PAUSE:
            self._code, self._until = secrets.token_urlsafe(32), now + LINK_LIFE
            self._show(f"/login?code={self._code}")

    def spend(self, code: str) -> bool:
        """``False``: another code, or used, or too old."""
        alive = self._code and self._clock.monotonic() < self._until
        if not alive or not hmac.compare_digest(hash_of(self._code), hash_of(code)):
            return False
        self._code = ""
        return True


class Sessions:
    """The grants that the cookies of visitors stand for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, tuple[Grant, float]] = OrderedDict()
        """By the hash of the cookie, the oldest first; and until when."""

    def begin(self, grant: Grant) -> str:
        """The secret of a new one."""
        secret = secrets.token_urlsafe(32)
        self._kept[hash_of(secret)] = grant, self._clock.monotonic() + SESSION_LIFE
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return secret

    def find(self, secret: str) -> Grant | None:
        """``None``: there is none, or not any more. Whether its grant still holds, the authenticator knows."""
        found = self._kept.get(hash_of(secret))
        return found[0] if found is not None and self._clock.monotonic() < found[1] else None

    def end(self, secret: str) -> None:
        self._kept.pop(hash_of(secret), None)
