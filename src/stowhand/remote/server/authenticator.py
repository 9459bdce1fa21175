"""Authenticator of callers, by the worker token in the ``Authorization`` header.

Without tokens, only programs of this machine are accepted. The tokens file is checked at every request, so that a
revoked token is refused at once. A server that has once seen the file requires tokens until it ends: removing the file
does not open the server.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from urllib.parse import urlsplit

from stowhand.clock import Clock, wall_clock
from stowhand.errors import ConfigurationError
from stowhand.events import Events, InvalidTokensSent, TokenFileUnreadable
from stowhand.remote.server.refusals import Refused, forbidden
from stowhand.remote.server.tokens import UNLIMITED_GRANT, Grant, TokenFile, TokenRecord, hash_of, id_of
from stowhand.remote.wire import ErrorKind

MAX_WRONG_TOKENS_PER_MINUTE = 10
"""Wrong tokens from one address before it must wait."""
MAX_ADDRESSES = 4096
"""Number of addresses whose wrong tokens are counted."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_NO_TOKEN_HASH = hash_of("")
_TOKEN_ADVICE = "stowhand tokens make --name NAME, and send it as: Authorization: Bearer TOKEN"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Authenticator:
    """Authenticator of one server, on its event loop. ``required``: require tokens even while the file is missing."""

    def __init__(
        self,
        file: TokenFile,
        events: Events,
        clock: Clock,
        *,
        required: bool = False,
        now: Callable[[], datetime] = wall_clock,
    ) -> None:
        self._file = file
        self._events = events
        self._clock = clock
        self._now = now
        self._wrong_tokens = _WrongTokenCounter(clock)
        self._stamp: tuple[int, ...] | None = None
        self._tokens: dict[str, TokenRecord] = {}
        self._requires_tokens = required or file.exists()
        self._read()

    @property
    def requires_tokens(self) -> bool:
        """Whether requests without a token are refused."""
        if not self._requires_tokens and self._file.stamp() is not None:
            self._requires_tokens = True
        return self._requires_tokens

    def admit(self, headers: Mapping[str, str], address: str) -> Grant:
        """Return the grant of the sender of these headers. Raises Refused."""
        if not self.requires_tokens:
            _check_is_local(headers)
            return UNLIMITED_GRANT
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refused(ErrorKind.UNAUTHORIZED, "a worker token is required", _TOKEN_ADVICE)
        grant = self.find(token.strip())
        if grant is None:
            raise self.wrong(address)
        return grant

    def find(self, token: str) -> Grant | None:
        """Return the current grant of a token; ``None`` if it is wrong, expired or revoked (the reply is the same)."""
        self._refresh()
        record = self._tokens.get(id_of(token))
        # The comparison takes the same time for an unknown id, so that the time does not reveal which ids exist.
        is_right = hmac.compare_digest(record.sha256 if record is not None else _NO_TOKEN_HASH, hash_of(token))
        if record is None or not is_right or record.standing(self._now()) != "active":
            return None
        return record.grant()

    def is_valid(self, grant: Grant) -> bool:
        """Return whether the token of this grant is still valid."""
        if not grant.id:
            return not self.requires_tokens
        self._refresh()
        record = self._tokens.get(grant.id)
        return record is not None and record.standing(self._now()) == "active"

    def wrong(self, address: str) -> Refused:
        """Count a wrong token, and return its refusal."""
        count = self._wrong_tokens.add(address)
        if count == MAX_WRONG_TOKENS_PER_MINUTE:
            self._events.emit(InvalidTokensSent(address, count))
        if count > MAX_WRONG_TOKENS_PER_MINUTE:
            return Refused(
                ErrorKind.TOO_MANY,
                "too many wrong tokens from this address; wait a minute",
                _TOKEN_ADVICE,
                retry_after=60,
            )
        return Refused(ErrorKind.UNAUTHORIZED, "this token is wrong, expired or revoked", _TOKEN_ADVICE)

    def _refresh(self) -> None:
        if self._file.stamp() != self._stamp:
            try:
                self._read()
            except ConfigurationError as error:  # a broken file, edited by hand: the tokens read before stay valid
                self._events.emit(TokenFileUnreadable(str(error)))

    def _read(self) -> None:
        # Read the stamp first, so that the next request sees a change that happens during this read.
        self._stamp = self._file.stamp()
        self._tokens = {record.id: record for record in self._file.read()}


class _WrongTokenCounter:
    """Counter of wrong tokens, by address and minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """By address: the start of its minute, and the count."""

    def add(self, address: str) -> int:
        """Count one more, and return the count of this minute."""
        now = self._clock.monotonic()
        started_at, count = self._counts.pop(address, (now, 0))
        if now - started_at >= 60:
            started_at, count = now, 0
        self._counts[address] = started_at, count + 1
        if len(self._counts) > MAX_ADDRESSES:
            self._counts.popitem(last=False)
        return count + 1


def host_of(headers: Mapping[str, str]) -> tuple[str, int | None]:
    """Return the host name, in lower case, and the port of the ``Host`` header. The name is empty if it is invalid."""
    try:
        host = urlsplit(f"//{headers.get('host', '')}")
        return host.hostname or "", host.port
    except ValueError:
        return "", None


def is_forwarded(headers: Mapping[str, str]) -> bool:
    """Return whether a proxy has forwarded the request."""
    return any(name in headers for name in FORWARDING_HEADERS)


def _check_is_local(headers: Mapping[str, str]) -> None:
    """Raise Refused unless a program of this machine has sent the request.

    Requests of web pages, whose host name may resolve to the loopback, and requests that a proxy forwards are refused.
    """
    if is_forwarded(headers):
        raise forbidden(
            "this server has no tokens, so it refuses requests that a proxy forwards",
            "make tokens first: stowhand tokens make --name NAME",
        )
    if host_of(headers)[0] not in LOOPBACK_NAMES or "origin" in headers:
        raise forbidden(
            "this server has no tokens, so it accepts only requests to localhost that no web page has sent",
            "use http://127.0.0.1:PORT, or make tokens: stowhand tokens make --name NAME",
        )


class Proxies:
    """Trusted proxies, which report the address of their client.

    A proxy is recognized only by the address at the other end of the socket, which no request can forge.
    ``networks``: addresses of proxies, such as ``10.0.0.0/8`` or ``127.0.0.1``. Raises ConfigurationError.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = tuple(map(_network, networks))

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, peer: object) -> bool:
        """Return whether the program at this address is one of the proxies."""
        address = _address(str(peer))
        return address is not None and any(address in network for network in self._networks)

    def client(self, peer: str, headers: Mapping[str, str]) -> str:
        """Return the client's address: the last in ``X-Forwarded-For`` that is not a proxy's, else the socket's.

        Each proxy appends the address of its own client, so earlier addresses may be forged.
        """
        if peer not in self:
            return peer
        hops = [hop.strip() for hop in headers.get("x-forwarded-for", "").split(",")]
        client = next((hop for hop in reversed(hops) if hop not in self), peer)
        return peer if _address(client) is None else client


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ConfigurationError(
            f"--trust-from {text}: not a network; use the addresses of your proxy, such as 10.0.0.0/8 or 127.0.0.1"
        ) from None


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address  # a dual-stack socket reports mapped IPv4 addresses
