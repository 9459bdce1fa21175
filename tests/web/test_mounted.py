"""The dashboard in an application of somebody's, and over stores that are elsewhere, away, or of another version."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from wsgiref.types import WSGIEnvironment

import httpx
import psycopg
import pytest
from fastapi import FastAPI
from psycopg.conninfo import make_conninfo
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount
from werkzeug.test import Client

from stowhand import App, NewJob, State, wsgi
from stowhand.errors import ConfigurationError, StoreError
from stowhand.events import Events
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.remote.wire import Scope
from stowhand.stores.api import open_store
from stowhand.testing import MemoryStore
from stowhand.web import dashboard
from stowhand.web.board import mounted_board
from stowhand.web.request import Right, Visitor
from tests.remote.server.tokens import make_token
from tests.support.shared_server import SharedServer
from tests.web.browser import Browser
from tests.web.conftest import PageReader


@asynccontextmanager
async def browsing(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="https://shop.example") as client:
        yield client


def starlette(board: Any) -> Any:
    return Starlette(routes=[Mount("/ops/jobs", board)])


def fastapi(board: Any) -> Any:
    web = FastAPI()
    web.mount("/ops/jobs", board)
    return web


def behind_a_server_that_says_nothing(board: Any) -> Any:
    return board


DECLARING: list[App] = []
"""Of a module that a test writes."""
MOUNTS: list[Callable[[Any], Any]] = [starlette, fastapi, behind_a_server_that_says_nothing]


@pytest.mark.parametrize("mount", MOUNTS)
async def test_every_link_of_a_mounted_dashboard_works(mount: Callable[[Any], Any]) -> None:
    store = MemoryStore()
    await store.jobs.enqueue(NewJob(task="a/b"))
    prefix = "/ops/jobs" if mount is behind_a_server_that_says_nothing else ""
    board = dashboard(store, rights=lambda request: ["look", "payloads"], prefix=prefix)
    async with browsing(mount(board)) as client:
        seen, ahead = set[str](), ["/ops/jobs/"]
        while ahead:
            at = ahead.pop()
            reply = await client.get(at)
            assert reply.status_code in (200, 303), at
            for link in re.findall(r'(?:href|src|action)="([^"#]+)"', reply.text):
                path = urlsplit(link).path
                assert path.startswith("/ops/jobs/"), link
                if path not in seen:
                    seen.add(path)
                    ahead.append(link.replace("&amp;", "&"))
        assert {"/ops/jobs/jobs", "/ops/jobs/job", "/ops/jobs/assets/board.css"} <= seen


async def test_the_application_decides_the_rights_of_visitors() -> None:
    app = App("memory://")
    job = await (await app.open()).jobs.enqueue(NewJob(task="send", payload='{"to":"hush"}'))

    async def rights(request: Request) -> Visitor | list[str]:
        match request.headers.get("x-user"):
            case "ada":
                return Visitor("ada", frozenset(Right))
            case "lou":
                return ["look"]
            case "typo":
                return ["lok"]
        return []

    async with browsing(starlette(dashboard(app, rights=rights))) as client:

        async def said(user: str) -> httpx.Response:
            return await client.get(f"/ops/jobs/job?id={job.id}", headers={"x-user": user})

        assert "hush" in (await said("ada")).text
        assert (await said("lou")).status_code == 200
        assert "hush" not in (await said("lou")).text
        assert (await said("nobody")).status_code == 403
        with pytest.raises(ConfigurationError, match="'lok' is not a valid Right; use some of look"):
            await said("typo")
        assert (await client.get("/ops/jobs/", headers={"x-user": "ada"}, params={"x": "y" * 9})).status_code == 200
    await app.close()


async def test_an_error_of_rights_is_logged_and_a_chosen_reply_is_not(caplog: pytest.LogCaptureFixture) -> None:
    def rights(request: Request) -> list[str]:
        if "cookie" not in request.headers:
            raise HTTPException(307, headers={"location": "/login"})
        return ["look"] if request.session.get("team") == "ops" else []  # without SessionMiddleware

    board = dashboard(MemoryStore(), rights=rights)
    async with browsing(fastapi(board)) as client:
        assert (await client.get("/ops/jobs/")).headers["location"] == "/login"
        assert [record for record in caplog.records if record.name == "stowhand.web"] == []
        with pytest.raises(AssertionError, match="SessionMiddleware must be installed"):
            await client.get("/ops/jobs/", headers={"cookie": "session=1"})
    (line,) = [record for record in caplog.records if record.name == "stowhand.web"]
    assert line.levelname == "ERROR"
    assert line.getMessage().startswith("Cannot answer a request (rights); this is a bug:\nTraceback")
    assert "SessionMiddleware must be installed" in line.getMessage()


def test_an_error_of_rights_is_logged_in_a_wsgi_application(caplog: pytest.LogCaptureFixture) -> None:
    def rights(environ: WSGIEnvironment) -> list[str]:
        raise KeyError("session")

    with pytest.raises(KeyError):
        Client(wsgi.dashboard(App("memory://"), rights=rights)).get("/")
    (line,) = [record for record in caplog.records if record.name == "stowhand.web"]
    assert "KeyError: 'session'" in line.getMessage()


@pytest.mark.parametrize("then", [[], OSError("away")])
async def test_an_open_page_stops_updating_when_the_application_revokes_the_right(then: Any) -> None:
    app, given = App("memory://"), [["look"], ["look"], then]
    store = await app.open()

    def rights(request: Request) -> Any:
        now = given.pop(0)
        if isinstance(now, OSError):
            raise now
        return now

    said, over = list[bytes](), asyncio.Event()

    async def receive() -> Any:
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message.get("body", b""))
        await store.jobs.enqueue(NewJob(task="changes_the_counts"))

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"accept", b"text/event-stream")]}
    async with asyncio.timeout(20):
        await dashboard(app, rights=rights)(scope, receive, send)
    over.set()
    assert given == []
    assert sum(b"event: now" in piece for piece in said) == 2
    await app.close()


async def test_a_job_added_from_the_page_has_the_options_of_its_task_although_its_module_was_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("memory://", include=["mails_of_a_shop"])
    module = "from tests.web import test_mounted as here\n@here.DECLARING[0].task(max_attempts=3)\ndef send(): ...\n"
    (tmp_path / "mails_of_a_shop.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "DECLARING", [app])
    store = await app.open()
    job = await store.jobs.enqueue(NewJob(task="send"))
    board = dashboard(app, rights=lambda request: list(Right))
    async with browsing(board) as client:
        form = (await client.get(f"/again?id={job.id}")).text
        token, once = re.findall(r'name="(?:token|once)" value="([^"]+)"', form)[:2]
        sent = {"token": token, "once": once, "payload": "{}"}
        reply = await client.post(
            f"/again?id={job.id}", data=sent, headers={"origin": "null", "sec-fetch-site": "same-origin"}
        )
        assert reply.status_code == 303, reply.text
    added = await store.jobs.get(job.id + 1)
    assert added is not None
    assert added.max_attempts == 3
    await app.close()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


class Watched(App):
    """Remembers how its store was opened."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.opened: set[str] = set()

    async def open(self, *, install: bool = False) -> QueueStore:
        self.opened.add("to write")
        return await super().open(install=install)

    async def open_to_read(self) -> QueueStore:
        self.opened.add("to read")
        return await super().open_to_read()


async def test_reads_use_read_only_connections_and_changes_those_of_the_app(url: str) -> None:
    app = Watched(url)
    store = await app.open(install=True)
    async with app:
        job = await store.jobs.enqueue(NewJob(task="send"))
        with pytest.raises(StoreError, match=r"readonly|reading only"):
            await (await app.open_to_read()).jobs.enqueue(NewJob(task="send"))
        app.opened.clear()
        browser = Browser(mounted_board(app, Events()), visitor=Visitor("ann", frozenset(Right)))
        for at in ("/", "/jobs", f"/job?id={job.id}", "/queues", "/tasks", "/limits", "/failures", "/workers"):
            assert (await browser.open(at)).status == 200, at
        assert app.opened == {"to read"}
        form = (await browser.open("/jobs")).form("/act")
        assert (await browser.send(form, action="cancel", id=[str(job.id)])).status == 303
        assert app.opened == {"to read", "to write"}
        now = await store.jobs.get(job.id)
        assert now is not None
        assert now.state is State.CANCELED


async def test_an_app_with_its_own_store_object_is_read_through_it() -> None:
    store = MemoryStore()
    assert await App(store=store).open_to_read() is store
    app = App("sqlite:///never-made.db")
    with app.using(store):
        assert await app.open_to_read() is store


def test_an_invalid_prefix_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="write it like /jobs-admin"):
        dashboard(MemoryStore(), rights=lambda request: [], prefix="jobs/")


async def test_a_remote_store_shows_single_jobs() -> None:
    lent = MemoryStore()
    with SharedServer() as server:
        store = open_store(server.lend(lent))
        await store.open()
        job = await store.jobs.enqueue(NewJob(task="send", payload='{"n":[1]}'))
        visitor = PageReader(store)
        assert "This store is remote" in await visitor.page("/")
        jobs = await visitor.page("/jobs")
        assert "This store is remote" in jobs
        assert "More filters" not in jobs  # nothing there could answer
        assert 'href="/jobs?state' not in jobs
        page = await visitor.page(f"/job?id={job.id}")
        assert '<bdi class="name">&#34;n&#34;</bdi>' in page
        assert "Why it waits" not in page
        assert "There is no job 99" in await visitor.page("/job?id=99", 404)
        for path in ("/queues", "/tasks", "/limits", "/failures", "/workers"):
            assert "This store does not list" in await visitor.page(path)
        await store.close()


async def test_a_payload_that_a_remote_store_hides_is_not_shown_as_empty(tmp_path: Path) -> None:
    lent = MemoryStore()
    token = make_token(file := tmp_path / "tokens.json", "looks", Scope.READ)
    with SharedServer() as server:
        store = open_store(server.lend(lent, file), StoreOptions(token=token))
        await store.open()
        job = await lent.jobs.enqueue(NewJob(task="send", payload='{"n":[1]}'))
        page = await PageReader(store).page(f"/job?id={job.id}")
        assert "<h1>Job" in page
        assert 'id="payload"' not in page
        assert "stowhand enqueue" not in page
        refused = await PageReader(store).page(f"/job/text?id={job.id}&as=command", 400)
        assert "Available: result, error" in refused
        await store.close()


async def test_a_remote_store_that_refuses_is_not_reported_as_an_outage(tmp_path: Path) -> None:
    lent = MemoryStore()
    token = make_token(file := tmp_path / "tokens.json", "works", Scope.CLAIM)
    with SharedServer() as server:
        store = open_store(server.lend(lent, file), StoreOptions(token=token))
        await store.open()
        page = await PageReader(store).page("/job?id=1", 502)
        assert "The store refused the request" in page
        assert "scope" in page
        assert "Since" not in page
        await store.close()


async def test_a_database_is_shown_again_after_an_outage(postgres_url: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    store = open_store(postgres_url)
    await store.open()
    visitor = PageReader(store)
    assert "Overview" in await visitor.page("/")
    async with await psycopg.AsyncConnection.connect(
        make_conninfo(postgres_url, dbname="postgres"), autocommit=True
    ) as admin:
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        page = await visitor.page("/jobs", 503)
        assert "The store does not answer" in page
        assert "Since <time" in page
        assert "Traceback" not in page
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    for _ in range(1200):
        if (await visitor.reply("/jobs")).status == 200:
            break
        await asyncio.sleep(0.05)
    assert "No jobs yet" in await visitor.page("/jobs")
    await store.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE stowhand.applied_migrations SET id = 27", "made by a version of before the first release"),
        ("INSERT INTO stowhand.applied_migrations VALUES (10000, now(), true, '')", "newer than this program"),
    ],
)
async def test_a_schema_of_another_version_says_what_to_do(postgres_url: str, change: str, said: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute(change.encode())
    store = open_store(postgres_url)

    async def opened() -> Any:
        await store.open()
        return store

    visitor = PageReader(store, opened=opened)
    page = await visitor.page("/", 503)
    assert said in page
    await store.close()
