"""Every page with every set of rights: what it needs, what it offers, and what it keeps to itself."""

from __future__ import annotations

from itertools import combinations

import pytest

from stowhand.events import Events
from stowhand.jobs.job import NewJob
from stowhand.protocols.queue_store import QueueStore
from stowhand.testing import MemoryStore
from stowhand.web.actions import ActionPages
from stowhand.web.board import Board
from stowhand.web.reader import Reader
from stowhand.web.request import Reply, Request, Right, Visitor
from tests.web.browser import Browser, Form, Page
from tests.web.conftest import Stores
from tests.web.planted import pages, plant

SETS = [frozenset(some) for number in range(5) for some in combinations(Right, number)]
SECRET = "hunter2-S3CRET"
BLIND = frozenset({Right.LOOK, Right.ACT, Right.ADD})
"""All but the right to payloads."""
WAYS = ("payload", "command", "python")


def board_of(store: QueueStore) -> Board:
    async def opened() -> QueueStore:
        return store

    return Board(Reader(opened), actions=ActionPages(Events()))


def everything(reply: Reply) -> str:
    assert isinstance(reply.body, bytes)
    return f"{reply.headers}{reply.body.decode()}"


@pytest.mark.parametrize("rights", SETS, ids=lambda rights: "+".join(sorted(rights)) or "none")
async def test_every_page_works_with_every_set_of_rights(rights: frozenset[Right]) -> None:
    store = MemoryStore()
    ids = await plant(store, "p1anted")
    board = board_of(store)
    browser = Browser(board, visitor=Visitor("ann", rights))
    asked, _ = await board._access.admit(
        Request(headers={"host": browser.host}, visitor=browser.visitor or Visitor(), is_identified=True)
    )
    browser.cookies = {"stowhand-visit-8080": asked.visit_secret}
    for route in board._routes:
        query = f"?id={ids[0]}" + ("&as=payload" if route.path == "/job/text" else "")
        at = route.path + (query if route.path in ("/job", "/job/text", "/again") else "")
        at += "?name=lp1anted" if route.path == "/limit" else ""
        form = (
            {"token": [asked.form_token], "action": ["cancel"], "id": [str(ids[-1])]}
            if route.method == "POST"
            else None
        )
        reply = await browser.ask(at, form)
        allowed = route.required_right in rights and (route.path not in ("/again", "/limit") or Right.LOOK in rights)
        assert (reply.status != 403) == allowed, (route.path, reply.status)
        if not allowed:
            assert "p1anted" not in everything(reply), route.path
        elif reply.status == 200 and dict(reply.headers)["content-type"].startswith("text/html"):
            page = Page(reply)
            forms = {form.action.partition("?")[0] for form in page.forms if form.method == "POST"}
            assert ("/act" in forms) <= (Right.ACT in rights), route.path
            assert any("/again" in link for link in page.links) <= (Right.ADD in rights), route.path
            if route.path == "/job":
                live = Page(await browser.ask(f"/job?id={ids[-1]}"))
                assert any(form.action == "/act" for form in live.forms) == (Right.ACT in rights)
    stream = await browser.ask("/jobs", accept="text/event-stream")
    assert (stream.status == 200) == (Right.LOOK in rights)


@pytest.mark.parametrize(
    "error",
    [
        SECRET,
        f"ValueError: {SECRET}",
        f"\n\n   {SECRET}\nTraceback",
        f"Traceback (most recent call last):\n  File x\nValueError: {SECRET}",
        ": " * 40 + SECRET,
        "x" * 90 + SECRET * 30,
        f"a\tb\r\n{SECRET}\u2028{SECRET}",
    ],
    ids=range(7),
)
async def test_without_the_right_to_payloads_no_page_shows_them(store_at: Stores, error: str) -> None:
    async with store_at() as store:
        ids = await plant(store, SECRET, error=error)
        board = board_of(store)
        browser = Browser(board, visitor=Visitor("bob", BLIND))
        for at in pages(ids):
            reply = await browser.ask(at)
            assert reply.status == 200, at
            assert "S3CRET" not in everything(reply), at
            stream = await browser.ask(at, accept="text/event-stream")
            if not isinstance(stream.body, bytes):
                piece = await anext(stream.body)
                await stream.body.aclose()  # type: ignore[attr-defined]
                assert b"S3CRET" not in piece, at
        for job_id in ids:
            for way in ("payload", "result", "error", "command", "sql", "python"):
                assert (await browser.ask(f"/job/text?id={job_id}&as={way}")).status == 403
        for action in ("remove", "fail", "complete"):
            form = (await browser.open("/jobs")).form("/act")
            reply = await browser.send(form, action=action, id=[str(one) for one in ids])
            assert "S3CRET" not in everything(reply), action
        sighted = Browser(board, visitor=Visitor("ann", frozenset(Right)))
        seen = [at for at in pages(ids) if "S3CRET" in everything(await sighted.ask(at))]
        assert len(seen) > len(ids), "the secret is where it is looked for"


@pytest.mark.parametrize("field", ["key", "error"])
async def test_searching_does_not_reveal_payloads(store_at: Stores, field: str) -> None:
    """Whether something is found tells what is there: the two are refused alike, with each other filter and state."""
    async with store_at() as store:
        ids = await plant(store, SECRET)
        browser = Browser(board_of(store), visitor=Visitor("bob", BLIND))
        for more in ("", "&state=failed", "&task=t", "&go_on=7", f"&{field}="):
            held, none = f"{SECRET}-{len(ids) - 1}", "nothing"
            right, wrong = [Page(await browser.ask(f"/jobs?{field}={word}{more}")) for word in (held, none)]
            assert right.status == wrong.status == 403
            assert "filtering by them needs the right" in right.html
        page = await browser.open("/jobs")
        assert not [one for one in page.elements if one[1].get("name") in ("key", "error")]
        for order in ("key", "error", "payload", "last_error", "result"):
            assert (await browser.ask(f"/tasks?sort={order}")).status == 400
            assert (await browser.ask(f"/jobs?sort={order}")).status == 400


async def test_values_of_secret_names_are_hidden_from_every_visitor() -> None:
    store = MemoryStore()
    job = await store.jobs.enqueue(
        NewJob(task="t", payload='{"password":"p-S3CRET","deep":[{"api_key":"k-S3CRET"}],"url":"x://u:w-S3CRET@h"}')
    )
    browser = Browser(board_of(store), visitor=Visitor("ann", frozenset(Right)))
    for at in (f"/job?id={job.id}", f"/again?id={job.id}", *(f"/job/text?id={job.id}&as={way}" for way in WAYS)):
        assert "S3CRET" not in everything(await browser.ask(at)), at


async def test_a_revoked_right_is_lost_at_the_next_request() -> None:
    store = MemoryStore()
    ids = await plant(store, SECRET)
    browser = Browser(board_of(store), visitor=Visitor("ann", frozenset(Right)))
    form: Form = (await browser.open(f"/job?id={ids[-1]}")).form("/act")
    browser.visitor = Visitor("ann", frozenset({Right.LOOK}))
    assert (await browser.send(form, action="cancel")).status == 403
    page = await browser.open(f"/job?id={ids[-1]}")
    assert SECRET not in page.html
    assert (await store.jobs.get(ids[-1])).state == "queued"  # type: ignore[union-attr]
