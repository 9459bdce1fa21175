"""Who a visitor is, and what they may do at most: of the dashboard that has a server of its own.

A visitor is the bearer of a token; else who has a session, begun by a token or by the one-time link; else whom a named
proxy names; else, where nothing can be changed and there are no tokens, a program of this machine.

Links and sessions are secrets of this process, of which it keeps hashes, and end with it.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from stowhand.clock import Clock
from stowhand.errors import ConfigurationError
from stowhand.events import DashboardChanged, Events
from stowhand.remote.server.authenticator import LOOPBACK_NAMES, Authenticator, Proxies, host_of, is_forwarded
from stowhand.remote.server.refusals import Refused, forbidden
from stowhand.remote.server.tokens import DASHBOARD_ONLY_SCOPES, EVERYTHING, Grant, hash_of
from stowhand.remote.wire import ErrorKind, Scope

MAX_NAME_LENGTH = 128
"""Characters of a name that a proxy gives."""
DASHBOARD_SCOPES = frozenset({Scope.READ, Scope.PAYLOAD, *DASHBOARD_ONLY_SCOPES})
"""What there is to do by a browser."""
LINK_LIFE_SECONDS, LINK_PAUSE_SECONDS = 600.0, 10.0
"""Seconds for which the one-time link is good, and between two: anybody here may ask for one."""
SESSION_LIFE_SECONDS = 12 * 3600.0
"""Seconds."""
MAX_SESSIONS = 1000
"""Sessions at a time; one more ends the oldest."""


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """How one comes in. Raises ConfigurationError."""

    allow_actions: bool = False
    """Without it nobody may act or add, whatever a token says."""
    hide_payloads: bool = False
    """Nobody may see payloads, whatever a token says."""
    trust_header: str = ""
    """The header in which a proxy names the visitor; that may do all there is to do."""
    proxies: Proxies = Proxies()
    public_url: str = ""
    """Where browsers find it behind a proxy: ``https://jobs.example.com``."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.public_url)
        if self.public_url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query):
            raise ConfigurationError(f"--public-url {self.public_url}: write it like https://jobs.example.com/queue")
        if self.trust_header and not (self.proxies and self.public_url):
            raise ConfigurationError(
                f"--trust-header {self.trust_header}: name the proxy that sends it, and the public URL:"
                " --trust-from 10.0.0.0/8 --public-url https://jobs.example.com"
            )

    @property
    def allowed_scopes(self) -> frozenset[str]:
        """The scopes of which anybody has some."""
        hidden = {Scope.PAYLOAD} if self.hide_payloads else set()
        return DASHBOARD_SCOPES - hidden - (frozenset() if self.allow_actions else DASHBOARD_ONLY_SCOPES)


class IdentifiedVisitor(msgspec.Struct, frozen=True):
    """Who has been found."""

    name: str
    """For the audit; empty: nobody has said."""
    scopes: frozenset[str]
    is_program: bool = False
    """It sends a token by itself, which no other site can make a browser do."""
    is_session: bool = False
    """They have signed in here, and may sign out."""


class Visitors:
    """On an event loop. ``link``: made where actions are allowed and nothing else tells who comes."""

    def __init__(
        self,
        authenticator: Authenticator,
        sign_in_options: SignIn,
        link: SignInLink | None,
        clock: Clock,
        events: Events,
    ) -> None:
        self.sign_in_options = sign_in_options
        self._authenticator = authenticator
        self._link = link
        self._events = events
        self._sessions = Sessions(clock)

    @property
    def method(self) -> Literal["token", "link", "proxy", "open"]:
        """How a person comes in. A file of tokens that is made later closes what was open."""
        if self._authenticator.requires_tokens:
            return "token"
        return "link" if self._link is not None else "proxy" if self.sign_in_options.trust_header else "open"

    def find(self, headers: Mapping[str, str], peer: str, session: str) -> IdentifiedVisitor | None:
        """``None``: they have to sign in. ``session``: of their cookie. Raises Refused."""
        sign_in_options, method = self.sign_in_options, self.method
        self._check_host(headers)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if method == "token" and scheme.lower() == "bearer":
            grant = self._check_token(token.strip(), sign_in_options.proxies.client(peer, headers))
            return IdentifiedVisitor(_name_of(grant), sign_in_options.allowed_scopes & grant.scopes, is_program=True)
        if (session_grant := self._sessions.find(session)) is not None and self._authenticator.is_valid(session_grant):
            return IdentifiedVisitor(
                _name_of(session_grant), sign_in_options.allowed_scopes & session_grant.scopes, is_session=True
            )
        if sign_in_options.trust_header and peer in sign_in_options.proxies:
            return IdentifiedVisitor(_named(headers, sign_in_options.trust_header), sign_in_options.allowed_scopes)
        if method == "open":
            return IdentifiedVisitor("", sign_in_options.allowed_scopes - DASHBOARD_ONLY_SCOPES)
        if method == "proxy":
            raise forbidden("this dashboard is reached through its proxy", f"open {sign_in_options.public_url}")
        return None

    def sign_in(self, secret: str, address: str, old_session: str) -> str:
        """A session for who knows the token or the code of the link, instead of an ``old`` one. Raises Refused."""
        method = self.method
        try:
            grant = self._check_secret(secret, address)
        except Refused as refused:
            if refused.kind is not ErrorKind.TOO_MANY:  # whom the brake stops does not fill the log
                self._events.emit(DashboardChanged("sign in", "", (method,), ("refused",), address))
            raise
        self._events.emit(DashboardChanged("sign in", _name_of(grant), (method,), ("done",), address))
        self._sessions.end(old_session)
        return self._sessions.start(grant)

    def sign_out(self, session: str) -> None:
        self._sessions.end(session)

    def show_link(self) -> None:
        """A new one, where those who may use it look."""
        if self._link is not None:
            self._link.make()

    def _check_secret(self, secret: str, address: str) -> Grant:
        if self._link is None or self.method == "token":
            grant = self._check_token(secret, address)
            if not self.sign_in_options.allowed_scopes & grant.scopes:
                fix = f"make one: stowhand tokens make --name {grant.name} --scope read,payload"
                raise forbidden("this token gives no right here", fix)
            return grant
        if not self._link.spend(secret):
            refused = self._authenticator.wrong(address)
            raise Refused(refused.kind, "This link was already used or has expired.", status=refused.status)
        return EVERYTHING

    def _check_token(self, token: str, address: str) -> Grant:
        grant = self._authenticator.find(token)
        if grant is None:
            raise self._authenticator.wrong(address)
        if not grant.sees_all:
            fix = f"make one without limits: stowhand tokens make --name {grant.name} --scope read"
            raise forbidden(
                "this token is limited to some tasks, queues or serial keys, but the dashboard shows all", fix
            )
        return grant

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """Where no secret is asked for, a page of another site must not pass for a visitor by giving its own name the
        address of this machine; nor must what a proxy brings in pass for a program of this machine."""
        sign_in_options = self.sign_in_options
        if self.method == "token" and not sign_in_options.trust_header:
            return
        if host_of(headers)[0] not in (*LOOPBACK_NAMES, urlsplit(sign_in_options.public_url).hostname):
            url = sign_in_options.public_url or "http://127.0.0.1:PORT"
            fix = f"open {url}; name the URL of a proxy with --public-url"
            raise forbidden("this dashboard has another name", fix)
        if not sign_in_options.trust_header and is_forwarded(headers):
            fix = "make a token: stowhand tokens make --name NAME --scope read; or name the visitor: --trust-header"
            raise forbidden("access denied: this dashboard is behind a proxy and has no sign-in", fix)


class SignInLink:
    """Signs in whoever uses it first. ``show``: is given its path, and shows it to the owner of this process alone."""

    def __init__(self, show: Callable[[str], None], clock: Clock) -> None:
        self._show = show
        self._clock = clock
        self._code, self._valid_until = "", 0.0

    def make(self) -> None:
        """A new one, which makes the one before void; but not within some seconds of one that was not used."""
        now = self._clock.monotonic()
        if not self._code or now >= self._valid_until - LINK_LIFE_SECONDS + LINK_PAUSE_SECONDS:
            self._code, self._valid_until = secrets.token_urlsafe(32), now + LINK_LIFE_SECONDS
            self._show(f"/login?code={self._code}")

    def spend(self, code: str) -> bool:
        """``False``: another code, or used, or too old."""
        is_valid = self._code and self._clock.monotonic() < self._valid_until
        if not is_valid or not hmac.compare_digest(hash_of(self._code), hash_of(code)):
            return False
        self._code = ""
        return True


class Sessions:
    """The grants that the cookies of visitors stand for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._grants: OrderedDict[str, tuple[Grant, float]] = OrderedDict()
        """By the hash of the cookie, the oldest first; and until when."""

    def start(self, grant: Grant) -> str:
        """The secret of a new one."""
        secret = secrets.token_urlsafe(32)
        self._grants[hash_of(secret)] = grant, self._clock.monotonic() + SESSION_LIFE_SECONDS
        if len(self._grants) > MAX_SESSIONS:
            self._grants.popitem(last=False)
        return secret

    def find(self, secret: str) -> Grant | None:
        """``None``: there is none, or not any more. Whether its grant still holds, the authenticator knows."""
        entry = self._grants.get(hash_of(secret))
        return entry[0] if entry is not None and self._clock.monotonic() < entry[1] else None

    def end(self, secret: str) -> None:
        self._grants.pop(hash_of(secret), None)


def _name_of(grant: Grant) -> str:
    return f"{grant.name} ({grant.id})" if grant.id else "link"


def _named(headers: Mapping[str, str], header: str) -> str:
    name = headers.get(header.lower(), "").strip()
    # A comma joins two headers of this name, of which a visitor may have sent one.
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable() or "," in name:
        raise forbidden(f"the proxy does not name you in {header}", "sign in at the proxy")
    return name
