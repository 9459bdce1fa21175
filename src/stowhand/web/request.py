"""Request and reply as plain values, for any server: ASGI, WSGI or Django."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlencode

import msgspec
from markupsafe import Markup, escape

from stowhand.errors import ConfigurationError, StowhandError
from stowhand.observe.safe_text import shorten
from stowhand.protocols.options import parse_word
from stowhand.remote.server.authenticator import host_of
from stowhand.remote.server.refusals import Refused
from stowhand.remote.wire import ErrorKind

T = TypeVar("T")
HTML_CONTENT_TYPE = "text/html; charset=utf-8"
MAX_NAME_LENGTH = 36
"""Maximum number of characters of a name in a list."""
MAX_FORM_FIELDS = 2000
MAX_FORM_BYTES = 4 << 20
"""Maximum size of a form. A payload has at most one megabyte, which quoting can triple."""
_BREAK_POSITIONS = re.compile(r"(?<=[._:/@-])(?=[^\W\d])|(?<=[a-z])(?=[A-Z])")
Fields = Mapping[str, Sequence[str]]
"""The fields of a query or a form: the values of each name, in the order of the request."""


class Right(StrEnum):
    """A right of a visitor. No right includes another."""

    LOOK = "look"
    """See jobs without their contents: ids, tasks, serial keys, states and times."""
    PAYLOADS = "payloads"
    """See the contents of jobs: payloads, results, keys, errors, progress texts, execution logs."""
    ACT = "act"
    """Change existing jobs and serial keys."""
    ADD = "add"
    """Enqueue jobs."""


class Visitor(msgspec.Struct, frozen=True):
    """A visitor with their rights."""

    name: str = ""
    """Name for the audit; empty if not known."""
    rights: frozenset[Right] = frozenset()

    def may(self, right: Right) -> bool:
        return right in self.rights

    @staticmethod
    def of(rights: Visitor | Iterable[str]) -> Visitor:
        """Return the visitor for an application's rights or ``Visitor``. Raises ConfigurationError."""
        try:
            return rights if isinstance(rights, Visitor) else Visitor(rights=frozenset(map(Right, rights)))
        except ValueError as error:
            raise ConfigurationError(f"dashboard: rights: {error}; use some of {', '.join(Right)}") from None


class Cookies(msgspec.Struct, frozen=True):
    """Cookies of a request and its reply. Their names contain the port, because all ports of a host share cookies."""

    headers: Mapping[str, str]
    is_secure: bool
    """Whether the request came over TLS."""
    path: str
    """Path below which browsers send the cookies."""

    def get(self, name: str) -> str:
        """Return the value; empty if the cookie is missing."""
        pairs = (part.strip().partition("=") for part in self.headers.get("cookie", "").split(";"))
        return next((value for full_name, _, value in pairs if full_name == self._full_name(name)), "")

    def new(self, name: str, value: str, max_age_seconds: int | None, *, site: str = "Strict") -> tuple[str, str]:
        """Return the header of a new cookie.

        ``max_age_seconds``: ``None`` keeps the cookie until the browser closes, 0 deletes it. ``site``: ``Lax`` cookies
        are also sent when a visitor follows a link of another site.
        """
        path = "/" if self.is_secure else self.path or "/"
        cookie = f"{self._full_name(name)}={value}; Path={path}; HttpOnly; SameSite={site}"
        if max_age_seconds is not None:
            cookie += f"; Max-Age={max_age_seconds}"
        if self.is_secure:
            cookie += "; Secure"
        return "set-cookie", cookie

    def _full_name(self, name: str) -> str:
        """Return the name as sent. ``__Host-`` prevents other hosts of the domain from setting the cookie."""
        prefix = "__Host-" if self.is_secure else ""
        port = host_of(self.headers)[1]
        return f"{prefix}stowhand-{name}" if port is None else f"{prefix}stowhand-{name}-{port}"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    method: str = "GET"
    path: str = "/"
    """Decoded path below the prefix."""
    query: Fields = {}
    form: Fields = {}
    """Fields of a POST with ``application/x-www-form-urlencoded``."""
    headers: Mapping[str, str] = {}
    """Headers by lower-case name."""
    peer: str = ""
    """Address of the socket's other end, which no header can change; empty if not known."""
    is_secure: bool = False
    """Whether the request came over TLS."""
    prefix: str = ""
    """Path where the dashboard is mounted: empty, or ``/jobs-admin``; quoted for URLs."""
    home_link: tuple[str, str] | None = None
    """URL and name of the surrounding application's page to which the dashboard links back."""
    visitor: Visitor = Visitor()
    is_identified: bool = False
    """Whether the surrounding application has named the visitor; if not, ``Access.admit`` identifies them."""
    read_visitor: Callable[[], Awaitable[Visitor]] | None = None
    """Returns the visitor with their current rights, if the application names visitors."""
    form_token: str = ""
    """Token of each form, without which a POST is refused. ``Access.admit`` sets it and the fields below."""
    visit_secret: str = ""
    """A secret that the browser keeps in a cookie."""
    is_session: bool = False
    """Whether the visitor has signed in here, and may sign out."""
    address: str = ""
    """Address for the audit: the peer's, or the one that a trusted proxy reports."""
    messages: tuple[str, ...] = ()
    """Messages about the previous form."""

    def query_value(self, name: str) -> str:
        """Return the first value of a query's field that is not blank, without surrounding blanks; otherwise empty."""
        values = (value.strip() for value in self.query.get(name, ()))
        return next((value for value in values if value), "")

    def form_value(self, name: str) -> str:
        """Return the value of a form's field; empty if it is missing."""
        return next(iter(self.form.get(name, ())), "")

    @property
    def cookies(self) -> Cookies:
        return Cookies(self.headers, self.is_secure, self.prefix)

    def choice(self, name: str, choices: Iterable[str]) -> str:
        """Return the choice of a query's field; the first choice if it is empty. Raises InvalidField."""
        return read(name, self.query_value(name), lambda value: parse_word(value, choices)) or next(iter(choices))

    def may(self, right: Right) -> bool:
        return self.visitor.may(right)

    def href(self, path: str, **query: object) -> str:
        """Return the URL of a page of the dashboard.

        The query omits fields that are ``None`` or empty, and repeats fields with lists. Names that users chose are in
        the query, where ``/``, ``.`` and quotes have no special meaning.
        """
        fields = {name: values if isinstance(values, list | tuple) else [values] for name, values in query.items()}
        pairs = [(name, value) for name, values in fields.items() for value in values if value not in (None, "")]
        text = urlencode(pairs, quote_via=quote, safe="")
        return f"{self.prefix}{quote(path)}" + (f"?{text}" if text else "")

    def link(self, text: object, path: str, **query: object) -> Markup:
        """Return a link element. Its text may be any name that a user chose, in any direction of writing."""
        return Markup(f'<a href="{escape(self.href(path, **query))}"><bdi>{breakable(text)}</bdi></a>')

    def same_page_href(self, **other: object) -> str:
        """Return the URL of the same page, with these fields changed."""
        return self.href(self.path, **{**self.query, **other})


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a request."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    """Headers with lower-case names, which may repeat (``set-cookie``)."""
    body: bytes | AsyncIterator[bytes] = b""
    """Bytes, or an iterator that is sent piece by piece until it ends or the client disconnects."""
    messages: tuple[str, ...] = ()
    """Lines that the next page shows."""

    @property
    def is_page(self) -> bool:
        return ("content-type", HTML_CONTENT_TYPE) in self.headers

    def with_headers(self, *more: tuple[str, str]) -> Reply:
        """Return the reply with more headers. Existing headers take precedence."""
        names = {name for name, _ in self.headers} - {"set-cookie"}
        return msgspec.structs.replace(
            self, headers=(*self.headers, *(header for header in more if header[0] not in names))
        )


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A page before it is rendered."""

    template: str
    title: str
    values: Mapping[str, Any] = {}
    """Values for the template: only what the visitor may see."""
    status: int = 200


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """A form with a button and at most one field."""

    path: str
    button: str
    hidden: tuple[tuple[str, str], ...] = ()
    """Names and values that are sent along."""
    field: tuple[str, str, str] | None = None
    """Name, label and type of the field, if there is one."""


class InvalidField(StowhandError):
    """A field of a query or a form has an invalid value. The message names the field and the valid values."""


class PageNotFound(StowhandError):
    """The page or job does not exist. The message names it."""


class Forbidden(StowhandError):
    """The visitor lacks a right. The message names it."""


def read(name: str, value: str, reader: Callable[[str], T]) -> T | None:
    """Read the value of a field; ``None`` if it is empty. Raises InvalidField if ``reader`` raises ValueError."""
    try:
        return reader(value) if value else None
    except ValueError as error:
        raise InvalidField(f"{name}: {error}") from None


def fields_of(encoded: str) -> Fields:
    """Decode the fields of a query or a form. Raises Refused if there are too many."""
    try:
        return parse_qs(encoded, keep_blank_values=True, errors="replace", max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        raise Refused(ErrorKind.TOO_LARGE, f"a form or a URL has at most {MAX_FORM_FIELDS} fields") from None


def short(name: object) -> str:
    """Shorten a name for a list."""
    return shorten(str(name), MAX_NAME_LENGTH)


def breakable(name: object) -> Markup:
    """Shorten and escape a name, and allow line breaks between its words: ``shop.mail.``, ``send_``, ``bill``."""
    return Markup("<wbr>").join(_BREAK_POSITIONS.split(short(name)))


def redirect(location: str, *headers: tuple[str, str], messages: Sequence[str] = ()) -> Reply:
    """Return a redirect after a POST, so that a reload of the page repeats nothing."""
    return Reply(status=303, headers=(("location", location), *headers), messages=tuple(messages))


def text(status: int, text: str, *headers: tuple[str, str]) -> Reply:
    """Return a reply of plain text."""
    return Reply(status=status, headers=(("content-type", "text/plain; charset=utf-8"), *headers), body=text.encode())
