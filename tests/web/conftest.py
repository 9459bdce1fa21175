"""A dashboard over a store of each kind, asked without a network; a coroutine is a test here."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.stores.url import open_store
from stowhand.testing import MemoryStore
from stowhand.web.board import Board
from stowhand.web.reader import Reader
from stowhand.web.request import Reply, Request, Right, Visitor
from tests.support.databases import Setup
from tests.support.schema import install

DEADLINE = 90.0
ADMIN = Visitor("ada", frozenset(Right))
LOOKER = Visitor("lou", frozenset({Right.LOOK}))


class PageReader:
    """Somebody who looks at a dashboard. ``at``: links and forms of its pages as they stand there."""

    def __init__(
        self,
        store: QueueStore,
        who: Visitor = ADMIN,
        prefix: str = "",
        opened: Callable[[], Awaitable[QueueStore]] | None = None,
    ) -> None:
        async def is_open() -> QueueStore:
            return store

        self.store = store
        self.who = who
        self.prefix = prefix
        self.reader = Reader(opened or is_open)
        self.board = Board(self.reader)

    async def reply(self, at: str, method: str = "GET", **headers: str) -> Reply:
        """What is sent back for this link."""
        parts = urlsplit(at.removeprefix(self.prefix))
        return await self.board.answer(
            Request(
                method=method,
                path=parts.path or "/",
                query=parse_qs(parts.query, keep_blank_values=True),
                headers=headers,
                prefix=self.prefix,
                visitor=self.who,
                is_identified=True,
            )
        )

    def href(self, path: str, **query: object) -> str:
        """A link as the pages make it."""
        return Request(prefix=self.prefix).href(path, **query)

    async def page(self, at: str, status: int = 200) -> str:
        """The page as text."""
        reply = await self.reply(at)
        assert isinstance(reply.body, bytes)
        assert reply.status == status, reply.body.decode()
        return reply.body.decode()


Stores = Callable[..., AbstractAsyncContextManager[QueueStore]]


@pytest.fixture(scope="session")
def postgres_setup() -> Setup:
    return install


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store_at(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """``async with store_at() as store``: an empty one, installed and open."""
    match request.param:
        case "memory":
            url = ""
        case "sqlite":
            url = f"sqlite:///{tmp_path / 'jobs.db'}"
        case _:
            url = request.getfixturevalue("postgres_url")

    @asynccontextmanager
    async def opened(options: StoreOptions | None = None) -> AsyncIterator[QueueStore]:
        store: QueueStore = open_store(url, options or StoreOptions()) if url else MemoryStore(options=options)
        try:
            if url.startswith("sqlite") and not (options and options.read_only):
                await store.schema.install()
            await store.open()
            yield store
        finally:
            await store.close()

    return opened


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def story() -> None:
        async with asyncio.timeout(DEADLINE):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})

    asyncio.run(story())
    return True
