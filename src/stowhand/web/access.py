"""Access control: protection against other sites, the headers of every reply, and signing in.

The surrounding application names the visitor, or ``visitors.py`` identifies them.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlsplit

import msgspec

from stowhand.remote.server.refusals import Refused, forbidden
from stowhand.remote.wire import ErrorKind, Scope
from stowhand.web.request import Form, Reply, Request, Right, View, Visitor, redirect
from stowhand.web.visitors import SESSION_LIFE_SECONDS, SignIn, Visitors

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
REPLY_HEADERS = (
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)
"""Headers of every reply to a browser."""
SESSION_COOKIE = "session"
VISIT_COOKIE = "visit"
"""Cookie with the secret that binds forms to a browser."""
MESSAGES_COOKIE = "messages"
"""Cookie with the messages about the last form."""
MAX_MESSAGES_BYTES = 3000
MESSAGES_LIFE_SECONDS = 60
REFUSAL_HEADERS = {401: [("www-authenticate", "Bearer")], 429: [("retry-after", "60")]}
RIGHT_BY_SCOPE = {
    Scope.READ: Right.LOOK,
    Scope.PAYLOAD: Right.PAYLOADS,
    Scope.ACT: Right.ACT,
    Scope.ADD: Right.ADD,
}
"""The right that each scope of a token grants."""
_OWN_PAGE_PATTERN = re.compile(r"/(?:[a-z]+(?:/[a-z]+)*)?(?:\?[!-~]*)?")
"""A page of the dashboard and its query. The path contains only letters: a redirect cannot lead to another site."""


class Access:
    """Access control of requests. Without ``visitors``, the surrounding application must name each visitor."""

    def __init__(self, visitors: Visitors | None = None) -> None:
        self._visitors = visitors
        # A mounted dashboard has no secret key: each process of the application must accept forms of the others.
        self._key = b"" if visitors is None else secrets.token_bytes(32)

    async def admit(self, request: Request) -> tuple[Request, View | Reply | None]:
        """Return the request with its visitor and form token, and a reply if the request is answered at once."""
        visitors = self._visitors
        sign_in_options = SignIn() if visitors is None else visitors.sign_in_options
        is_secure = request.is_secure or urlsplit(sign_in_options.public_url).scheme == "https"
        address = sign_in_options.proxies.client(request.peer, request.headers)
        request = msgspec.structs.replace(request, is_secure=is_secure, address=address)
        visit_secret = request.cookies.get(VISIT_COOKIE) or secrets.token_urlsafe(32)
        messages = tuple(filter(None, unquote(request.cookies.get(MESSAGES_COOKIE)).split("\n")))
        request = self._with_visitor(
            msgspec.structs.replace(request, visit_secret=visit_secret, messages=messages), request.visitor
        )
        try:
            if request.path.startswith("/assets/"):
                return request, None
            _check_site(request.method, request.headers)
            if visitors is not None and not request.is_identified:
                return self._identify(request, visitors)
            if not request.is_identified:
                raise forbidden("access denied: no rights configured", "pass the argument rights to dashboard(…)")
            _check_form(request)
            return request, None
        except Refused as refused:
            if visitors is not None and refused.kind in (ErrorKind.UNAUTHORIZED, ErrorKind.TOO_MANY):
                return request, _login(request, visitors, refused.status, refused.message)
            values = {"message": refused.message, "hint": refused.fix}
            return request, View(template="base.html", title="Access denied", values=values, status=refused.status)

    def protect(self, request: Request, reply: Reply) -> Reply:
        """Return the reply with the common headers, and the cookies for its forms and messages."""
        headers = [*REPLY_HEADERS]
        if reply.messages:
            headers.append(
                request.cookies.new(
                    MESSAGES_COOKIE, quote("\n".join(reply.messages))[:MAX_MESSAGES_BYTES], MESSAGES_LIFE_SECONDS
                )
            )
        elif request.messages and reply.is_page:
            headers.append(request.cookies.new(MESSAGES_COOKIE, "", 0))
        has_forms = reply.is_page and (not request.visitor.rights or request.visitor.rights & {Right.ACT, Right.ADD})
        if has_forms and request.visit_secret not in (
            request.cookies.get(VISIT_COOKIE),
            request.cookies.get(SESSION_COOKIE),
        ):
            # Lax: Strict would drop the cookie when following a link of another site.
            headers.append(request.cookies.new(VISIT_COOKIE, request.visit_secret, None, site="Lax"))
        headers += REFUSAL_HEADERS.get(reply.status, ())
        return reply.with_headers(*headers)

    def _identify(self, request: Request, visitors: Visitors) -> tuple[Request, View | Reply | None]:
        session = request.cookies.get(SESSION_COOKIE)
        visitor = visitors.find(request.headers, request.peer, session)
        if visitor is not None:
            if visitor.is_session:
                request = msgspec.structs.replace(request, visit_secret=session, is_session=True)
            rights = frozenset(right for scope, right in RIGHT_BY_SCOPE.items() if scope in visitor.scopes)
            request = self._with_visitor(request, Visitor(visitor.name, rights))
        elif request.path not in ("/login", "/login/link"):
            raise Refused(ErrorKind.UNAUTHORIZED, "Sign in to see this dashboard.")
        if visitor is None or not visitor.is_program:
            _check_form(request)
        return request, _sign_in_reply(request, visitors)

    def _with_visitor(self, request: Request, visitor: Visitor) -> Request:
        """Return the request with its visitor. The token depends on the visitor and a secret cookie."""
        digest = hmac.new(self._key, f"{request.visit_secret}\n{visitor.name}".encode("utf-8", "replace"), "sha256")
        return msgspec.structs.replace(request, visitor=visitor, form_token=digest.hexdigest())


def _check_site(method: str, headers: Mapping[str, str]) -> None:
    """Raise Refused for a request that another site caused, unless the visitor followed a link."""
    site = headers.get("sec-fetch-site", "same-origin")  # Missing: an older browser, a program, or no TLS.
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if site != "same-origin" and (method == "POST" or not (is_link or site == "none")):
        raise _foreign_request()


def _check_form(request: Request) -> None:
    """Raise Refused for a form of another site, or without the token of its page.

    For pages that send no referrer, browsers send the origin ``null``. Then the token alone decides.
    """
    if request.method != "POST":
        return
    origin = request.headers.get("origin", "null")
    is_other_site = origin != "null" and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
    if is_other_site or not hmac.compare_digest(
        request.form_token.encode(), request.form_value("token").encode("utf-8", "replace")
    ):
        raise _foreign_request()


def _foreign_request() -> Refused:
    return forbidden(
        "another site sent this form, or its page was loaded before this dashboard started",
        "nothing was changed; go back, reload the page, and send the form again",
    )


def _sign_in_reply(request: Request, visitors: Visitors) -> View | Reply | None:
    match visitors.method, "GET" if request.method == "HEAD" else request.method, request.path:
        case "token" | "link", "GET", "/login":
            return _login(request, visitors, 200, "")
        case "token" | "link", "POST", "/login":
            session = visitors.sign_in(request.form_value("secret").strip(), request.address, request.visit_secret)
            cookie = request.cookies.new(SESSION_COOKIE, session, round(SESSION_LIFE_SECONDS))
            return redirect(request.prefix + own_page(request.form_value("back")), cookie)
        case "link", "POST", "/login/link":
            visitors.show_link()
            return redirect(request.href("/login"))
        case _, "POST", "/logout":
            visitors.sign_out(request.visit_secret)
            return redirect(request.href("/"), request.cookies.new(SESSION_COOKIE, "", 0))
    return None


def _login(request: Request, visitors: Visitors, status: int, message: str) -> View:
    """Return a form for a token or the code of a link. Opening the link does not use it: programs may open links."""
    next_url = request.same_page_href() if status == 401 and request.method == "GET" else ""
    back = ("back", next_url.removeprefix(request.prefix) or request.form_value("back"))
    code = request.query_value("code")
    if visitors.method == "token":
        form = Form(path="/login", button="Sign in", hidden=(back,), field=("secret", "Token", "password"))
        hint = "To make a token, run: stowhand tokens make --name NAME --scope read,payload"
    elif code and status == 200:
        form = Form(path="/login", button="Sign in", hidden=(("secret", code), back))
        hint = "The link works once and expires after ten minutes."
    else:
        form = Form(path="/login/link", button="Make a new link")
        hint = "The sign-in link is in the terminal where this dashboard was started, or in the file named there."
    values = {"message": message, "hint": hint, "form": form, "next_url": next_url}
    return View(template="base.html", title="Sign in", values=values, status=status)


def own_page(page: str) -> str:
    """Return ``page`` if it is a page of the dashboard, otherwise the first page."""
    return page if _OWN_PAGE_PATTERN.fullmatch(page) else "/"
