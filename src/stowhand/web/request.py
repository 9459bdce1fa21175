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
HTML = "text/html; charset=utf-8"
MAX_NAME_LENGTH = 36
"""Characters of a name in a list."""
MAX_FORM_FIELDS, MAX_FORM_BYTES = 2000, 4 << 20
"""Maximums of one form. A payload has at most a megabyte; three if each of its bytes is quoted."""
_BREAKS = re.compile(r"(?<=[._:/@-])(?=[^\W\d])|(?<=[a-z])(?=[A-Z])")
Fields = Mapping[str, Sequence[str]]
"""The fields of a query or a form: the values of each name, in the order of the request."""


class Permission(StrEnum):
    """A right of a visitor. No right includes another."""

    LOOK = "look"
    """See that there are jobs: their ids, tasks, serial keys, states and times."""
    PAYLOADS = "payloads"
    """See the contents of jobs: payloads, results, keys, errors, progress texts, execution logs."""
    ACT = "act"
    """Change existing jobs and serial keys."""
    ADD = "add"
    """Enqueue jobs."""


class Visitor(msgspec.Struct, frozen=True):
    """A visitor and their rights."""

    name: str = ""
    """Name for the audit; empty if not known."""
    rights: frozenset[Permission] = frozenset()

    def may(self, right: Permission) -> bool:
        return right in self.rights

    @staticmethod
    def of(rights: Visitor | Iterable[str]) -> Visitor:
        """Return the visitor for an application's rights or ``Visitor``. Raises ConfigurationError."""
        try:
            return rights if isinstance(rights, Visitor) else Visitor(rights=frozenset(map(Permission, rights)))
        except ValueError as error:
            raise ConfigurationError(f"dashboard: rights: {error}; there are: {', '.join(Permission)}") from None


class Cookies(msgspec.Struct, frozen=True):
    """Cookies of one request, and new ones for its reply. Their names contain the port: all ports share cookies."""

    headers: Mapping[str, str]
    is_secure: bool
    """It came over TLS."""
    path: str
    """Path below which browsers send them."""

    def get(self, what: str) -> str:
        """Return the value; empty if the cookie is missing."""
        pairs = (part.strip().partition("=") for part in self.headers.get("cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == self._name(what)), "")

    def new(self, what: str, value: str, life: int | None, *, site: str = "Strict") -> tuple[str, str]:
        """Return the header of a new cookie.

        ``life``: seconds; ``None``: until the browser closes; 0: delete the cookie. ``site``: ``Lax`` cookies are also
        sent when a visitor follows a link of another site.
        """
        path = "/" if self.is_secure else self.path or "/"
        ends = ("" if life is None else f"; Max-Age={life}") + ("; Secure" if self.is_secure else "")
        return "set-cookie", f"{self._name(what)}={value}; Path={path}; HttpOnly; SameSite={site}{ends}"

    def _name(self, what: str) -> str:
        """Return the full name. ``__Host-`` prevents other hosts of the domain from setting the cookie."""
        port = host_of(self.headers)[1]
        return f"{'__Host-' if self.is_secure else ''}stowhand-{what}{'' if port is None else f'-{port}'}"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    method: str = "GET"
    path: str = "/"
    """Decoded, below the prefix."""
    query: Fields = {}
    form: Fields = {}
    """Fields of a POST with ``application/x-www-form-urlencoded``."""
    headers: Mapping[str, str] = {}
    """Headers by lower-case name."""
    peer: str = ""
    """Address of the socket's other end, which no header can change; empty if not known."""
    is_secure: bool = False
    """It came over TLS."""
    prefix: str = ""
    """Path where the dashboard is mounted: empty, or ``/jobs-admin``; quoted for URLs."""
    home_link: tuple[str, str] | None = None
    """URL and name of the page of the surrounding application to go back to."""
    visitor: Visitor = Visitor()
    is_identified: bool = False
    """The surrounding application has named the visitor; otherwise ``Access.admit`` identifies them."""
    read_visitor: Callable[[], Awaitable[Visitor]] | None = None
    """Returns the visitor with their current rights, if the application names visitors."""
    token: str = ""
    """Token of each form, so that no other site can post it. ``Access.admit`` sets it and the fields below."""
    visit: str = ""
    """A secret that the browser keeps in a cookie."""
    is_session: bool = False
    """The visitor has signed in here, and may sign out."""
    address: str = ""
    """Address for the audit: the peer's, or the one that a trusted proxy reports."""
    messages: tuple[str, ...] = ()
    """Messages about the previous form."""

    def first(self, name: str) -> str:
        """The first value of the query's field that is not empty, without the blanks around it; else empty."""
        return next((value for given in self.query.get(name, ()) if (value := given.strip())), "")

    def sent(self, name: str) -> str:
        """Return a field of the form; empty if it is missing."""
        return next(iter(self.form.get(name, ())), "")

    @property
    def cookies(self) -> Cookies:
        return Cookies(self.headers, self.is_secure, self.prefix)

    def choice(self, name: str, text: Iterable[str]) -> str:
        """Return the choice of a query's field; the first choice if it is empty. Raises InvalidField."""
        return read(name, self.first(name), lambda value: parse_word(value, text)) or next(iter(text))

    def may(self, right: Permission) -> bool:
        return self.visitor.may(right)

    def href(self, path: str, **query: object) -> str:
        """Return the URL of a page here. It omits fields that are ``None`` or empty, and repeats fields with lists.

        Names that users chose are in the query, where ``/``, ``.`` and quotes have no special meaning.
        """
        fields = {name: values if isinstance(values, list | tuple) else [values] for name, values in query.items()}
        pairs = [(name, value) for name, values in fields.items() for value in values if value not in (None, "")]
        text = urlencode(pairs, quote_via=quote, safe="")
        return f"{self.prefix}{quote(path)}" + (f"?{text}" if text else "")

    def link(self, text: object, path: str, **query: object) -> Markup:
        """Return a link element. Its text may be a name that a user chose: long, or from right to left."""
        return Markup(f'<a href="{escape(self.href(path, **query))}"><bdi>{breakable(text)}</bdi></a>')

    def again(self, **other: object) -> str:
        """Return the URL of the same page, with these fields changed."""
        return self.href(self.path, **{**self.query, **other})


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a request."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    """Headers with lower-case names, which may repeat (``set-cookie``)."""
    body: bytes | AsyncIterator[bytes] = b""
    """An iterator is sent piece by piece, until it ends or the client disconnects."""
    messages: tuple[str, ...] = ()
    """Lines that the next page shows."""

    @property
    def is_page(self) -> bool:
        return ("content-type", HTML) in self.headers

    def with_headers(self, *more: tuple[str, str]) -> Reply:
        """Return the reply with more headers; existing headers stay."""
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
        raise Refused(ErrorKind.TOO_LARGE, f"a form or an address has at most {MAX_FORM_FIELDS} fields") from None


def short(name: object) -> str:
    """Shorten a name for a list; the page of its object shows it in full."""
    return shorten(str(name), MAX_NAME_LENGTH)


def breakable(name: object) -> Markup:
    """Shorten and escape a name whose line may break between its words: ``shop.mail.``, ``send_``, ``bill``."""
    return Markup("<wbr>").join(_BREAKS.split(short(name)))


def redirect(location: str, *headers: tuple[str, str], messages: Sequence[str] = ()) -> Reply:
    """Return a redirect after a POST, so that a reload of the page repeats nothing."""
    return Reply(status=303, headers=(("location", location), *headers), messages=tuple(messages))


def text(status: int, text: str, *headers: tuple[str, str]) -> Reply:
    """Return a reply of plain text."""
    return Reply(status=status, headers=(("content-type", "text/plain; charset=utf-8"), *headers), body=text.encode())
