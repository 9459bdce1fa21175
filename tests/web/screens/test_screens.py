"""Every screen, as a person sees it: it fits, it says nothing to the console, and keeps nobody out."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from stowhand.jobs.job import NewJob
from stowhand.testing import MemoryStore
from stowhand.web import dashboard
from tests.support.browsing import Chromium, barriers, overflow, served, wear
from tests.web.screens.conftest import Site

SCREENS = [
    *("/", "/jobs", "/job?id={job}", "/again?id={job}", "/queues", "/tasks", "/limits", "/limit?name=partner-api"),
    *("/failures", "/workers"),
]
pytestmark = pytest.mark.xdist_group("screens")


@pytest.mark.parametrize("path", SCREENS)
async def test_every_screen_is_accessible(full_site: Site, page: Page, path: str) -> None:
    await page.goto(full_site.at(path.format(job=full_site.running)))
    for theme in ("light", "dark"):
        await wear(page, theme)
        assert await barriers(page) == []
    await page.set_viewport_size({"width": 320, "height": 640})
    assert await overflow(page) == []
    assert await barriers(page) == []


async def test_a_narrow_screen_does_not_break_names_into_syllables(full_site: Site, page: Page) -> None:
    await page.set_viewport_size({"width": 320, "height": 640})
    for path in ("/jobs", "/failures", "/workers"):
        await page.goto(full_site.at(path))
        widths = await page.locator("main td:has(bdi):not(.minor)").evaluate_all(
            "all => all.map(one => one.clientWidth)"
        )
        assert all(width > 70 for width in widths), path
        table = await page.locator(".table").evaluate("one => [one.scrollWidth, one.clientWidth]")
        assert table[0] <= table[1], path


@pytest.mark.parametrize("width", [320, 1280])
async def test_a_question_separates_its_button_from_its_field(site: Site, page: Page, width: int) -> None:
    """As the page to sign in does."""
    await site.store.jobs.enqueue(NewJob(task="t"))
    await page.set_viewport_size({"width": width, "height": 640})
    await page.goto(site.at("/job?id=1"))
    await page.get_by_role("button", name="Fail", exact=True).click()
    button = await page.locator("main form button").bounding_box()
    field = await page.get_by_label("Reason").bounding_box()
    assert button is not None
    assert field is not None
    assert max(button["x"] - field["x"] - field["width"], button["y"] - field["y"] - field["height"]) > 5


async def test_a_page_is_complete_without_a_script(chromium: Chromium, full_site: Site) -> None:
    async with chromium.context(java_script_enabled=False) as context:
        page = await context.new_page()
        await page.goto(full_site.url)
        for name in ("Jobs", "Queues", "Tasks", "Limits", "Failures", "Workers", "Overview"):
            await page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
            await expect(page.get_by_role("heading", level=1)).to_have_text(name)
            await expect(page.locator("#status")).to_contain_text("As of")
            assert await page.locator("main time, main svg").count() > 0


async def test_every_control_can_be_reached_by_the_keyboard(full_site: Site, page: Page) -> None:
    await page.goto(full_site.at("/queues"))
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(page.locator("main :focus")).to_have_count(1)
    ring = await page.locator("main :focus").evaluate("one => getComputedStyle(one).outlineStyle")
    assert ring == "solid"


@pytest.mark.parametrize("path", ["/job?id={job}", "/again?id={job}", "/tasks", "/limits", "/limit?name=partner-api"])
async def test_the_tab_key_reaches_every_control(full_site: Site, page: Page, path: str) -> None:
    await page.goto(full_site.at(path.format(job=full_site.running)))
    controls = page.locator(":is(a[href], button, input:not([type=hidden]), textarea, summary):visible")
    left = await controls.evaluate_all("all => { window.left = new Set(all); return all.length; }")
    for _ in range(left):
        await page.keyboard.press("Tab")
        await page.evaluate("window.left.delete(document.activeElement)")
    assert await page.evaluate("[...window.left].filter(one => one.isConnected).map(one => one.outerHTML)") == []


@pytest.mark.parametrize("path", ["", "/jobs-admin"])
async def test_the_script_works_in_a_mounted_dashboard(chromium: Chromium, path: str) -> None:
    """Below a path, and with the application's own word of who may what."""
    store = MemoryStore()
    await store.jobs.enqueue(NewJob(task="t", serial="a/b"))
    board = dashboard(store, rights=lambda request: ["look"] if request.headers.get("user-agent") else [])
    app = Starlette(routes=[Mount(path or "/", app=board)])
    async with served(app) as url, chromium.context() as context:
        page = await context.new_page()
        await page.goto(f"{url}{path}/queues")
        await page.get_by_role("link", name="a/b").click()
        await expect(page.locator("#job-1")).to_be_visible()
        await store.jobs.enqueue(NewJob(task="t", serial="a/b"))
        await expect(page.locator("#job-2")).to_be_visible()
        assert page.url.startswith(f"{url}{path}/jobs?")


async def test_an_empty_store_shows_what_to_do_next(site: Site, page: Page) -> None:
    for path, command in (
        ("/jobs", "stowhand enqueue"),
        ("/queues", "--serial"),
        ("/workers", "stowhand worker"),
        ("/limits", "@app.task(limits="),
    ):
        await page.goto(site.at(path))
        await expect(page.locator(".empty code")).to_contain_text(command)
        assert await barriers(page) == []
