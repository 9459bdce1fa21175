"""A dashboard on a port of this machine, and a browser that looks at it. A coroutine is a test here.

async def test_the_status_line_shows_an_outage(site: Site, page: Page) -> None:
await page.goto(site.url)
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page

from stowhand.protocols.queue_store import QueueStore
from stowhand.testing import MemoryStore
from stowhand.web import dashboard
from stowhand.web.request import Right, Visitor
from tests.support.browsers import find_browser
from tests.support.browsing import Chromium, served
from tests.support.population import morning, populate

WITHIN = 100.0
"""Seconds of a test that names no timeout of its own."""
TO_CLOSE = 20.0
"""Seconds before its timeout in which a test that hangs is told of, and its pages are closed."""
ADMIN = Visitor("ada", frozenset(Right))


class Site:
    """A dashboard that is served."""

    def __init__(self, store: QueueStore, url: str) -> None:
        self.store = store
        self.url = url
        self.running = 0
        """A job that runs, of a full one."""

    def at(self, path: str) -> str:
        return self.url + path


@asynccontextmanager
async def site_over(store: QueueStore, who: Visitor = ADMIN) -> AsyncIterator[Site]:
    """A dashboard over this store, for one kind of visitor."""
    await store.open()
    try:
        async with served(dashboard(store, rights=lambda _request: who)) as url:
            yield Site(store, url)
    finally:
        await store.close()


@asynccontextmanager
async def full_site_in_memory() -> AsyncIterator[Site]:
    """With jobs in every state, workers and figures."""
    clock = morning()
    async with site_over(MemoryStore(clock)) as site:
        site.running = await populate(site.store, clock)
        yield site


@asynccontextmanager
async def page_of(chromium: Chromium) -> AsyncIterator[Page]:
    """An empty page of a new visitor."""
    async with chromium.context() as context:
        yield await context.new_page()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The browser of this test process."""
    browser = Chromium(find_browser())
    try:
        browser.run(browser.start())
        yield browser
    finally:
        browser.close()


@pytest.fixture
def site(chromium: Chromium) -> Iterator[Site]:
    """Over a store in memory, for somebody who may do everything."""
    with chromium.entered(site_over(MemoryStore())) as site:
        yield site


@pytest.fixture(scope="session")
def full_site(chromium: Chromium) -> Iterator[Site]:
    """To look at; nothing is changed there."""
    with chromium.entered(full_site_in_memory()) as site:
        yield site


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Page]:
    """Of a visitor who was never here."""
    with chromium.entered(page_of(chromium)) as page:
        yield page


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests, on the browser's loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    chromium = pyfuncitem.funcargs["chromium"]
    assert isinstance(chromium, Chromium)
    names = inspect.signature(pyfuncitem.obj).parameters
    value = pyfuncitem.get_closest_marker("timeout")
    steps = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    chromium.run(steps, timeout=value.args[0] - TO_CLOSE if value else WITHIN)
    return True
