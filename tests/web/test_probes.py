"""What users, handlers and workers write never becomes markup; what strangers send never becomes a header or a path.

By HTTP, on a dashboard that an application mounts: a hostile text stands in every place of a store that can hold it,
and every page has just the elements and attributes that it has for a harmless one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from stowhand.testing import MemoryStore
from stowhand.web import dashboard
from stowhand.web.request import MAX_FORM_BYTES, Reply, Right, Visitor
from tests.web.browser import Page
from tests.web.planted import pages, plant

HARMLESS = "harmless"
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg/onload=alert(1)>',
    "' onmouseover='alert(1)' x='",
    '" autofocus onfocus="alert(1)" x="',
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "//evil.example/x",
    "https://evil.example/",
    "</textarea><script>alert(1)</script>",
    "</title></style></pre></bdi><iframe src=//evil.example>",
    "<!--<script>-->",
    "]]><x>",
    "{{ 7*7 }}{% include 'base.html' %}",
    "${alert(1)}`\\u003cscript\\u003e",
    "&lt;script&gt;&#x3c;b&#62;",
    "\u202egnp.exe\u2066\u2069<b>",
    "a/../../b?c=d#e&f=g;h%00%0d%0a",
    "=1+1;@import url(//evil.example);",
    "x" * 90 + "<b>",
    "é\U0001f600 <a href=x>",
)
LINES = ("line\r\nset-cookie: a=b", "a\x1b[2Jb<b>", "nul\x00<b>", "\u2028</script>\u2029", "\x08\x7f<i>")
"""Control characters, which names refuse: in errors and texts alone."""
SHAPE = frozenset[tuple[str, frozenset[str]]]


def rights(request: Request) -> Visitor:
    return Visitor(request.headers.get("x-name", "ann"), frozenset(Right))


@asynccontextmanager
async def visiting(store: MemoryStore, prefix: str = "/a<b>") -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that has the dashboard below this path."""
    app = Starlette(routes=[Mount(prefix, dashboard(store, rights=rights))])
    transport = httpx.ASGITransport(app, client=("10.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://jobs.example") as client:
        yield client


def page_of(reply: httpx.Response) -> Page:
    headers = tuple(reply.headers.items())
    return Page(Reply(status=reply.status_code, headers=headers, body=reply.content))


def shape(page: Page) -> SHAPE:
    return frozenset((tag, frozenset(attributes)) for tag, attributes in page.elements)


def check_links(page: Page) -> None:
    """Each leads to a page of ours, or is nothing that a browser opens by itself."""
    for tag, attributes in page.elements:
        for name in ("href", "src", "action", "formaction", "data", "poster"):
            if (link := attributes.get(name)) is not None:
                parts = urlsplit(link)
                assert (parts.scheme, parts.netloc) == ("", ""), (tag, link)
                assert link.startswith(("/a%3Cb%3E", "#", "?")), (tag, link)
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "srcdoc")], attributes


async def shapes(text: str, *, names: str, error: str) -> tuple[dict[str, SHAPE], list[Page]]:
    """Of each page, by its address without ids; and the pages."""
    store = MemoryStore()
    ids = await plant(store, text, names=names, error=error)
    found, seen = {}, []
    async with visiting(store) as client:
        for at in pages(ids):
            reply = await client.get(f"/a%3Cb%3E{at}")
            assert reply.status_code == 200, (at, reply.text)
            page = page_of(reply)
            check_links(page)
            found[at] = shape(page)
            seen.append(page)
        for query in ("task", "serial", "key", "flag", "worker", "error", "since", "go_on", "nonsense", "state"):
            reply = await client.get("/a%3Cb%3E/jobs", params={query: text})
            page = page_of(reply)
            check_links(page)
            found[f"{query} {reply.status_code}"] = shape(page)
        form = {"action": "pause serial", "name": text, "back": text, "id": text, "token": "x"}
        for path in ("/act", "/again", f"/{text}", "/login"):
            reply = await client.post(httpx.URL(f"/a%3Cb%3E{path}"), data=form)
            check_links(page_of(reply))
    return found, seen


@pytest.fixture(scope="module")
def harmless() -> dict[str, SHAPE]:
    return asyncio.run(shapes(HARMLESS, names=HARMLESS, error=""))[0]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_hostile_text_is_text_on_every_page(text: str, harmless: dict[str, SHAPE]) -> None:
    """In tasks, serial keys, keys, flags, workers and hosts, in names and values of payloads and results, in errors,
    progress and filters: twelve places on each of thirty pages."""
    found, seen = await shapes(text, names=text, error="")
    usual = frozenset[Any]().union(*harmless.values())
    for at, has in found.items():
        assert has <= harmless.get(at, usual) | usual, (at, has - usual)
    shown = " ".join(page.text for page in seen)
    assert text[:60] in shown, "it is shown as it was written"


@pytest.mark.parametrize("text", LINES, ids=range(len(LINES)))
async def test_control_characters_are_escaped_in_pages_and_headers(text: str, harmless: dict[str, SHAPE]) -> None:
    store = MemoryStore()
    ids = await plant(store, "plain", error=f"Error: {text}")
    usual = frozenset[Any]().union(*harmless.values())
    async with visiting(store) as client:
        for at in pages(ids):
            reply = await client.get(f"/a%3Cb%3E{at}")
            page = page_of(reply)
            check_links(page)
            assert shape(page) <= usual, at
            assert "a=b" not in str(reply.headers)


async def test_hostile_requests_are_answered_without_a_bug() -> None:
    assert len(HOSTILE) * len(pages(list(range(8)))) + len(LINES) * 10 > 200


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../board.py",
        "/assets/..%2fboard.py",
        "/assets/%2e%2e/board.py",
        "/assets/....//board.py",
        "/assets/board.py",
        "/assets//etc/passwd",
        "/assets/%00board.css",
        "/assets/board.css%00.py",
        "/assets/templates/base.html",
        "/assets/",
        "/assets/board.css/..",
        "/assets\\board.py",
    ],
)
async def test_only_listed_assets_are_served(path: str) -> None:
    async with visiting(MemoryStore(), "/x") as client:
        request = client.build_request("GET", "/x/")
        request.url = request.url.copy_with(raw_path=f"/x{path}".encode())
        reply = await client.send(request)
        assert reply.status_code in (400, 404)
        assert "import" not in reply.text.replace("important", "")
        assert "root:" not in reply.text


async def test_an_application_that_cannot_identify_the_visitor_shows_nothing() -> None:
    """Whatever it raises or returns by mistake, nobody has more rights for it."""

    async def broken(request: Request) -> Any:
        raise RuntimeError("the session store is away")

    def confused(given: object) -> Any:
        return lambda request: given

    store = MemoryStore()
    await plant(store, "p1anted")
    answers: Iterable[Any] = (broken, *map(confused, (None, True, "look", ["everything"], 7, {"act": True}, [None])))
    for answer in answers:
        app = dashboard(store, rights=answer)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://jobs.example") as client:
            reply = await client.get("/jobs")
            assert reply.status_code in (403, 500), answer
            assert "p1anted" not in reply.text


async def test_a_name_given_by_the_application_is_text_in_the_audit_and_on_pages() -> None:
    store = MemoryStore()
    await plant(store, "x")
    async with visiting(store, "/x") as client:
        reply = await client.get("/x/jobs", headers={"x-name": "<b>ann"})
        assert "<b>ann" not in reply.text


async def test_a_form_that_is_too_large_or_has_too_many_fields_is_refused() -> None:
    async with visiting(MemoryStore(), "/x") as client:
        assert (await client.post("/x/act", content=b"a=" + b"x" * MAX_FORM_BYTES)).status_code == 413
        assert (await client.post("/x/act", content=b"a=b&" * 3000)).status_code == 413
        many = "&".join(f"q{number}=1" for number in range(3000))
        assert (await client.get(f"/x/jobs?{many}")).status_code == 413
