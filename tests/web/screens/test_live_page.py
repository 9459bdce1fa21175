"""What moves while somebody looks, and what holds still for their hand."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from stowhand.errors import StoreUnreachable
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import AttemptOutcome, Settlement
from stowhand.protocols.store import ClaimRequest
from stowhand.testing import MemoryStore
from stowhand.web import dashboard
from tests.contract.store_harness import new_token
from tests.support.browsing import Chromium, served
from tests.web.screens.conftest import Site

LIVE = re.compile("live")
HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
pytestmark = pytest.mark.xdist_group("screens")


async def test_a_job_that_ends_changes_its_row_without_a_reload(site: Site, page: Page) -> None:
    job = await site.store.jobs.enqueue(NewJob(task="send_mail"))
    await page.goto(site.at("/jobs?state=queued&state=canceled"))
    row = page.locator(f"#job-{job.id}")
    await expect(row).to_contain_text("queued")
    await expect(page.locator("#status")).to_contain_text("Live")
    await site.store.admin.cancel(job.id)
    await expect(row).to_contain_text("canceled")


async def test_a_new_row_is_inserted_and_the_others_stay_the_same_elements(site: Site, page: Page) -> None:
    await site.store.jobs.enqueue(NewJob(task="first"))
    await page.goto(site.at("/jobs"))
    await page.locator("#job-1").evaluate("row => { row.wasHere = true; }")
    await site.store.jobs.enqueue(NewJob(task="second"))
    await expect(page.locator("tbody tr")).to_have_count(2)
    assert await page.locator("tbody tr").nth(0).get_attribute("id") == "job-2"
    assert await page.locator("#job-1").evaluate("row => row.wasHere")


async def test_a_table_does_not_change_under_the_pointer(site: Site, page: Page) -> None:
    await site.store.jobs.enqueue(NewJob(task="first"))
    await page.goto(site.at("/jobs"))
    await page.locator("#job-1").hover()
    await site.store.jobs.enqueue(NewJob(task="second"))
    await expect(page.locator("#status")).to_have_class("paused")
    await expect(page.locator("#job-2")).to_have_count(0)
    await page.locator("h1").hover()
    await expect(page.locator("#job-2")).to_be_visible()
    await expect(page.locator("#status")).to_have_class("live")


async def test_a_table_does_not_change_during_a_selection(site: Site, page: Page) -> None:
    await site.store.jobs.enqueue(NewJob(task="first"))
    await page.goto(site.at("/jobs"))
    await page.locator("#job-1").evaluate("row => getSelection().selectAllChildren(row)")
    await site.store.jobs.enqueue(NewJob(task="second"))
    await expect(page.locator("#status")).to_have_class("paused")
    await page.evaluate("getSelection().removeAllRanges()")
    await expect(page.locator("#job-2")).to_be_visible()


async def test_a_selected_time_stays_selected(site: Site, page: Page) -> None:
    await site.store.jobs.enqueue(NewJob(task="t"))
    await page.goto(site.at("/jobs"))
    time = page.locator("#job-1 time")
    await expect(time).to_contain_text("ago")
    await time.evaluate("time => getSelection().selectAllChildren(time)")
    chosen = await page.evaluate("getSelection().toString()")
    await page.wait_for_timeout(2100)
    assert await page.evaluate("getSelection().toString()") == chosen
    await page.evaluate("getSelection().removeAllRanges()")
    await expect(time).not_to_have_text(chosen)


async def test_selected_jobs_stay_on_the_page_until_the_action(site: Site, page: Page) -> None:
    """Though the list would not have them any more, and the hand is in the form below."""
    for _ in range(2):
        await site.store.jobs.enqueue(NewJob(task="t"))
    await page.goto(site.at("/jobs?state=queued"))
    await page.get_by_label("Select job 1").check()
    await page.get_by_label("When").click()
    await site.store.admin.cancel(1)
    await expect(page.locator("#tabs")).to_contain_text("canceled 1")
    await expect(page.locator("#status")).to_have_class("paused")
    await expect(page.get_by_label("Select job 1")).to_be_checked()
    await page.get_by_label("Select job 1").uncheck()
    await page.locator("h1").click()
    await expect(page.locator("#job-1")).to_have_count(0)


async def test_no_other_job_is_selected_after_going_back_to_a_changed_list(site: Site, page: Page) -> None:
    """A browser ticks again by place."""
    await site.store.jobs.enqueue(NewJob(task="t"))
    await page.goto(site.at("/jobs"))
    await page.get_by_label("Select job 1").check()
    await page.goto(site.at("/tasks"))
    await site.store.jobs.enqueue(NewJob(task="t"))
    await page.go_back()
    await expect(page.locator("#job-2")).to_be_visible()
    await page.wait_for_load_state("load")
    await expect(page.locator("td input:checked")).to_have_count(0)


async def test_a_hidden_tab_closes_its_stream_and_a_visible_one_reconnects(site: Site, page: Page) -> None:
    """No window of a browser without a screen is ever hidden: the page is told so."""
    await site.store.jobs.enqueue(NewJob(task="first"))
    await page.goto(site.at("/jobs"))
    await expect(page.locator("#status")).to_have_class("live")
    await page.evaluate(HIDE, True)
    await expect(page.locator("#status")).to_have_class("outage")
    await site.store.jobs.enqueue(NewJob(task="second"))
    await page.evaluate(HIDE, False)
    await expect(page.locator("#job-2")).to_be_visible()


async def test_an_open_page_shows_nothing_more_after_a_revoked_right(chromium: Chromium) -> None:
    """They signed out in another tab."""
    rights, store = ["look"], MemoryStore()

    async def seen() -> None:
        async with served(dashboard(store, rights=lambda _request: rights)) as url, chromium.context() as context:
            page = await context.new_page()
            await page.goto(f"{url}/jobs")
            await expect(page.locator("#job-1")).to_contain_text("secret_task")
            await page.evaluate(HIDE, True)
            rights.clear()
            await page.evaluate(HIDE, False)
            await expect(page.locator("h1")).to_have_text("Access denied")
            await expect(page.locator("body")).not_to_contain_text("secret_task")

    await store.jobs.enqueue(NewJob(task="secret_task"))
    with pytest.raises(AssertionError, match=r"console: .* 403"):  # what the browser says of the refusal
        await seen()


async def test_the_page_of_a_removed_job_keeps_its_last_state(chromium: Chromium) -> None:
    store = MemoryStore()

    async def seen() -> None:
        async with served(dashboard(store, rights=lambda _request: ["look"])) as url, chromium.context() as context:
            page = await context.new_page()
            await page.goto(f"{url}/job?id=1")
            await expect(page.locator("#status")).to_have_class("live")
            await page.evaluate(HIDE, True)
            await store.admin.remove_jobs([1])
            await page.evaluate(HIDE, False)
            await expect(page.locator("#status")).to_contain_text("This job no longer exists")
            await expect(page.locator("#details")).to_contain_text("send_mail")

    await store.jobs.enqueue(NewJob(task="send_mail"))
    with pytest.raises(AssertionError, match=r"console: .* 404"):  # what the browser says of the look for it
        await seen()


async def test_a_paused_page_reports_an_outage(site: Site, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_given: object, **_options: object) -> None:
        raise StoreUnreachable("gone")

    await site.store.jobs.enqueue(NewJob(task="first"))
    await page.goto(site.at("/jobs"))
    await page.locator("#job-1").hover()
    await site.store.jobs.enqueue(NewJob(task="second"))
    await expect(page.locator("#status")).to_have_class("paused")
    monkeypatch.setattr(type(site.store.inspect), "search", away)
    await expect(page.locator("#status")).to_contain_text("The store does not answer")
    await page.wait_for_timeout(700)
    await expect(page.locator("#status")).to_have_class("outage", timeout=1)
    await page.locator("h1").hover()
    monkeypatch.undo()
    await expect(page.locator("#job-2")).to_be_visible()


async def test_opened_details_stay_open(site: Site, page: Page) -> None:
    """The newest attempt stands first: the others move down."""
    job = await site.store.jobs.enqueue(NewJob(task="t"))
    await attempted(site, "first")
    await page.goto(site.at(f"/job?id={job.id}"))
    await page.locator("#attempts summary").click()
    await page.locator("h1").click()
    await attempted(site, "second")
    opened = page.locator("#attempts details")
    await expect(opened).to_have_count(2)
    await expect(opened.nth(0)).to_contain_text("second")
    await expect(opened.nth(0)).not_to_have_attribute("open", "")
    await expect(opened.nth(1)).to_have_attribute("open", "")


async def test_times_are_local_and_titles_have_utc(site: Site, page: Page) -> None:
    await site.store.jobs.enqueue(NewJob(task="t"))
    await page.goto(site.at("/jobs"))
    time = page.locator("#job-1 time")
    await expect(time).to_have_text(re.compile("now|ago"))
    await expect(time).to_have_attribute("title", re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(.* UTC\)"))


async def attempted(site: Site, error: str) -> None:
    (claim,) = await site.store.claim(ClaimRequest(worker="w", token=new_token(), limit=1, lease=60.0))
    await site.store.settle([(claim.lease, Settlement(State.ERRORED, AttemptOutcome.RETRY, 0.0, error))])


async def test_many_windows_of_one_browser_are_live(site: Site, chromium: Chromium) -> None:
    """A browser opens six connections to a server: with a stream in each window the seventh would hang."""
    async with chromium.context() as context:
        pages = [await context.new_page() for _ in range(8)]
        for window in pages:
            await window.goto(site.at("/jobs"))
            await expect(window.locator("#status")).to_contain_text("Live")
        await site.store.jobs.enqueue(NewJob(task="first"))
        for window in pages:
            await expect(window.locator("#job-1")).to_be_visible(timeout=15_000)
            await expect(window.locator("#status")).to_contain_text("Live")
