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

import httpx
import psycopg
import pytest
from fastapi import FastAPI
from psycopg.conninfo import make_conninfo
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from stowhand import App, NewJob, open_store
from stowhand.errors import ConfigurationError
from stowhand.testing import MemoryStore
from stowhand.web import dashboard
from stowhand.web.asked import Right, Who
from tests.support.lent import SharedServer
from tests.web.conftest import Visitor


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
async def test_every_link_of_a_mounted_dashboard_leads_somewhere(mount: Callable[[Any], Any]) -> None:
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


async def test_the_application_says_what_its_visitors_may_do() -> None:
    app = App("memory://")
    job = await (await app.open()).jobs.enqueue(NewJob(task="send", payload='{"to":"hush"}'))

    async def rights(request: Request) -> Who | list[str]:
        match request.headers.get("x-user"):
            case "ada":
                return Who("ada", frozenset(Right))
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
        with pytest.raises(ConfigurationError, match="'lok' is not a valid Right; there are: look"):
            await said("typo")
        assert (await client.get("/ops/jobs/", headers={"x-user": "ada"}, params={"x": "y" * 9})).status_code == 200
    await app.close()


async def test_a_job_added_from_the_page_is_as_a_module_declares_it_that_nobody_has_imported(
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


def test_a_prefix_that_is_no_path_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="write it like /jobs-admin"):
        dashboard(MemoryStore(), rights=lambda request: [], prefix="jobs/")


async def test_a_lent_store_shows_jobs_one_by_one() -> None:
    lent = MemoryStore()
    with SharedServer() as street:
        store = open_store(street.lend(lent))
        await store.open()
        job = await store.jobs.enqueue(NewJob(task="send", payload='{"n":[1]}'))
        visitor = Visitor(store)
        assert "This store is lent" in await visitor.page("/")
        assert "This store is lent" in await visitor.page("/jobs")
        page = await visitor.page(f"/job?id={job.id}")
        assert '<bdi class="name">&#34;n&#34;</bdi>' in page
        assert "Why it waits" not in page
        assert "There is no job 99" in await visitor.page("/job?id=99", 404)
        for path in ("/queues", "/tasks", "/failures", "/workers"):
            assert "This store does not list" in await visitor.page(path)
        await store.close()


async def test_a_database_that_was_away_is_shown_again_by_itself(postgres_url: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    store = open_store(postgres_url)
    await store.open()
    visitor = Visitor(store)
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


@pytest.mark.parametrize(("number", "said"), [(27, "older than this program"), (10_000, "newer than this program")])
async def test_a_schema_of_another_version_says_what_to_do(postgres_url: str, number: int, said: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        if number == 27:
            await connection.execute("DELETE FROM stowhand.applied_migrations WHERE id > 27")
        else:
            await connection.execute("INSERT INTO stowhand.applied_migrations (id, breaking) VALUES (10000, true)")
    store = open_store(postgres_url)

    async def opened() -> Any:
        await store.open()
        return store

    visitor = Visitor(store, opened=opened)
    page = await visitor.page("/", 503)
    assert said in page
    await store.close()
