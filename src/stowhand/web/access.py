"""Who asks, and what they may do; and that it is they who ask, and no other site by way of their browser.

A visitor is whom the application around the dashboard names; else the bearer of a token; else who has a cookie, which
stands for a token or for the one-time link; else whom a named proxy names; else, where nothing can be changed and there
are no tokens, a program of this machine.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError
from stowhand.remote.server.authenticator import FORWARDED, LOOPBACK_NAMES, Authenticator
from stowhand.remote.server.grants import EVERYTHING, Grant, Scope
from stowhand.remote.server.proxies import Proxies
from stowhand.remote.server.refusals import Refused
from stowhand.remote.server.token_file import hash_of
from stowhand.remote.wire import Kind
from stowhand.web.asked import Ask, Asked, Reply, Right, View, Who, redirect

LINK_LIFE, LINK_PAUSE = 600.0, 10.0
"""Seconds for which the one-time link is good, and between two: anybody here may ask for one."""
SESSION_LIFE = 12 * 3600.0
"""Seconds. A session also ends with the process, and with the token that began it."""
SESSIONS = 1000
SESSION, VISIT, SAID = "session", "visit", "said"
"""Cookies: who signed in; what ties a form to the browser that it was sent to; what became of the last form."""
SAID_BYTES, SAID_LIFE = 3000, 60
NAME_LIMIT = 128
"""Characters of a name that a proxy gives."""
RIGHTS = {Scope.READ: Right.LOOK, Scope.PAYLOAD: Right.PAYLOADS, Scope.ACT: Right.ACT, Scope.ADD: Right.ADD}
"""By the scope of a token that gives it."""
FOREIGN = (
    "another site sent this, or the page that it was sent from is older than this dashboard",
    "go back, load the page again, and send it once more; nothing was changed",
)
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)
_SECRET = re.compile(r"[\w-]{43}", re.ASCII)
_HOST = re.compile(r"(\[[\da-f:]+\]|[\w.-]+)(?::(\d{1,5}))?", re.ASCII | re.IGNORECASE)
_PAGE = re.compile(r"/(?:[a-z]+(?:/[a-z]+)*)?(?:\?[!-~]*)?")
"""A page of ours and its query. Each path is of fixed words, so this leads nowhere else."""


class Entrance(msgspec.Struct, frozen=True, kw_only=True):
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
                f"--trust-header {self.trust_header}: say which proxy sends it, and where browsers find it:"
                " --trust-from 10.0.0.0/8 --public-url https://jobs.example.com"
            )

    @property
    def most(self) -> frozenset[Right]:
        """All that anybody may do."""
        hidden = {Right.PAYLOADS} if self.hide_payloads else set()
        return frozenset(Right) - hidden - (set() if self.allow_actions else {Right.ACT, Right.ADD})


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


class Access:
    """On the event loop. Without an ``authenticator`` nobody comes in but whom the application around it names.

    ``link``: made where actions are allowed and nothing else tells who comes.
    """

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        entrance: Entrance | None = None,
        link: Link | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._entrance = entrance or Entrance()
        self._public = urlsplit(self._entrance.public_url)
        self._link = link
        self._clock = clock or SystemClock()
        # An application may have several processes, of which each takes the forms of the others.
        self._key = b"" if authenticator is None else secrets.token_bytes(32)
        self._sessions: OrderedDict[str, tuple[Grant, str, float]] = OrderedDict()
        """By the hash of the cookie, the oldest first: what it stands for, the name, and until when."""

    async def admit(self, asked: Asked) -> tuple[Asked, View | Reply | None]:
        """The request with its visitor and the token of its forms; and what is answered at once, if anything."""
        address = self._entrance.proxies.client(asked.peer, asked.headers)
        asked = msgspec.structs.replace(asked, secure=asked.secure or self._public.scheme == "https", address=address)
        visit = _kept(asked, VISIT) or secrets.token_urlsafe(32)
        said = tuple(filter(None, unquote(cookie_of(asked, SAID)).split("\n")))
        asked = self._as(msgspec.structs.replace(asked, visit=visit, said=said), asked.who)
        gate = self._authenticator
        try:
            if asked.path.startswith("/assets/"):
                return asked, None
            _check_site(asked)
            if asked.known:
                _check_form(asked)
                return asked, None
            if gate is None:
                raise _no("nobody is let in here", "give dashboard(…) the argument rights")
            asked, is_program = self._identified(asked, gate)
            if not is_program:
                _check_form(asked)
            return asked, self._door(asked, gate)
        except Refused as refused:
            if gate is not None and refused.kind in (Kind.UNAUTHORIZED, Kind.TOO_MANY):
                return asked, self._login(asked, gate, refused.status, refused.message)
            values = {"words": refused.message, "hint": refused.fix}
            return asked, View(template="base.html", title="Not allowed", values=values, status=refused.status)

    def protect(self, asked: Asked, reply: Reply) -> Reply:
        """The reply with the headers that every reply has, and the cookies that its forms and its message need."""
        more = [*HEADERS]
        if reply.said:
            more.append(new_cookie(asked, SAID, quote("\n".join(reply.said))[:SAID_BYTES], SAID_LIFE))
        elif asked.said and reply.is_page:
            more.append(new_cookie(asked, SAID, "", 0))
        has_forms = reply.is_page and (not asked.who.rights or asked.who.rights & {Right.ACT, Right.ADD})
        if has_forms and asked.visit not in (_kept(asked, VISIT), _kept(asked, SESSION)):
            more.append(new_cookie(asked, VISIT, asked.visit, None))
        if reply.status == 401:
            more.append(("www-authenticate", "Bearer"))
        return reply.with_headers(*more)

    # -- who -------------------------------------------------------------------------------------

    def _way(self, gate: Authenticator) -> Literal["token", "link", "proxy", "open"]:
        """How a person comes in. A file of tokens that is made later closes what was open."""
        if gate.wants_tokens:
            return "token"
        return "link" if self._link is not None else "proxy" if self._entrance.trust_header else "open"

    def _identified(self, asked: Asked, gate: Authenticator) -> tuple[Asked, bool]:
        """With its visitor; and whether that is a program, whose token no other site can make a browser send."""
        entrance, way = self._entrance, self._way(gate)
        self._check_host(asked, way)
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
        if way == "token" and scheme.lower() == "bearer":
            return self._as(asked, self._of_grant(_granted(gate, token.strip(), asked))), True
        cookie = _kept(asked, SESSION)
        grant, name, until = self._sessions.get(hash_of(cookie), (EVERYTHING, "", 0.0))
        if self._clock.monotonic() < until and gate.still(grant):
            asked = msgspec.structs.replace(asked, visit=cookie, is_session=True)
            return self._as(asked, self._of_grant(grant, name)), False
        if entrance.trust_header and asked.peer in entrance.proxies:
            return self._as(asked, Who(_named(asked, entrance.trust_header), entrance.most)), False
        if way == "open":
            return self._as(asked, Who(rights=entrance.most - {Right.ACT, Right.ADD})), False
        if way == "proxy":
            raise _no("this dashboard is reached through its proxy", f"open {entrance.public_url}")
        if asked.path not in ("/login", "/login/link"):
            raise Refused(Kind.UNAUTHORIZED, "This dashboard asks who you are.")
        return asked, False

    def _check_host(self, asked: Asked, way: str) -> None:
        """Where no secret is asked for, a page of another site must not pass for a visitor by giving its own name the
        address of this machine; nor must what a proxy brings in pass for a program of this machine."""
        by_proxy = bool(self._entrance.trust_header)
        if way == "token" and not by_proxy:
            return
        if _host(asked)[0] not in (*LOOPBACK_NAMES, self._public.hostname):
            known = self._entrance.public_url or "http://127.0.0.1:PORT"
            raise _no("this dashboard has another name", f"open {known}; a proxy before it is named by --public-url")
        if not by_proxy and any(name in asked.headers for name in FORWARDED):
            fix = "make a token: stowhand tokens make --name NAME --scope read; or let the proxy say: --trust-header"
            raise _no("a proxy stands before this dashboard, which does not ask who you are", fix)

    def _of_grant(self, grant: Grant, name: str = "") -> Who:
        given = {right for scope, right in RIGHTS.items() if scope in grant.scopes}
        return Who(name or f"{grant.name} ({grant.id})", self._entrance.most & given)

    def _as(self, asked: Asked, who: Who) -> Asked:
        """As this visitor. The token is bound to them and to a cookie, of which another site knows nothing."""
        made = hmac.new(self._key, f"{asked.visit}\n{who.name}".encode("utf-8", "replace"), "sha256")
        return msgspec.structs.replace(asked, who=who, token=made.hexdigest())

    # -- in and out ------------------------------------------------------------------------------

    def _door(self, asked: Asked, gate: Authenticator) -> View | Reply | None:
        way = self._way(gate)
        match way, "GET" if asked.method == "HEAD" else asked.method, asked.path:
            case "token" | "link", "GET", "/login":
                return self._login(asked, gate, 200, "")
            case "token" | "link", "POST", "/login":
                return self._sign_in(asked, gate, way)
            case "link", "POST", "/login/link" if self._link is not None:
                self._link.make()
                return redirect(asked.href("/login"))
            case _, "POST", "/logout":
                self._sessions.pop(hash_of(asked.visit), None)
                return redirect(asked.href("/"), new_cookie(asked, SESSION, "", 0))
        return None

    def _sign_in(self, asked: Asked, gate: Authenticator, way: str) -> Reply:
        grant, name = EVERYTHING, "link"
        if way == "token":
            grant, name = _granted(gate, asked.sent("secret").strip(), asked), ""
        elif self._link is None or not self._link.spend(asked.sent("code")):
            refused = gate.wrong(asked.address)
            raise Refused(refused.kind, "This link was used, or is more than ten minutes old.", status=refused.status)
        if not self._of_grant(grant).rights:
            fix = f"make one: stowhand tokens make --name {grant.name} --scope read,payload"
            raise _no("this token gives no right here", fix)
        self._sessions.pop(hash_of(asked.visit), None)
        visit = secrets.token_urlsafe(32)
        self._sessions[hash_of(visit)] = grant, name, self._clock.monotonic() + SESSION_LIFE
        if len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
        cookie = new_cookie(asked, SESSION, visit, round(SESSION_LIFE))
        return redirect(asked.prefix + page_of(asked.sent("back")), cookie)

    def _login(self, asked: Asked, gate: Authenticator, status: int, words: str) -> View:
        """A form for a token, or for the code of a link. To open the link spends nothing: programs open links, too."""
        onward = asked.again() if status == 401 and asked.method == "GET" else ""
        back = ("back", onward.removeprefix(asked.prefix) or asked.sent("back"))
        code = asked.first("code")
        if self._way(gate) == "token":
            ask = Ask(path="/login", button="Sign in", hidden=(back,), field=("secret", "Token", "password"))
            hint = "A token is made by: stowhand tokens make --name NAME --scope read,payload"
        elif code and status == 200:
            ask = Ask(path="/login", button="Sign in", hidden=(("code", code), back))
            hint = "The link is good for one use, and for ten minutes."
        else:
            ask = Ask(path="/login/link", button="Show a new link there")
            hint = "The link to sign in is in the terminal where this was started, or in the file that is named there."
        values = {"words": words, "hint": hint, "ask": ask, "onward": onward}
        return View(template="base.html", title="Sign in", values=values, status=status)


def page_of(given: str) -> str:
    """A page of ours to go to, from a form or an address; whatever is none is the first page."""
    return given if _PAGE.fullmatch(given) else "/"


def _no(message: str, fix: str) -> Refused:
    return Refused(Kind.OUT_OF_SCOPE, message, fix)


def _granted(gate: Authenticator, token: str, asked: Asked) -> Grant:
    grant = gate.find(token)
    if grant is None:
        raise gate.wrong(asked.address)
    if grant.tasks is not None or grant.queues is not None:
        fix = f"make one without limits: stowhand tokens make --name {grant.name} --scope read"
        raise _no("this token is for some tasks or queues, and the dashboard shows them all", fix)
    return grant


def _check_site(asked: Asked) -> None:
    """Raises Refused for what another site makes a browser ask for, except that it leads here by a link."""
    site = asked.headers.get("sec-fetch-site", "same-origin")  # an older browser, a program, or no TLS
    leads = asked.headers.get("sec-fetch-mode") == "navigate" and asked.headers.get("sec-fetch-dest") == "document"
    if site != "same-origin" and (asked.method == "POST" or not (leads or site == "none")):
        raise _no(*FOREIGN)


def _check_form(asked: Asked) -> None:
    """Raises Refused for a form that was not made here, for this visitor. ``null`` is what a browser says of itself
    where pages send no referrer, as ours: there the token alone decides."""
    origin = asked.headers.get("origin", "null")
    is_other = origin != "null" and urlsplit(origin).netloc.lower() != asked.headers.get("host", "").lower()
    sent = asked.sent("token").encode("utf-8", "replace")
    if asked.method == "POST" and (is_other or not hmac.compare_digest(asked.token.encode(), sent)):
        raise _no(*FOREIGN)


def _named(asked: Asked, header: str) -> str:
    name = asked.headers.get(header.lower(), "").strip()
    # A comma joins two headers of this name, of which a visitor may have sent one.
    if not name or len(name) > NAME_LIMIT or not name.isprintable() or "," in name:
        raise _no(f"the proxy does not say in {header} who you are", "sign in at the proxy")
    return name


def _host(asked: Asked) -> tuple[str, str]:
    """Name and port; empty: none, or not a host at all."""
    found = _HOST.fullmatch(asked.headers.get("host", ""))
    return (found[1].strip("[]").lower(), found[2] or "") if found else ("", "")


# -- cookies -------------------------------------------------------------------------------------


def _name(asked: Asked, what: str) -> str:
    """A browser has one jar for all ports of a host. ``__Host-`` keeps neighbours of a domain from setting it."""
    port = _host(asked)[1]
    return f"{'__Host-' if asked.secure else ''}stowhand-{what}{port and '-'}{port}"


def cookie_of(asked: Asked, what: str) -> str:
    """Its value; empty: there is none."""
    pairs = (part.strip().partition("=") for part in asked.headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name == _name(asked, what)), "")


def _kept(asked: Asked, what: str) -> str:
    """A secret of ours; empty: there is none."""
    found = cookie_of(asked, what)
    return found if _SECRET.fullmatch(found) else ""


def new_cookie(asked: Asked, what: str, value: str, life: int | None) -> tuple[str, str]:
    """A header. ``life``: seconds; ``None``: until the browser ends; 0: it is forgotten."""
    # The visit's comes along where a link of another site leads here, or that page would begin another visit.
    site = "Lax" if what == VISIT else "Strict"
    path = "/" if asked.secure else asked.prefix or "/"
    ends = ("" if life is None else f"; Max-Age={life}") + ("; Secure" if asked.secure else "")
    return "set-cookie", f"{_name(asked, what)}={value}; Path={path}; HttpOnly; SameSite={site}{ends}"
