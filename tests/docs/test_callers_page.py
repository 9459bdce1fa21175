"""The programs of docs/how-to/enqueue-in-your-transaction.md and use-it-from-fastapi.md run on the real libraries."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

from stowhand import App
from stowhand.errors import InvalidJob
from tests.conftest import Run
from tests.docs.pages import DOCS

PAGE = (DOCS / "how-to" / "enqueue-in-your-transaction.md").read_text()
BLOCKS = dict(re.findall(r"^<!-- file: (\w+) -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


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


def test_a_request_commits_its_own_session(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    page = (DOCS / "how-to" / "use-it-from-fastapi.md").read_text()
    shop, *web = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shop = shop.replace("postgresql:///shop", postgres_url)
    shop = shop.replace("postgresql+asyncpg:///shop", postgres_url.replace("postgresql:", "postgresql+asyncpg:"))
    for name, text in (("shop", shop), ("web", "\n".join(web))):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("web")
    engine = create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    module.Order.metadata.create_all(engine)

    async def story() -> None:
        transport = httpx.ASGITransport(app=module.web, raise_app_exceptions=False)
        async with (
            module.web.router.lifespan_context(module.web),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
        ):
            refused = await client.post("/orders", params={"item": "nul\x00"})
            order = (await client.post("/orders", params={"item": "a lamp"})).json()
            job = await module.app.job(order["job"], module.confirm)
            assert refused.status_code == 500
            assert await job.result(timeout=30) == "confirmed a lamp"
            assert (await client.get("/healthz")).json() == {"works": True}

    run(story())
    engine.dispose()
    for name in ("shop", "web"):
        sys.modules.pop(name)


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
