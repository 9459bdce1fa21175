"""The dashboard as a function: pages, links, what goes wrong."""

from __future__ import annotations

import re

from stowhand.errors import SchemaMissing, SchemaTooNew, StoreTooSlow, StoreUnreachable
from stowhand.events import Events, RequestBroken
from stowhand.jobs.job import NewJob
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.testing import MemoryStore
from stowhand.web.board import Board, Route
from stowhand.web.reader import Reader
from stowhand.web.request import Request, View
from tests.web.conftest import ADMIN, LOOKER, PageReader, Stores


async def test_every_page_exists_on_every_store(store_at: Stores) -> None:
    async with store_at() as store:
        job = await store.jobs.enqueue(NewJob(task="send", payload='{"to":"x"}', serial="mail"))
        visitor = PageReader(store)
        assert "send" in await visitor.page("/jobs")
        assert f"Job {job.id}" in await visitor.page(f"/job?id={job.id}")
        assert "Overview" in await visitor.page("/")


async def test_an_unknown_page_and_an_unknown_job_are_named() -> None:
    visitor = PageReader(MemoryStore())
    assert "There is no page /nowhere" in await visitor.page("/nowhere", 404)
    assert "There is no job 7" in await visitor.page("/job?id=7", 404)
    assert "&#39;seven&#39; is not a whole number" in await visitor.page("/job?id=seven", 400)
    assert "did you mean &#39;failed&#39;" in await visitor.page("/jobs?state=faild", 400)
    assert (await visitor.reply("/jobs", method="PUT")).status == 405


async def test_an_outage_shows_its_start_and_ends_by_itself() -> None:
    store, answers = MemoryStore(), [StoreUnreachable("no route to postgresql://u:secret@db"), None]

    async def opened() -> QueueStore:
        if (error := answers.pop(0)) is not None:
            raise error
        return store

    board = Board(Reader(opened))
    request = Request(path="/jobs", visitor=ADMIN, is_identified=True)
    reply = await board.answer(request)
    assert isinstance(reply.body, bytes)
    assert reply.status == 503
    assert ("refresh", "5") in reply.headers
    assert b"The store does not answer" in reply.body
    assert b"Since <time" in reply.body
    assert b"secret" not in reply.body
    assert (await board.answer(request)).status == 200


async def test_a_schema_error_does_not_show_the_start_of_an_earlier_outage() -> None:
    errors = [StoreUnreachable("restarting"), SchemaTooNew("upgrade this program")]

    async def opened() -> QueueStore:
        raise errors.pop(0)

    board = Board(Reader(opened))
    pages = [(await board.answer(Request(visitor=ADMIN, is_identified=True))).body for _ in range(2)]
    assert [b"Since <time" in page for page in pages if isinstance(page, bytes)] == [True, False]


async def test_a_missing_schema_names_the_command() -> None:
    async def opened() -> QueueStore:
        raise SchemaMissing("nothing is installed")

    reply = await Board(Reader(opened)).answer(Request(visitor=ADMIN, is_identified=True))
    assert isinstance(reply.body, bytes)
    assert b"stowhand migrate" in reply.body


async def test_links_have_the_prefix_and_quote_names() -> None:
    request = Request(prefix="/ops/jobs")
    assert request.href("/jobs", task="a/b.c\"'&?#\u202e", state=["failed", "errored"], serial=None, key="") == (
        "/ops/jobs/jobs?task=a%2Fb.c%22%27%26%3F%23%E2%80%AE&state=failed&state=errored"
    )
    page = await PageReader(MemoryStore(), prefix="/ops/jobs").page("/")
    assert 'href="/ops/jobs/jobs"' in page
    assert 'href="/ops/jobs/assets/board.css' in page


async def test_browsers_cache_assets_until_they_change() -> None:
    visitor = PageReader(MemoryStore())
    first = dict((reply := await visitor.reply("/assets/board.css")).headers)
    assert reply.body
    assert first["content-type"].startswith("text/css")
    assert first["cache-control"] == "no-cache"
    links = set(re.findall(r'(?:href|src)="(/assets/[^"]+)"', await visitor.page("/")))
    names = sorted(link.partition("?")[0] for link in links)
    assert names == ["/assets/board.css", "/assets/board.js", "/assets/icon.svg"]
    for link in links:
        assert "immutable" in dict((await visitor.reply(link)).headers)["cache-control"]
    assert (await visitor.reply("/assets/../board.py")).status == 404


async def test_without_the_right_to_payloads_no_page_has_one(store_at: Stores) -> None:
    async with store_at() as store:
        job = await store.jobs.enqueue(NewJob(task="send", payload='{"to":"hush-payload"}', key="hush-key"))
        await store.admin.permanently_fail_jobs([job.id], "hush-error")
        for at in ("/", "/jobs", f"/job?id={job.id}"):
            assert "hush" not in await PageReader(store, LOOKER).page(at)


async def test_every_page_works_on_a_read_only_database(store_at: Stores) -> None:
    async with store_at() as store:
        job = await store.jobs.enqueue(NewJob(task="send"))
        await store.admin.permanently_fail_jobs([job.id])
        async with store_at(StoreOptions(read_only=True)) as read:
            pages = [
                "/",
                "/?span=7d",
                "/jobs",
                "/jobs?state=failed",
                "/queues",
                "/tasks",
                "/limits",
                "/failures",
                "/workers",
            ]
            for at in pages if read.description != "memory" else []:
                assert "send" in await PageReader(read).page(at) or at in ("/queues", "/limits", "/workers"), at
            if read.description != "memory":
                assert "Last error" in await PageReader(read).page(f"/job?id={job.id}")


async def test_changes_use_the_writable_store() -> None:
    looking, actions = MemoryStore(), MemoryStore()

    async def looked_at() -> QueueStore:
        return looking

    async def acted_on() -> QueueStore:
        return actions

    reader = Reader(looked_at, writer=Reader(acted_on))
    await reader.change(lambda store: store.jobs.enqueue(NewJob(task="send")))
    assert (await reader.query(lambda store: store.inspect.search())).jobs == []
    assert len((await actions.inspect.search()).jobs) == 1


async def test_a_query_that_takes_too_long_is_an_error_page() -> None:
    async def opened() -> QueueStore:
        raise StoreTooSlow("no answer within 5 s")

    visitor = PageReader(MemoryStore(), opened=opened)
    page = await visitor.page("/jobs", 504)
    assert "The store took too long" in page
    assert "Since" not in page


async def test_a_failed_page_is_queried_again_at_once() -> None:
    answers: list[Exception | None] = [StoreUnreachable("away"), None]
    store = MemoryStore()

    async def opened() -> QueueStore:
        if (error := answers.pop(0)) is not None:
            raise error
        return store

    visitor = PageReader(store, opened=opened)
    assert "away" in await visitor.page("/", 503)
    assert "Nothing is due" in await visitor.page("/")


async def test_a_bug_is_reported_and_its_page_has_the_common_headers() -> None:
    async def broken(asked: Request, reader: Reader) -> View:
        raise ZeroDivisionError("a bug, with a hush")

    events, heard = Events(), list[RequestBroken]()
    events.on(RequestBroken, heard.append)
    reader = PageReader(MemoryStore()).reader
    board = Board(reader, routes=[Route("GET", "/jobs", broken)], events=events)
    reply = await board.answer(Request(path="/jobs", visitor=ADMIN, is_identified=True))
    assert (reply.status, b"hush" in bytes(reply.body)) == (500, False)  # type: ignore[arg-type]
    assert "content-security-policy" in dict(reply.headers)
    (event,) = heard
    assert (event.call, "ZeroDivisionError: a bug" in event.trace) == ("/jobs", True)
