"""The search of the built site, in a browser: words that people search for lead to the right page."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from starlette.staticfiles import StaticFiles

from tests.support.browsers import find_browser
from tests.support.browsing import Chromium, served

pytestmark = pytest.mark.xdist_group("site")  # of test_site.py: the site is built once
WORDS = {
    "cron": "how-to/run-something-regularly",
    "periodic task": "how-to/run-something-regularly",
    "celery beat": "how-to/run-something-regularly",
    "dead letter": "how-to/handle-a-failed-job",
    "dependency injection": "how-to/open-what-tasks-share",
    "middleware": "how-to/wrap-every-job",
    "pgbouncer": "how-to/go-through-a-transaction-pooler",
    "keda": "how-to/scale",
    "autoscaling": "how-to/scale",
    "unique job": "how-to/debounce-throttle-dedupe",
    "debounce": "how-to/debounce-throttle-dedupe",
    "outbox": "how-to/enqueue-in-your-transaction",
    "sqlalchemy transaction": "how-to/enqueue-in-your-transaction",
    "rate limit": "how-to/limit-jobs",
    "timeout": "how-to/set-timeouts",
    "retries": "how-to/set-retries-and-backoff",
    "backoff": "how-to/set-retries-and-backoff",
    "failure handler": "how-to/act-when-a-job-fails",
    "http worker": "how-to/lend-a-store",
    "workflow": "explanation/workflows",
    "ttl": "how-to/let-a-job-expire",
    "fifo": "how-to/run-jobs-one-after-another",
    "prometheus": "how-to/watch-a-worker-with-prometheus",
    "opentelemetry": "how-to/trace-jobs",
    "kubernetes": "how-to/deploy",
    "pytest": "how-to/test-your-tasks",
    "celery": "how-to/come-from-celery",
    "dramatiq": "how-to/come-from-dramatiq",
    "apscheduler": "how-to/come-from-apscheduler",
    "memory leak": "how-to/when-a-task-leaks-memory",
    "vacuum": "how-to/keep-tables-small",
    "event loop has been blocked": "how-to/troubleshooting",
    "stuck job": "how-to/find-out-why-a-job-waits",
}


def test_thirty_words_lead_to_their_pages_among_the_first_three_results(output: Path) -> None:
    assert len(WORDS) >= 30
    chromium = Chromium(find_browser())

    async def searched() -> dict[str, list[str]]:
        await chromium.start()
        async with served(StaticFiles(directory=output)) as url, chromium.context() as context:
            page = await context.new_page()
            await page.goto(f"{url}/0.1/index.html")
            await page.get_by_role("button", name="Search").click()
            return {word: await first_results(page, word) for word in WORDS}

    try:
        result = chromium.run(searched())
    finally:
        chromium.close()
    assert {word: pages for word, pages in result.items() if WORDS[word] not in pages} == {}


async def first_results(page: Page, word: str) -> list[str]:
    """Return the pages of the first three results."""
    field, links = page.get_by_role("combobox"), page.get_by_role("option")
    await field.fill("")
    await expect(links).to_have_count(0)
    await field.fill(word)
    await links.first.wait_for()
    paths: list[str] = await links.evaluate_all("links => links.slice(0, 3).map(link => new URL(link.href).pathname)")
    return [path.removeprefix("/0.1/").removesuffix(".html") for path in paths]
