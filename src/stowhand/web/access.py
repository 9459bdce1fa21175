"""That it is the visitor who asks, and no other site by way of their browser; what every reply has; how one signs in.

Whom the application around the dashboard names is known already; else ``visitors.py`` finds out who it is.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlsplit

import msgspec

from stowhand.remote.server.refusals import Refused, forbidden
from stowhand.remote.wire import Kind, Scope
from stowhand.web.asked import Ask, Asked, Reply, Right, View, Who, redirect
from stowhand.web.visitors import SESSION_LIFE, Entrance, Visitors

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
"""Of every reply to a browser."""
SESSION, VISIT, SAID = "session", "visit", "said"
"""Cookies: who signed in; what ties a form to the browser that it was sent to; what became of the last form."""
SAID_BYTES, SAID_LIFE = 3000, 60
REFUSAL_HEADERS = {401: [("www-authenticate", "Bearer")], 429: [("retry-after", "60")]}
RIGHTS = {Scope.READ: Right.LOOK, Scope.PAYLOAD: Right.PAYLOADS, Scope.ACT: Right.ACT, Scope.ADD: Right.ADD}
"""By the scope of a token that gives it."""
_PAGE = re.compile(r"/(?:[a-z]+(?:/[a-z]+)*)?(?:\?[!-~]*)?")
"""A page of ours and its query. Each path is of fixed words, so this leads nowhere else."""


class Access:
    """Without ``visitors`` nobody comes in but whom the application around it names."""

    def __init__(self, visitors: Visitors | None = None) -> None:
        self._visitors = visitors
        # An application may have several processes, of which each takes the forms of the others.
        self._key = b"" if visitors is None else secrets.token_bytes(32)

    async def admit(self, asked: Asked) -> tuple[Asked, View | Reply | None]:
        """The request with its visitor and the token of its forms; and what is answered at once, if anything."""
        visitors = self._visitors
        entrance = Entrance() if visitors is None else visitors.entrance
        secure = asked.secure or urlsplit(entrance.public_url).scheme == "https"
        address = entrance.proxies.client(asked.peer, asked.headers)
        asked = msgspec.structs.replace(asked, secure=secure, address=address)
        visit = asked.cookies.get(VISIT) or secrets.token_urlsafe(32)
        said = tuple(filter(None, unquote(asked.cookies.get(SAID)).split("\n")))
        asked = self._as(msgspec.structs.replace(asked, visit=visit, said=said), asked.who)
        try:
            if asked.path.startswith("/assets/"):
                return asked, None
            _check_site(asked.method, asked.headers)
            if visitors is not None and not asked.known:
                return self._found(asked, visitors)
            if not asked.known:
                raise forbidden("access denied: no rights configured", "give dashboard(…) the argument rights")
            _check_form(asked)
            return asked, None
        except Refused as refused:
            if visitors is not None and refused.kind in (Kind.UNAUTHORIZED, Kind.TOO_MANY):
                return asked, _login(asked, visitors, refused.status, refused.message)
            values = {"words": refused.message, "hint": refused.fix}
            return asked, View(template="base.html", title="Not allowed", values=values, status=refused.status)

    def protect(self, asked: Asked, reply: Reply) -> Reply:
        """The reply with the headers that every reply has, and the cookies that its forms and its message need."""
        more = [*HEADERS]
        if reply.said:
            more.append(asked.cookies.new(SAID, quote("\n".join(reply.said))[:SAID_BYTES], SAID_LIFE))
        elif asked.said and reply.is_page:
            more.append(asked.cookies.new(SAID, "", 0))
        has_forms = reply.is_page and (not asked.who.rights or asked.who.rights & {Right.ACT, Right.ADD})
        if has_forms and asked.visit not in (asked.cookies.get(VISIT), asked.cookies.get(SESSION)):
            # Lax: or a page to which a link of another site leads would begin another visit.
            more.append(asked.cookies.new(VISIT, asked.visit, None, site="Lax"))
        more += REFUSAL_HEADERS.get(reply.status, ())
        return reply.with_headers(*more)

    def _found(self, asked: Asked, visitors: Visitors) -> tuple[Asked, View | Reply | None]:
        session = asked.cookies.get(SESSION)
        visitor = visitors.find(asked.headers, asked.peer, session)
        if visitor is not None:
            if visitor.is_session:
                asked = msgspec.structs.replace(asked, visit=session, is_session=True)
            rights = frozenset(right for scope, right in RIGHTS.items() if scope in visitor.scopes)
            asked = self._as(asked, Who(visitor.name, rights))
        elif asked.path not in ("/login", "/login/link"):
            raise Refused(Kind.UNAUTHORIZED, "This dashboard asks who you are.")
        if visitor is None or not visitor.is_program:
            _check_form(asked)
        return asked, _door(asked, visitors)

    def _as(self, asked: Asked, who: Who) -> Asked:
        """As this visitor. The token is bound to them and to a cookie, of which another site knows nothing."""
        made = hmac.new(self._key, f"{asked.visit}\n{who.name}".encode("utf-8", "replace"), "sha256")
        return msgspec.structs.replace(asked, who=who, token=made.hexdigest())


def _check_site(method: str, headers: Mapping[str, str]) -> None:
    """Raises Refused for what another site makes a browser ask for, except that it leads here by a link."""
    site = headers.get("sec-fetch-site", "same-origin")  # an older browser, a program, or no TLS
    leads = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if site != "same-origin" and (method == "POST" or not (leads or site == "none")):
        raise _foreign()


def _check_form(asked: Asked) -> None:
    """Raises Refused for a form of another site, or without the token that its page was given. ``null`` is what a
    browser says of its origin where pages send no referrer: there the token alone decides."""
    if asked.method != "POST":
        return
    origin = asked.headers.get("origin", "null")
    is_other = origin != "null" and urlsplit(origin).netloc.lower() != asked.headers.get("host", "").lower()
    if is_other or not hmac.compare_digest(asked.token.encode(), asked.sent("token").encode("utf-8", "replace")):
        raise _foreign()


def _foreign() -> Refused:
    return forbidden(
        "another site sent this, or the page that it was sent from is older than this dashboard",
        "go back, load the page again, and send it once more; nothing was changed",
    )


def _door(asked: Asked, visitors: Visitors) -> View | Reply | None:
    match visitors.way, "GET" if asked.method == "HEAD" else asked.method, asked.path:
        case "token" | "link", "GET", "/login":
            return _login(asked, visitors, 200, "")
        case "token" | "link", "POST", "/login":
            session = visitors.sign_in(asked.sent("secret").strip(), asked.address, asked.visit)
            cookie = asked.cookies.new(SESSION, session, round(SESSION_LIFE))
            return redirect(asked.prefix + page_of(asked.sent("back")), cookie)
        case "link", "POST", "/login/link":
            visitors.show_link()
            return redirect(asked.href("/login"))
        case _, "POST", "/logout":
            visitors.sign_out(asked.visit)
            return redirect(asked.href("/"), asked.cookies.new(SESSION, "", 0))
    return None


def _login(asked: Asked, visitors: Visitors, status: int, words: str) -> View:
    """A form for a token, or for the code of a link. To open the link spends nothing: programs open links, too."""
    onward = asked.again() if status == 401 and asked.method == "GET" else ""
    back = ("back", onward.removeprefix(asked.prefix) or asked.sent("back"))
    code = asked.first("code")
    if visitors.way == "token":
        ask = Ask(path="/login", button="Sign in", hidden=(back,), field=("secret", "Token", "password"))
        hint = "A token is made by: stowhand tokens make --name NAME --scope read,payload"
    elif code and status == 200:
        ask = Ask(path="/login", button="Sign in", hidden=(("secret", code), back))
        hint = "The link is good for one use, and for ten minutes."
    else:
        ask = Ask(path="/login/link", button="Show a new link there")
        hint = "The link to sign in is in the terminal where this was started, or in the file that is named there."
    values = {"words": words, "hint": hint, "ask": ask, "onward": onward}
    return View(template="base.html", title="Sign in", values=values, status=status)


def page_of(given: str) -> str:
    """A page of ours to go to, from a form or an address; whatever is none is the first page."""
    return given if _PAGE.fullmatch(given) else "/"
