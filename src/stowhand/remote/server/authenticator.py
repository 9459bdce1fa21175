"""Says who asks. With tokens: by the ``Authorization`` header. Without: everybody on this machine, and nobody else.

The file of tokens is looked at for every request, so that a token that is revoked is refused at once. A server that
has ever seen the file wants tokens for good: removing the file opens nothing.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from urllib.parse import urlsplit

import msgspec

from stowhand.clock import Clock, wall_clock
from stowhand.errors import ConfigurationError
from stowhand.events import Events, TokensTrouble, WrongTokens
from stowhand.remote.server.grants import EVERYTHING, Grant
from stowhand.remote.server.refusals import Refused
from stowhand.remote.server.token_file import TokenFile, TokenRecord, hash_of, id_of
from stowhand.remote.wire import Kind

WRONG_PER_MINUTE = 10
"""Wrong tokens from one address, before it is told to wait."""
ADDRESSES = 4096
"""Remembered at a time."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_NOBODY = hash_of("")
_MAKE = "stowhand tokens make --name NAME, and send it as: Authorization: Bearer TOKEN"


class Authenticator:
    """Used on the loop. ``required``: tokens are wanted although there is no file yet."""

    def __init__(
        self,
        file: TokenFile,
        events: Events,
        clock: Clock,
        *,
        required: bool = False,
        now: Callable[[], datetime] = wall_clock,
    ) -> None:
        self._file, self._events, self._clock, self._now = file, events, clock, now
        self._wrong = _Wrong(clock)
        self._stamp: tuple[int, ...] | None = None
        self._tokens: dict[str, TokenRecord] = {}
        self._closed = required or file.exists()
        self._read()

    @property
    def wants_tokens(self) -> bool:
        """Nobody is let in without one."""
        if not self._closed and self._file.stamp() is not None:
            self._closed = True
        return self._closed

    def admit(self, headers: Mapping[str, str], address: str) -> Grant:
        """The grant of whoever sent these headers. Raises Refused."""
        if not self.wants_tokens:
            _check_neighbour(headers)
            return EVERYTHING
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refused(Kind.UNAUTHORIZED, "a worker token is needed", _MAKE)
        grant = self.find(token.strip())
        if grant is None:
            raise self._unknown(address)
        return grant

    def find(self, token: str) -> Grant | None:
        """What the token stands for now; ``None`` when it is wrong, expired or revoked: which, is not told."""
        self._refresh()
        record = self._tokens.get(id_of(token))
        # The same work whether the id is known or not.
        right = hmac.compare_digest(record.sha256 if record is not None else _NOBODY, hash_of(token))
        if record is None or not right or record.standing(self._now()) != "active":
            return None
        return record.grant()

    def still(self, grant: Grant) -> bool:
        """Does a grant that was given a while ago hold?"""
        if not grant.id:
            return not self.wants_tokens
        self._refresh()
        record = self._tokens.get(grant.id)
        return record is not None and record.standing(self._now()) == "active"

    def _unknown(self, address: str) -> Refused:
        count = self._wrong.add(address)
        if count == WRONG_PER_MINUTE:
            self._events.emit(WrongTokens(address, count))
        if count > WRONG_PER_MINUTE:
            return Refused(Kind.TOO_MANY, "too many wrong tokens from this address", _MAKE, retry_after=60)
        return Refused(Kind.UNAUTHORIZED, "this token is not valid (any more)", _MAKE)

    def _refresh(self) -> None:
        if self._file.stamp() != self._stamp:
            try:
                self._read()
            except ConfigurationError as error:  # a file that somebody wrote by hand: what was known still holds
                self._events.emit(TokensTrouble(str(error)))

    def _read(self) -> None:
        # The stamp first: what changes while we read is read again.
        self._stamp = self._file.stamp()
        self._tokens = {record.id: record for record in self._file.read()}


class _Wrong:
    """Counts wrong tokens, by address and minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, _Count] = OrderedDict()

    def add(self, address: str) -> int:
        """One more; how many in this minute."""
        now = self._clock.monotonic()
        count = self._counts.pop(address, None)
        if count is None or now - count.since >= 60:
            count = _Count(now)
        count.number += 1
        self._counts[address] = count
        if len(self._counts) > ADDRESSES:
            self._counts.popitem(last=False)
        return count.number


class _Count(msgspec.Struct):
    since: float
    number: int = 0


def _check_neighbour(headers: Mapping[str, str]) -> None:
    """A server without tokens is for programs of this machine: not for web pages that a browser shows here, whose
    name resolves to the loopback, nor for what a proxy brings in from outside."""
    if any(name in headers for name in FORWARDED):
        raise Refused(
            Kind.OUT_OF_SCOPE,
            "this server has no tokens, and a proxy stands before it",
            "make tokens first: stowhand tokens make --name NAME",
        )
    try:
        host = urlsplit(f"//{headers.get('host', '')}").hostname
    except ValueError:
        host = None
    if host not in LOOPBACK_NAMES or "origin" in headers:
        raise Refused(
            Kind.OUT_OF_SCOPE,
            "this server has no tokens, so it answers only to programs that ask for localhost",
            "ask for http://127.0.0.1:PORT, or make tokens: stowhand tokens make --name NAME",
        )
