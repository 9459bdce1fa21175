"""Every screen, as a person sees it: it fits, it says nothing to the console, and keeps nobody out."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from stowhand.jobs.job import NewJob
from tests.support.browsing import barriers, overflow
from tests.web.screens.conftest import Site

SCREENS = ["/", "/jobs", "/job?id={job}", "/queues", "/tasks", "/failures", "/workers"]


@pytest.mark.parametrize("path", SCREENS)
async def test_a_screen_keeps_nobody_out(full_site: Site, page: Page, path: str) -> None:
    await page.goto(full_site.at(path.format(job=full_site.running)))
    for theme in ("light", "dark"):
        await page.emulate_media(color_scheme=theme)
        assert await barriers(page) == []
    await page.set_viewport_size({"width": 320, "height": 640})
    assert await overflow(page) == []
    assert await barriers(page) == []


async def test_a_job_that_ends_changes_its_row_without_a_reload(site: Site, page: Page) -> None:
    job = await site.store.jobs.enqueue(NewJob(task="send_mail"))
    await page.goto(site.at("/jobs?state=queued&state=canceled"))
    row = page.locator(f"#job-{job.id}")
    await expect(row).to_contain_text("queued")
    await expect(page.locator("#stamp")).to_contain_text("Live")
    await site.store.admin.cancel(job.id)
    await expect(row).to_contain_text("canceled")
