"""What browsers send by themselves and are told to refuse: cookies, where a request comes from, policies."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from stowhand.remote.server.authenticator import host_of
from stowhand.remote.server.refusals import Refused, forbidden

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


class Cookies(msgspec.Struct, frozen=True):
    """Those of one request, and new ones for its reply. A browser has one jar for all ports of a host."""

    headers: Mapping[str, str]
    secure: bool
    """It came over TLS."""
    path: str
    """Below which they are sent."""

    def get(self, what: str) -> str:
        """Its value; empty: there is none."""
        pairs = (part.strip().partition("=") for part in self.headers.get("cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == self._name(what)), "")

    def new(self, what: str, value: str, life: int | None, *, site: str = "Strict") -> tuple[str, str]:
        """A header. ``life``: seconds; ``None``: until the browser ends; 0: it is forgotten. ``site``: ``Lax`` comes
        along where a link of another site leads here."""
        path = "/" if self.secure else self.path or "/"
        ends = ("" if life is None else f"; Max-Age={life}") + ("; Secure" if self.secure else "")
        return "set-cookie", f"{self._name(what)}={value}; Path={path}; HttpOnly; SameSite={site}{ends}"

    def _name(self, what: str) -> str:
        """``__Host-`` keeps neighbours of a domain from setting it."""
        port = host_of(self.headers)[1]
        return f"{'__Host-' if self.secure else ''}stowhand-{what}{'' if port is None else f'-{port}'}"


def check_site(method: str, headers: Mapping[str, str]) -> None:
    """Raises Refused for what another site makes a browser ask for, except that it leads here by a link."""
    site = headers.get("sec-fetch-site", "same-origin")  # an older browser, a program, or no TLS
    leads = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if site != "same-origin" and (method == "POST" or not (leads or site == "none")):
        raise _foreign()


def check_form(headers: Mapping[str, str], token: str, sent: str) -> None:
    """Raises Refused for a form of another site, or without the ``token`` that its page was given. ``null`` is what a
    browser says of its origin where pages send no referrer: there the token alone decides."""
    origin = headers.get("origin", "null")
    is_other = origin != "null" and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    if is_other or not hmac.compare_digest(token.encode(), sent.encode("utf-8", "replace")):
        raise _foreign()


def _foreign() -> Refused:
    return forbidden(
        "another site sent this, or the page that it was sent from is older than this dashboard",
        "go back, load the page again, and send it once more; nothing was changed",
    )
