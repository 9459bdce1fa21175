"""The programs of docs/how-to/enqueue-in-your-transaction.md and use-it-from-fastapi.md run on the real libraries."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from fastapi import FastAPI
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

from stowhand import App
from stowhand.errors import InvalidJob, SchemaMissing
from tests.conftest import Run
from tests.docs.pages import DOCS, environment

PAGE = (DOCS / "how-to" / "enqueue-in-your-transaction.md").read_text()
BLOCKS = dict(re.findall(r"^<!-- file: (\w+)\.py -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def orders(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the page can be imported; this is the first."""
    for name, text in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(text.replace("postgresql:///shop", postgres_url))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("orders")
    module.app.sync.install()
    module.Base.metadata.create_all(module.engine)
    yield module
    module.app.sync.close()
    module.engine.dispose()
    for name in BLOCKS:
        sys.modules.pop(name, None)


async def worked_off(app: App, job_id: int) -> object:
    async with app:
        await app.worker(once=True).run()
        return await (await app.job(job_id)).result(timeout=30)


def test_an_order_and_its_job_are_committed_together(orders: Any, run: Run) -> None:
    assert orders.place("a lamp") == 1
    (job,) = orders.app.sync.list()
    assert run(worked_off(orders.app, job.id)) == "invoiced a lamp"
    with Session(orders.engine) as session, pytest.raises(InvalidJob, match="order"):
        orders.invoice.enqueue_in(session, orders.Order(item="not flushed").id)


def test_an_event_of_the_orm_enqueues_for_every_order(orders: Any) -> None:
    of_page = importlib.import_module("for_every_order").enqueue
    try:
        with Session(orders.engine) as session, session.begin():
            session.add_all([orders.Order(item="a lamp"), orders.Order(item="a book")])
    finally:
        event.remove(orders.Order, "after_insert", of_page)
    assert sorted(job.payload["order"] for job in orders.app.sync.list()) == [1, 2]


@pytest.fixture
def fastapi_page(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module ``web`` of the page: with a worker in its lifespan. ``separate`` is the one without."""
    page = (DOCS / "how-to" / "use-it-from-fastapi.md").read_text()
    shop, web, lifespan, *more, test = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    separate = [web, lifespan, "web = FastAPI(lifespan=lifespan)\n", *more]
    for name, blocks in (("shop", [shop]), ("web", [web, *more]), ("separate", separate), ("test_web", [test])):
        (tmp_path / f"{name}.py").write_text("\n".join(blocks))
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    module = importlib.import_module("web")
    engine = create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    module.Order.metadata.create_all(engine)
    yield module
    engine.dispose()
    for name in ("shop", "web", "separate"):
        sys.modules.pop(name, None)


@asynccontextmanager
async def requesting(web: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=web, raise_app_exceptions=False)
    async with (
        web.router.lifespan_context(web),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        yield client


def test_a_request_commits_its_own_session(fastapi_page: Any, run: Run) -> None:
    async def story() -> None:
        async with requesting(fastapi_page.web) as client:
            refused = await client.post("/orders", params={"item": "nul\x00"})
            order = (await client.post("/orders", params={"item": "a lamp"})).json()
            job = await fastapi_page.app.job(order["job"], fastapi_page.confirm)
            assert refused.status_code == 500
            assert await job.result(timeout=30) == "confirmed a lamp"
            confirmed = {"state": "completed", "result": "confirmed a lamp"}
            assert (await client.get(f"/confirmations/{job.id}")).json() == confirmed
            for unknown in (0, job.id + 1, 10**30):
                assert (await client.get(f"/confirmations/{unknown}")).status_code == 404
            assert (await client.get("/healthz")).json() == {"works": True}
            assert (await client.get("/jobs-admin/")).status_code == 403

    run(story())


def test_a_web_process_without_a_worker_enqueues_after_migrate(fastapi_page: Any, run: Run) -> None:
    separate = importlib.import_module("separate")

    async def story() -> None:
        with pytest.raises(SchemaMissing):
            await separate.web.router.lifespan_context(separate.web).__aenter__()
        await separate.app.open(install=True)
        async with requesting(separate.web) as client:
            order = (await client.post("/orders", params={"item": "a lamp"})).json()
            assert (await client.get(f"/confirmations/{order['job']}")).json() == {"state": "queued", "result": None}

    run(story())


def test_the_test_of_the_fastapi_page_passes(fastapi_page: Any, tmp_path: Path, postgres_url: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "stowhand_app=shop:app",
        "test_web.py",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment() | {"DATABASE_URL": postgres_url}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_connection_of_a_pool_enqueues_in_its_block(orders: Any, postgres_url: str, run: Run) -> None:
    async def story() -> object:
        pool = importlib.import_module("pool")
        async with asyncpg.create_pool(postgres_url, min_size=1) as connections:
            job = await pool.place(connections, "a lamp")
        return await worked_off(pool.app, job.id)

    assert run(story()) == "invoiced 1"


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_a_generated_migration_leaves_our_tables_alone(kind: str, orders: Any, tmp_path: Path) -> None:
    engine = orders.engine
    if kind == "sqlite":
        app, engine = App(f"sqlite:///{tmp_path}/shop.db"), create_engine(f"sqlite:///{tmp_path}/shop.db")
        app.sync.install()
        orders.Base.metadata.create_all(engine)
        app.sync.close()
    of_page = importlib.import_module("env").include_name

    def differences(**options: Any) -> int:
        with engine.connect() as connection:
            compared = MigrationContext.configure(connection, opts={"include_schemas": True, **options})
            return len(compare_metadata(compared, orders.Base.metadata))

    assert differences(include_name=of_page) == 0
    assert differences() > 20, "without it, all of them are to be dropped"
    engine.dispose()
