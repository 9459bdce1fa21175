"""What a hand does: each action from click to row, with a script and without; three tasks in four clicks each."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from playwright.async_api import Locator, Page, expect

from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import Fail
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import ClaimRequest
from tests.contract.store_harness import judged, new_token
from tests.support.browsing import Chromium, barriers
from tests.web.screens.conftest import Site

ACTIONS: dict[str, tuple[str, Callable[[Job], bool]]] = {
    "Reschedule": ("queued", lambda job: job.priority == 7),
    "Run now": ("queued", lambda job: job.run_at - job.created_at < timedelta(minutes=9)),
    "Cancel": ("canceled", lambda job: job.state is State.CANCELED),
    "Complete": ("completed", lambda job: job.state is State.COMPLETED),
    "Fail": ("failed", lambda job: job.state is State.FAILED and job.last_error == "by a test"),
}
"""On a job that waits: what the page says then, and what is so."""


pytestmark = pytest.mark.xdist_group("screens")


class Clicks:
    """Counts them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.count = 0

    async def click(self, what: Locator) -> None:
        self.count += 1
        await what.click()

    async def link(self, name: str) -> None:
        await self.click(self.page.get_by_role("link", name=name, exact=True))


@pytest.mark.parametrize("label", ACTIONS)
async def test_an_action_changes_the_row(site: Site, page: Page, label: str) -> None:
    says, is_so = ACTIONS[label]
    job = await site.store.jobs.enqueue(NewJob(task="t", delay=3600.0))
    await page.goto(site.at(f"/job?id={job.id}"))
    if label == "Reschedule":
        await page.get_by_label("Priority").fill("7")
    await page.get_by_role("button", name=label, exact=True).click()
    await sure(page, reason="by a test")
    await expect(page.locator("#details .state").first).to_have_text(says)
    await expect(page.get_by_role("status")).to_contain_text(f"{label} {job.id}: done")
    assert is_so(await there(site.store, job.id))


async def test_a_failed_job_is_retried_and_another_removed(site: Site, page: Page) -> None:
    jobs = [await failed(site.store) for _ in range(2)]
    await page.goto(site.at(f"/job?id={jobs[0]}"))
    await page.get_by_role("button", name="Retry", exact=True).click()
    await expect(page.locator("#details .state").first).to_have_text("queued")
    await page.goto(site.at(f"/job?id={jobs[1]}"))
    await page.get_by_role("button", name="Remove", exact=True).click()
    await sure(page)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    assert await site.store.jobs.get(jobs[1]) is None


async def test_several_jobs_are_canceled_together_without_a_script(chromium: Chromium, site: Site) -> None:
    for _ in range(4):
        await site.store.jobs.enqueue(NewJob(task="t"))
    async with chromium.context(java_script_enabled=False) as context:
        page = await context.new_page()
        await page.goto(site.at("/jobs"))
        for job_id in (2, 4):
            await page.get_by_label(f"Select job {job_id}").check()
        await page.get_by_role("button", name="Cancel", exact=True).click()
        await expect(page.locator("#job-4")).to_contain_text("canceled")
        await expect(page.locator("#job-3")).to_contain_text("queued")
        assert [(await there(site.store, one)).state for one in (1, 2)] == [State.QUEUED, State.CANCELED]


async def test_a_queue_and_a_task_are_paused_and_resumed(site: Site, page: Page) -> None:
    await site.store.jobs.enqueue(NewJob(task="t", serial="mail"))
    for path, name in (("/queues", "serial mail"), ("/tasks", "task t")):
        await page.goto(site.at(path))
        await page.get_by_role("button", name=f"Pause {name}").click()
        await expect(page.locator("tbody .paused")).to_be_visible()
        await page.get_by_role("button", name=f"Resume {name}").click()
        await expect(page.locator("tbody .paused")).to_have_count(0)


async def test_a_job_is_run_again_with_another_payload(site: Site, page: Page) -> None:
    job = await site.store.jobs.enqueue(NewJob(task="t", payload='{"to": "ann", "id": 90071992547409931}'))
    await page.goto(site.at(f"/job?id={job.id}"))
    await page.get_by_role("link", name="Run again with changes").click()
    assert await barriers(page) == []
    payload = page.get_by_label("Payload")
    await payload.fill((await payload.input_value()).replace("ann", "ben"))
    await page.get_by_role("button", name="Add this job").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(f"Job {job.id + 1}")
    assert (await there(site.store, job.id + 1)).payload == {"to": "ben", "id": 90071992547409931}


async def test_a_late_job_is_explained(site: Site, page: Page) -> None:
    """A person knows the task and its serial key."""
    await site.store.jobs.enqueue(NewJob(task="send_mail", serial="newsletter"))
    await site.store.operate.pause_serial("newsletter")
    await page.goto(site.url)
    clicks = Clicks(page)
    await clicks.link("Queues")
    await clicks.link("newsletter")
    await clicks.link("1")
    await expect(page.locator("#why")).to_contain_text("paused")
    assert clicks.count <= 4


async def test_a_failure_shows_its_start(site: Site, page: Page) -> None:
    await failed(site.store)
    await page.goto(site.url)
    clicks = Clicks(page)
    await clicks.link("Failures")
    row = page.locator("#failures-1")
    await expect(row).to_contain_text("httpx.ConnectError")
    await expect(row.locator("time").first).to_have_attribute("title", re.compile("UTC"))
    await clicks.link("httpx.ConnectError")
    await expect(page.locator("#error")).to_contain_text("no route")
    assert clicks.count <= 4


async def test_a_running_job_is_canceled(site: Site, page: Page) -> None:
    job = await site.store.jobs.enqueue(NewJob(task="send_mail"))
    await page.goto(site.url)
    clicks = Clicks(page)
    await clicks.link("Jobs")
    await clicks.link(str(job.id))
    await clicks.click(page.get_by_role("button", name="Cancel", exact=True))
    await expect(page.locator("#details .state").first).to_have_text("canceled")
    assert clicks.count <= 4


async def sure(page: Page, reason: str = "") -> None:
    """Say so once more, where that is asked for."""
    if await page.get_by_role("heading", name="Are you sure?").count():
        assert await barriers(page) == []
        if await page.get_by_label("Reason").count():
            await page.get_by_label("Reason").fill(reason)
        await page.locator("main form button").click()


async def there(store: QueueStore, job_id: int) -> Job:
    job = await store.jobs.get(job_id)
    assert job is not None
    return job


async def failed(store: QueueStore) -> int:
    await store.jobs.enqueue(NewJob(task="sync"))
    (claim,) = await store.claim(ClaimRequest(worker="w", token=new_token(), limit=1, lease=60.0))
    broken = judged(Fail("httpx.ConnectError: no route\nTraceback", error_class="httpx.ConnectError"))
    await store.settle([(claim.lease, broken)])
    return claim.record.id
