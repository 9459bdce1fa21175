"""Every screen in every theme and width, over each store that people have; and the browser that comes from npm."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import pytest
from playwright.async_api import Page, expect

from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.stores.url import open_store
from tests.support.browsers import packaged_browser
from tests.support.browsing import Chromium, barriers, overflow, wear
from tests.support.population import morning, populate
from tests.web.screens.conftest import site_over
from tests.web.screens.test_screens import SCREENS

WIDTHS = (320, 768, 1280, 1920)
Theme = Literal["light", "dark"]
PAGE_BYTES = 60_000

pytestmark = [pytest.mark.rare, pytest.mark.xdist_group("screens"), pytest.mark.timeout(300)]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    result: str = request.getfixturevalue("postgres_url")
    return result


async def test_every_screen_of_a_store_is_rendered(url: str, page: Page) -> None:
    """Loaded once: theme and width change as they do beneath a page that is open."""
    clock = morning()
    store: QueueStore = open_store(url, StoreOptions(pinned=clock.now))
    await store.schema.install()
    async with site_over(store) as site:
        running = await populate(site.store, clock)
        for screen in [*SCREENS, f"/again?id={running}"]:
            reply = await page.goto(site.at(screen.format(job=running)))
            assert reply is not None
            assert reply.status == 200, screen
            assert len(await reply.body()) < PAGE_BYTES, screen
            for theme in get_args(Theme):
                await wear(page, theme)
                for width in WIDTHS:
                    await page.set_viewport_size({"width": width, "height": 800})
                    assert await overflow(page) == [], (screen, theme, width)
                assert await barriers(page) == [], (screen, theme)


def test_the_packaged_browser_starts_without_an_installed_one() -> None:
    browser = Chromium(packaged_browser())

    async def story() -> None:
        await browser.start()
        async with browser.context() as context:
            page = await context.new_page()
            await page.set_content("<h1>Here</h1>")
            await expect(page.get_by_role("heading")).to_have_text("Here")

    try:
        browser.run(story())
    finally:
        browser.close()
