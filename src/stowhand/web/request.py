"""Request and reply as plain values, whatever the server: ASGI, WSGI or Django."""

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
HTML = "text/html; charset=utf-8"
MAX_NAME_LENGTH = 36
"""Characters of a name in a list."""
MAX_FORM_FIELDS, MAX_FORM_BYTES = 2000, 4 << 20
"""Of one form. A payload has at most a megabyte, and three where each of its bytes is quoted."""
_BREAKS = re.compile(r"(?<=[._:/@-])(?=[^\W\d])|(?<=[a-z])(?=[A-Z])")
Fields = Mapping[str, Sequence[str]]
"""Of a query or a form: the values of each name, in the order in which they were sent."""


class Permission(StrEnum):
    """What a visitor may do. None of them includes another."""

    LOOK = "look"
    """See that there are jobs: their ids, tasks, serial keys, states and times."""
    PAYLOADS = "payloads"
    """See what jobs carry and say: payloads, results, keys, errors, progress texts, execution logs."""
    ACT = "act"
    """Change jobs and serial keys that are there."""
    ADD = "add"
    """Enqueue jobs."""


class Visitor(msgspec.Struct, frozen=True):
    """A visitor."""

    name: str = ""
    """For the audit; empty: nobody has said."""
    rights: frozenset[Permission] = frozenset()

    def may(self, right: Permission) -> bool:
        return right in self.rights

    @staticmethod
    def of(given: Visitor | Iterable[str]) -> Visitor:
        """The visitor as an application describes it: rights, or a ``Visitor``. Raises ConfigurationError."""
        try:
            return given if isinstance(given, Visitor) else Visitor(rights=frozenset(map(Permission, given)))
        except ValueError as error:
            raise ConfigurationError(f"dashboard: rights: {error}; there are: {', '.join(Permission)}") from None


class Cookies(msgspec.Struct, frozen=True):
    """Cookies of one request, and new ones for its reply. A browser shares cookies between all ports of a host."""

    headers: Mapping[str, str]
    is_secure: bool
    """It came over TLS."""
    path: str
    """Below which they are sent."""

    def get(self, what: str) -> str:
        """Return the value; empty without one."""
        pairs = (part.strip().partition("=") for part in self.headers.get("cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == self._name(what)), "")

    def new(self, what: str, value: str, life: int | None, *, site: str = "Strict") -> tuple[str, str]:
        """A header. ``life``: seconds; ``None``: until the browser ends; 0: it is forgotten. ``site``: ``Lax`` comes
        along where a link of another site leads here."""
        path = "/" if self.is_secure else self.path or "/"
        ends = ("" if life is None else f"; Max-Age={life}") + ("; Secure" if self.is_secure else "")
        return "set-cookie", f"{self._name(what)}={value}; Path={path}; HttpOnly; SameSite={site}{ends}"

    def _name(self, what: str) -> str:
        """``__Host-`` keeps neighbours of a domain from setting it."""
        port = host_of(self.headers)[1]
        return f"{'__Host-' if self.is_secure else ''}stowhand-{what}{'' if port is None else f'-{port}'}"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    method: str = "GET"
    path: str = "/"
    """Decoded, below the prefix."""
    query: Fields = {}
    form: Fields = {}
    """Of a POST with ``application/x-www-form-urlencoded``."""
    headers: Mapping[str, str] = {}
    """By lower-case name."""
    peer: str = ""
    """The address at the other end of the socket, which no header can change; empty: not known."""
    is_secure: bool = False
    """It came over TLS."""
    prefix: str = ""
    """Where the dashboard is mounted: empty, or ``/jobs-admin``; quoted for URLs."""
    home_link: tuple[str, str] | None = None
    """The page of the application around the dashboard to go back to: its URL, and what it is called."""
    visitor: Visitor = Visitor()
    is_identified: bool = False
    """The application around the dashboard has said who it is; else ``Access.admit`` finds out."""
    read_visitor: Callable[[], Awaitable[Visitor]] | None = None
    """Who it is by now, where the application said it."""
    token: str = ""
    """What each form sends back, so that no other site can post it. ``Access.admit`` sets it, and what follows."""
    visit: str = ""
    """A secret that its browser keeps in a cookie."""
    is_session: bool = False
    """The visitor has signed in here, and may sign out."""
    address: str = ""
    """For the audit: the peer's, or what a proxy says that is believed."""
    messages: tuple[str, ...] = ()
    """What became of the form that was sent before."""

    def first(self, name: str) -> str:
        """The first value of the query's field that is not empty, without the blanks around it; else empty."""
        return next((value for given in self.query.get(name, ()) if (value := given.strip())), "")

    def sent(self, name: str) -> str:
        """The form's field; empty where it is missing."""
        return next(iter(self.form.get(name, ())), "")

    @property
    def cookies(self) -> Cookies:
        return Cookies(self.headers, self.is_secure, self.prefix)

    def choice(self, name: str, text: Iterable[str]) -> str:
        """The word of the query's field; where it is empty, the first of them. Raises Malformed."""
        return read(name, self.first(name), lambda given: parse_word(given, text)) or next(iter(text))

    def may(self, right: Permission) -> bool:
        return self.visitor.may(right)

    def href(self, path: str, **query: object) -> str:
        """A link to a page here. Fields that are ``None``, empty, or an empty list are left out; a list gives several.

        Every name of a user's goes into the query, where ``/``, ``.`` and quotes mean nothing.
        """
        given = {name: values if isinstance(values, list | tuple) else [values] for name, values in query.items()}
        pairs = [(name, value) for name, values in given.items() for value in values if value not in (None, "")]
        text = urlencode(pairs, quote_via=quote, safe="")
        return f"{self.prefix}{quote(path)}" + (f"?{text}" if text else "")

    def link(self, text: object, path: str, **query: object) -> Markup:
        """The same as an element. What it says may be a name of a user's, from right to left, and long."""
        return Markup(f'<a href="{escape(self.href(path, **query))}"><bdi>{breakable(text)}</bdi></a>')

    def again(self, **other: object) -> str:
        """A link to the same page, with other fields than these."""
        return self.href(self.path, **{**self.query, **other})


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent back."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    """Names in lower case; one may stand twice (``set-cookie``)."""
    body: bytes | AsyncIterator[bytes] = b""
    """An iterator is sent piece by piece, until it ends or the client goes."""
    messages: tuple[str, ...] = ()
    """Lines that the next page shows."""

    @property
    def is_page(self) -> bool:
        return ("content-type", HTML) in self.headers

    def with_headers(self, *more: tuple[str, str]) -> Reply:
        """The same with more headers; one that is there already is kept."""
        there = {name for name, _ in self.headers} - {"set-cookie"}
        return msgspec.structs.replace(self, headers=(*self.headers, *(one for one in more if one[0] not in there)))


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
    """Name, label and type of what is typed in, if anything."""


class InvalidField(StowhandError):
    """A field of a query or a form has an invalid value. The message names the field and the valid values."""


class PageNotFound(StowhandError):
    """There is no such page, or job. The message says where to look."""


class Forbidden(StowhandError):
    """The visitor lacks a right. The message names it."""


def read(name: str, given: str, reader: Callable[[str], T]) -> T | None:
    """What the text of a field means; ``None``: it is empty. ``reader`` raises ValueError; this, Malformed."""
    try:
        return reader(given) if given else None
    except ValueError as error:
        raise InvalidField(f"{name}: {error}") from None


def fields_of(encoded: str) -> Fields:
    """Of a query or a form as it was sent. Raises Refused where there are too many."""
    try:
        return parse_qs(encoded, keep_blank_values=True, errors="replace", max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        raise Refused(ErrorKind.TOO_LARGE, f"a form or an address has at most {MAX_FORM_FIELDS} fields") from None


def short(name: object) -> str:
    """Shorten a name for a list; the page of the thing itself shows all of it."""
    return shorten(str(name), MAX_NAME_LENGTH)


def breakable(name: object) -> Markup:
    """Shorten and escape a name whose line may break between its words: ``shop.mail.``, ``send_``, ``bill``."""
    return Markup("<wbr>").join(_BREAKS.split(short(name)))


def redirect(location: str, *headers: tuple[str, str], messages: Sequence[str] = ()) -> Reply:
    """After a POST: the browser fetches that page, and a reload repeats nothing."""
    return Reply(status=303, headers=(("location", location), *headers), messages=tuple(messages))


def text(status: int, text: str, *headers: tuple[str, str]) -> Reply:
    """Plain text."""
    return Reply(status=status, headers=(("content-type", "text/plain; charset=utf-8"), *headers), body=text.encode())
