"""A browser without JavaScript: it keeps cookies, follows links and sends forms as they stand on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

from stowhand.web.board import Board
from stowhand.web.request import Fields, Reply, Request, Visitor


@dataclass
class Form:
    """As it stands: its fields with the values that are sent unless somebody changes them."""

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """What is on a page: ``forms``, ``links``, and every element with its attributes."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        assert isinstance(reply.body, bytes)
        self.status, self.headers = reply.status, dict(reply.headers)
        self.html = reply.body.decode()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.forms: list[Form] = []
        self.links: list[str] = []
        self.text = ""
        self._area = ""
        self._inside: Form | None = None
        self.feed(self.html)
        self.close()

    def form(self, action: str) -> Form:
        """The first one that is sent to this path."""
        return next(form for form in self.forms if urlsplit(form.action).path == action)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        options = dict(attrs)
        assert len(options) == len(attrs), attrs
        self.elements.append((tag, options))
        match tag:
            case "form":
                self._inside = Form(options.get("action") or "", (options.get("method") or "get").upper())
                self.forms.append(self._inside)
            case "a":
                self.links.append(options.get("href") or "")
            case "textarea" if self._inside is not None:
                self._area = options.get("name") or ""
                self._inside.fields.append((self._area, ""))
            case "input" if self._inside is not None and "name" in options:
                if options.get("type") != "checkbox":
                    self._inside.fields.append((options["name"] or "", options.get("value") or ""))
            case "button" if self._inside is not None and "value" in options:
                self._inside.buttons.append(options["value"] or "")
            case _:
                pass

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._area and self._inside is not None:
            name, value = self._inside.fields.pop()
            self._inside.fields.append((name, value + data))

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = ""
        elif tag == "form":
            self._inside = None


class Browser:
    """One visitor's. ``who``: whom the application around the dashboard takes them for."""

    def __init__(
        self, board: Board, *, host: str = "127.0.0.1:8080", peer: str = "127.0.0.1", visitor: Visitor | None = None
    ) -> None:
        self.board, self.host, self.peer, self.visitor = board, host, peer, visitor
        self.cookies: dict[str, str] = {}
        self.prefix, self.secure = "", False

    async def ask(self, at: str, form: Fields | None = None, *, method: str | None = None, **headers: Any) -> Reply:
        """``headers``: with ``_`` for ``-``; ``None`` leaves one out."""
        parts = urlsplit(at)
        sent: dict[str, str | None] = {"host": self.host, "sec-fetch-site": "same-origin" if form else "none"}
        if form is not None:
            sent["origin"] = "null"  # what a browser sends where pages send no referrer
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        reply = await self.board.answer(
            Request(
                method=method or ("GET" if form is None else "POST"),
                path=parts.path.removeprefix(self.prefix) or "/",
                query=parse_qs(parts.query, keep_blank_values=True),
                form=form or {},
                headers={name: value for name, value in sent.items() if value is not None},
                peer=self.peer,
                prefix=self.prefix,
                is_secure=self.secure,
                visitor=self.visitor or Visitor(),
                is_identified=self.visitor is not None,
            )
        )
        self._keep(reply)
        return reply

    async def open(self, at: str, status: int = 200, **headers: Any) -> Page:
        page = Page(await self.ask(at, **headers))
        assert page.status == status, page.html
        return page

    async def send(self, form: Form, *, button: Sequence[str] = (), **fields: str | Sequence[str]) -> Reply:
        """As it stands, but for these fields."""
        options: dict[str, list[str]] = {}
        for name, value in form.fields:
            options.setdefault(name, []).append(value)
        options |= {name: [value] if isinstance(value, str) else list(value) for name, value in fields.items()}
        return await self.ask(form.action, options)

    async def follow(self, reply: Reply, status: int = 200) -> Page:
        """To where a reply to a form leads."""
        assert reply.status == 303, (reply.status, reply.body)
        return await self.open(dict(reply.headers)["location"], status)

    def _keep(self, reply: Reply) -> None:
        for name, text in reply.headers:
            if name == "set-cookie":
                pair, *parts = (part.strip() for part in text.split(";"))
                key, _, value = pair.partition("=")
                if "Max-Age=0" in parts:
                    self.cookies.pop(key, None)
                else:
                    self.cookies[key] = value
