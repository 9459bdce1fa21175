"""The pictures of the pages: the dashboard over an afternoon's jobs, light and dark. `scripts/pictures` runs this."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Page

from stowhand.jobs.job import State
from stowhand.protocols.queue_store import JobFilter
from stowhand.testing import MemoryStore
from stowhand.web import dashboard
from stowhand.web.request import Right, Visitor
from tests.support.browsers import packaged_browser
from tests.support.browsing import Chromium, served
from tests.support.population import morning, populate

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
THEMES = ("light", "dark")
SIZE = {"width": 1180, "height": 760}
# A browser takes pictures as PNG, and writes them on a canvas as WebP, which is a third of that.
AS_WEBP = """async png => {
    const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
    const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/webp", 0.82).split(",")[1];
}"""


async def take() -> None:
    """Write them anew."""
    FOLDER.mkdir(exist_ok=True)
    chromium = Chromium(packaged_browser())  # with fonts of its own, the same on every machine
    await chromium.start()
    try:
        async with _full() as (url, failed):
            pages = {"overview": "/", "jobs": "/jobs?state=failed", "job": f"/job?id={failed}", "tasks": "/tasks"}
            for theme in THEMES:
                async with chromium.context(color_scheme=theme, viewport=SIZE) as context:
                    page = await context.new_page()
                    for name, path in pages.items():
                        await page.goto(url + path)
                        await page.locator("#status.live").wait_for()
                        (FOLDER / f"{name}-{theme}.webp").write_bytes(await _picture(page))
    finally:
        await chromium.stop()


async def _picture(page: Page) -> bytes:
    png = base64.b64encode(await page.screenshot()).decode()
    blank = await page.context.new_page()
    try:
        return base64.b64decode(await blank.evaluate(AS_WEBP, png))
    finally:
        await blank.close()


@asynccontextmanager
async def _full() -> AsyncIterator[tuple[str, int]]:
    """The dashboard's URL, and a job that has failed."""
    clock = morning()
    store = MemoryStore(clock)
    await store.open()
    await populate(store, clock)
    failed = await store.inspect.list(JobFilter(states=(State.FAILED,), task="sync_crm"))
    async with served(dashboard(store, rights=lambda _: Visitor("ada", frozenset(Right)))) as url:
        yield url, failed[-1].id
    await store.close()


if __name__ == "__main__":
    asyncio.run(take())
