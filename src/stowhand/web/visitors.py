"""Identity and maximum rights of the visitors of a dashboard with its own server.

The first match identifies a visitor: a bearer token; a session, started with a token or the one-time link; the name
from a trusted proxy. On a read-only dashboard without tokens, programs of this machine need no identity.

Links and sessions are valid in this process only. It keeps hashes of the session secrets.
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
from stowhand.remote.server.tokens import DASHBOARD_ONLY_SCOPES, UNLIMITED_GRANT, Grant, hash_of
from stowhand.remote.wire import ErrorKind, Scope

MAX_NAME_LENGTH = 128
"""Maximum number of characters of a name from a proxy."""
DASHBOARD_SCOPES = frozenset({Scope.READ, Scope.PAYLOAD, *DASHBOARD_ONLY_SCOPES})
"""Scopes that a browser can use."""
LINK_LIFE_SECONDS = 600.0
LINK_PAUSE_SECONDS = 10.0
"""Minimum time between two one-time links. Every visitor may request one."""
SESSION_LIFE_SECONDS = 12 * 3600.0
MAX_SESSIONS = 1000
"""Maximum number of concurrent sessions; a further one ends the oldest."""


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """Options for signing in. Raises ConfigurationError."""

    allow_actions: bool = False
    """Whether visitors may act and add. If not, no token permits it."""
    hide_payloads: bool = False
    """Whether payloads are hidden from all visitors. If so, no token shows them."""
    trust_header: str = ""
    """Header in which a proxy names the visitor. Such a visitor has all allowed scopes."""
    proxies: Proxies = Proxies()
    public_url: str = ""
    """URL of the dashboard behind a proxy: ``https://jobs.example.com``."""

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
        """Scopes that visitors can have."""
        scopes = DASHBOARD_SCOPES
        if self.hide_payloads:
            scopes -= {Scope.PAYLOAD}
        return scopes if self.allow_actions else scopes - DASHBOARD_ONLY_SCOPES


class IdentifiedVisitor(msgspec.Struct, frozen=True):
    """An identified visitor."""

    name: str
    """Name for the audit; empty if not known."""
    scopes: frozenset[str]
    is_program: bool = False
    """Whether the visitor sends a token in a header, which another site cannot make a browser do."""
    is_session: bool = False
    """Whether the visitor has signed in here, and may sign out."""


class Visitors:
    """Visitors of one event loop. ``link`` is set if actions are allowed without tokens or a trusted proxy."""

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
        """How visitors sign in. A token file that is made later requires tokens from then on."""
        if self._authenticator.requires_tokens:
            return "token"
        if self._link is not None:
            return "link"
        return "proxy" if self.sign_in_options.trust_header else "open"

    def find(self, headers: Mapping[str, str], peer: str, session: str) -> IdentifiedVisitor | None:
        """Return the visitor; ``None`` if they must sign in. ``session``: the value of their cookie. Raises Refused."""
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
            name = _name_from_proxy(headers, sign_in_options.trust_header)
            return IdentifiedVisitor(name, sign_in_options.allowed_scopes)
        if method == "open":
            return IdentifiedVisitor("", sign_in_options.allowed_scopes - DASHBOARD_ONLY_SCOPES)
        if method == "proxy":
            raise forbidden("this dashboard is available only through its proxy", f"open {sign_in_options.public_url}")
        return None

    def sign_in(self, secret: str, address: str, old_session: str) -> str:
        """Check a token or the code of the link. Replace the old session, and return the new one. Raises Refused."""
        method = self.method
        try:
            grant = self._check_secret(secret, address)
        except Refused as refused:
            if refused.kind is not ErrorKind.TOO_MANY:  # Rate-limited visitors must not fill the log.
                self._events.emit(DashboardChanged("sign in", "", (method,), ("refused",), address))
            raise
        self._events.emit(DashboardChanged("sign in", _name_of(grant), (method,), ("done",), address))
        self._sessions.end(old_session)
        return self._sessions.start(grant)

    def sign_out(self, session: str) -> None:
        self._sessions.end(session)

    def show_link(self) -> None:
        """Show a new link to the owner of this process."""
        if self._link is not None:
            self._link.make()

    def _check_secret(self, secret: str, address: str) -> Grant:
        if self._link is None or self.method == "token":
            grant = self._check_token(secret, address)
            if not self.sign_in_options.allowed_scopes & grant.scopes:
                fix = f"make one: stowhand tokens make --name {grant.name} --scope read,payload"
                raise forbidden("this token gives no right on this dashboard", fix)
            return grant
        if not self._link.use(secret):
            refused = self._authenticator.wrong(address)
            raise Refused(refused.kind, "This link was already used or has expired.", status=refused.status)
        return UNLIMITED_GRANT

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
        """Raise Refused for an unknown host name or an undeclared proxy where no token is required.

        Another site could resolve its name to this machine and then act as a visitor. Requests through a proxy would
        look like requests of programs of this machine.
        """
        sign_in_options = self.sign_in_options
        if self.method == "token" and not sign_in_options.trust_header:
            return
        if host_of(headers)[0] not in (*LOOPBACK_NAMES, urlsplit(sign_in_options.public_url).hostname):
            url = sign_in_options.public_url or "http://127.0.0.1:PORT"
            fix = f"open {url}; name the URL of a proxy with --public-url"
            raise forbidden("the URL has an unknown host name", fix)
        if not sign_in_options.trust_header and is_forwarded(headers):
            fix = "make a token: stowhand tokens make --name NAME --scope read; or name the visitor: --trust-header"
            raise forbidden("access denied: this dashboard is behind a proxy and has no sign-in", fix)


class SignInLink:
    """One-time link that signs in its first user. ``show`` shows its path only to the owner of this process."""

    def __init__(self, show: Callable[[str], None], clock: Clock) -> None:
        self._show = show
        self._clock = clock
        self._code = ""
        self._valid_until = 0.0

    def make(self) -> None:
        """Make a new link that replaces the previous one. Keep an unused link that is only some seconds old."""
        now = self._clock.monotonic()
        if not self._code or now >= self._valid_until - LINK_LIFE_SECONDS + LINK_PAUSE_SECONDS:
            self._code = secrets.token_urlsafe(32)
            self._valid_until = now + LINK_LIFE_SECONDS
            self._show(f"/login?code={self._code}")

    def use(self, code: str) -> bool:
        """Use the link. Return False for a wrong, used or expired code."""
        is_valid = self._code and self._clock.monotonic() < self._valid_until
        if not is_valid or not hmac.compare_digest(hash_of(self._code), hash_of(code)):
            return False
        self._code = ""
        return True


class Sessions:
    """Grants of the visitors' session cookies."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._grants: OrderedDict[str, tuple[Grant, float]] = OrderedDict()
        """Grants and expiry times by the hash of the cookie, oldest first."""

    def start(self, grant: Grant) -> str:
        """Start a session and return its secret."""
        secret = secrets.token_urlsafe(32)
        self._grants[hash_of(secret)] = grant, self._clock.monotonic() + SESSION_LIFE_SECONDS
        if len(self._grants) > MAX_SESSIONS:
            self._grants.popitem(last=False)
        return secret

    def find(self, secret: str) -> Grant | None:
        """Return the grant of a session; ``None`` if unknown or expired. The authenticator checks the grant itself."""
        entry = self._grants.get(hash_of(secret))
        return entry[0] if entry is not None and self._clock.monotonic() < entry[1] else None

    def end(self, secret: str) -> None:
        self._grants.pop(hash_of(secret), None)


def _name_of(grant: Grant) -> str:
    return f"{grant.name} ({grant.id})" if grant.id else "link"


def _name_from_proxy(headers: Mapping[str, str], header: str) -> str:
    name = headers.get(header.lower(), "").strip()
    # A comma may join two headers of this name, one of which the visitor may have sent.
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable() or "," in name:
        raise forbidden(f"the proxy does not name the visitor in {header}", "sign in at the proxy")
    return name
