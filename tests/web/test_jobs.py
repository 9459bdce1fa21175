"""The list of jobs, and the page of one."""

from __future__ import annotations

import html
import json
import re
import uuid

import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.observe.redacted_json import redacted_text
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import ClaimRequest
from stowhand.testing import MemoryStore
from stowhand.web.job import tree
from tests.web.conftest import LOOKER, PageReader, Stores

LONG = "Traceback (most recent call last):\n" + 2000 * '  File "/app/shop/jobs.py", line 1, in <module>\n'
ELSEWHERE = '["<日本語>"' + 2000 * ',"<日本語>"' + "]"
IDS = re.compile(r'id="job-(\d+)"')


def ids(page: str) -> list[int]:
    return [int(one) for one in IDS.findall(page)]


def links(page: str) -> list[str]:
    return [html.unescape(one) for one in re.findall(r'href="([^"]*)"', page)]


async def claimed(store: QueueStore) -> list[Lease]:
    """One attempt at each due job, begun."""
    claims = await store.claim(ClaimRequest(worker="worker-1", token=str(uuid.uuid4()), limit=10, lease=60.0))
    return [one.lease for one in claims]


async def test_every_filter_narrows_the_list_and_stays_in_its_links(store_at: Stores) -> None:
    async with store_at() as store:
        mail = await store.jobs.enqueue(NewJob(task="a/b.c", serial="mail & more", key="k'1", flags=("red",)))
        other = await store.jobs.enqueue(NewJob(task="send"))
        await store.admin.permanently_fail_jobs([other.id], "Boom: <b>no</b> disk")
        visitor = PageReader(store)
        assert ids(await visitor.page("/jobs")) == [other.id, mail.id]
        for name, value in [("task", "a/b.c"), ("serial", "mail & more"), ("key", "k'1"), ("flag", "red")]:
            page = await visitor.page(visitor.href("/jobs", **{name: value}))
            assert ids(page) == [mail.id], name
            assert visitor.href("/jobs", **{name: value}, state="failed") in links(page)
        assert ids(await visitor.page("/jobs?error=NO%3C/B%3E")) == [other.id]
        assert ids(await visitor.page("/jobs?state=failed")) == [other.id]
        assert ids(await visitor.page("/jobs?state=failed&state=queued")) == [other.id, mail.id]
        assert ids(await visitor.page("/jobs?since=1h")) == [other.id, mail.id]
        assert ids(await visitor.page("/jobs?until=1h")) == []
        assert "No matching jobs" in await visitor.page("/jobs?until=1h")
        page = await visitor.page("/jobs?error=disk")
        assert "Boom: &lt;b&gt;no&lt;/b&gt; disk" in page
        assert "Searched 2 of 2 jobs; 1 found." in page


async def test_a_long_list_has_a_link_to_each_next_page(store_at: Stores) -> None:
    async with store_at() as store:
        wanted = await store.jobs.enqueue_many(NewJob(task="send", serial="q") for _ in range(120))
        visitor, walked, at = PageReader(store, prefix="/x"), [], "/x/jobs?serial=q"
        while at:
            page = await visitor.page(at)
            walked += ids(page)
            onward = re.search(r'rel="next" class="button" href="([^"]+)"', page)
            at = html.unescape(onward[1]) if onward else ""
        assert walked == sorted(wanted, reverse=True)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("state=faild", "did you mean 'failed'"),
        ("since=yesterday", "'yesterday' is not a duration"),
        ("seral=mail", "seral: unknown filter; did you mean 'serial'"),
        ("sate=failed", "sate: unknown filter; did you mean 'state'"),
        ("go_on=nowhere", "'nowhere' is not a position of this search"),
    ],
)
async def test_an_invalid_filter_is_named(query: str, said: str) -> None:
    assert said in html.unescape(await PageReader(MemoryStore()).page(f"/jobs?{query}", 400))


@pytest.mark.parametrize("query", ["error=disk", "key=k"])
async def test_without_the_right_to_payloads_their_contents_cannot_be_searched(query: str) -> None:
    visitor = PageReader(MemoryStore(), LOOKER)
    assert "needs the right" in await visitor.page(f"/jobs?{query}", 403)
    assert 'name="error"' not in await visitor.page("/jobs")


async def test_an_id_redirects_to_its_job() -> None:
    store = MemoryStore()
    job = await store.jobs.enqueue(NewJob(task="send"))
    visitor = PageReader(store, prefix="/ops")
    assert '<input name="id"' in await visitor.page("/ops/jobs")
    reply = await visitor.reply(f"/ops/jobs?state=failed&task=&id={job.id}")
    assert (reply.status, dict(reply.headers)["location"]) == (303, f"/ops/job?id={job.id}")
    assert "There is no job" in await visitor.page("/ops/job?id=99", 404)
    assert "Show all" in await visitor.page("/ops/jobs?id=&task=nobodys")


async def test_a_job_shows_its_attempts_and_why_it_waits(store_at: Stores) -> None:
    async with store_at() as store:
        job = await store.jobs.enqueue(NewJob(task="send", payload='{"to":["ada",{"n":9223372036854775809}]}'))
        (lease,) = await claimed(store)
        error = 'ValueError: no "route"\nTraceback (most recent call last):\n  File "mail.py", line 3, in send'
        end = Settlement(State.ERRORED, AttemptOutcome.RETRY, 3600.0, error, error_class="ValueError")
        await store.settle([(lease, end)])
        page = html.unescape(await PageReader(store).page(f"/job?id={job.id}"))
        assert "9223372036854775809" in page
        assert "attempt 1: error, <b>ValueError</b>" in page.replace("Attempt", "attempt")
        assert 'File "mail.py", line 3, in send' in page
        assert "on <bdi>worker-1</bdi>" in page
        assert "Why it waits" in page
        assert f"stowhand jobs retry {job.id}" in page
        hidden = await PageReader(store, LOOKER).page(f"/job?id={job.id}")
        assert "<b>ValueError</b>" in hidden
        assert not [word for word in ("route", "9223372036854775809", "mail.py", "stowhand enqueue") if word in hidden]
        assert "needs the right" in await PageReader(store, LOOKER).page(f"/job/text?id={job.id}&as=payload", 403)


async def test_one_reset_is_singular() -> None:
    store = MemoryStore()
    job = await store.jobs.enqueue(NewJob(task="send"))
    for told in ("reset 1 time after", "reset 2 times after"):
        await claimed(store)
        await store.heartbeats().reset_worker("worker-1")
        assert told in await PageReader(store).page(f"/job?id={job.id}")


async def test_a_job_that_waits_for_another_links_to_it_and_has_times_for_the_script() -> None:
    store = MemoryStore()
    for _ in range(2):
        await store.jobs.enqueue(NewJob(task="send", serial="<i>"))
    await claimed(store)
    page = (await PageReader(store).page("/job?id=2")).partition('id="why"')[2].partition("</section>")[0]
    assert re.search(r'held by <a href="/job\?id=1"><bdi>job 1</bdi></a>, since <time datetime="[-0-9]{10}T', page)
    assert re.search(r'T[:0-9]{8}Z" data-as="local">[-0-9]{10} [:0-9]{8}Z</time>, on worker-1', page)
    assert "&lt;i&gt;" in page


async def test_a_finished_job_shows_its_result(store_at: Stores) -> None:
    async with store_at() as store:
        job = await store.jobs.enqueue(NewJob(task="add"))
        (lease,) = await claimed(store)
        await store.settle(
            [(lease, Settlement(State.COMPLETED, AttemptOutcome.OK, result='{"sum": 18446744073709551617.50}'))]
        )
        page = await PageReader(store).page(f"/job?id={job.id}")
        assert "18446744073709551617.50" in page
        assert "Completed" in page
        assert "18446744073709551617.50" not in await PageReader(store, LOOKER).page(f"/job?id={job.id}")


async def test_an_error_text_is_not_linked_to_a_task() -> None:
    store = MemoryStore()
    message = NewJob(task="it's &#39; <q>")
    for on_failure in (None, message):
        job = await store.jobs.enqueue(NewJob(task="send", on_failure=on_failure))
        await store.admin.permanently_fail_jobs([job.id], "a job of 'x' was bad; the value of 'y' was enqueued")
        page = await PageReader(store).page(f"/job?id={job.id}")
        assert not [one for one in links(page) if "since=" in one]
        assert ("<q>" in page, "reports its failure" in page) == (False, on_failure is message)


async def test_a_job_that_reports_a_failure_links_to_the_failed_job(store_at: Stores) -> None:
    async with store_at() as store:
        message = await store.jobs.enqueue(NewJob(task="send", on_failure=NewJob(task="notify")))
        await store.admin.permanently_fail_jobs([message.id], "no")
        (teller,) = (await store.inspect.search()).jobs[:1]
        assert teller.task == "notify"
        assert f"/job?id={message.id}" in links(await PageReader(store).page(f"/job?id={teller.id}"))
        (onward,) = [
            one for one in links(await PageReader(store).page(f"/job?id={message.id}")) if "task=notify" in one
        ]
        assert f"/job?id={teller.id}" in links(await PageReader(store).page(onward))
        (lease,) = await claimed(store)
        await store.settle([(lease, COMPLETED)])
        assert f"/job?id={teller.id}" in links(await PageReader(store).page(onward)), "when it is over, too"


async def test_an_invalid_trace_or_failure_payload_is_shown() -> None:
    """Any producer may write it."""
    store = MemoryStore()
    for flag in ("traceparent=", "traceparent=x", "traceparent=--"):
        job = await store.jobs.enqueue(NewJob(task="t", flags=(flag,)))
        assert "<dt>Trace</dt>" not in await PageReader(store).page(f"/job?id={job.id}")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    job = await store.jobs.enqueue(NewJob(task="t", flags=(f"traceparent=00-{trace}-00f067aa0ba902b7-01",)))
    assert f"<code>{trace}</code>" in await PageReader(store).page(f"/job?id={job.id}")
    failure = {"task": "t", "arguments": [], "error_class": "E", "error": ""}
    for named in (None, "x" * 90_000, {"a": [1]}):
        job = await store.jobs.enqueue(NewJob(task="t", payload=json.dumps({"job_id": named, **failure})))
        page = await PageReader(store).page(f"/job?id={job.id}")
        assert ("Reports the failure of" in page, len(page.encode()) < 60_000) == (False, True)


def test_a_payload_is_a_tree_with_exact_numbers() -> None:
    shown = str(tree({"a": [2**63 + 1, True, None, 'x<"y'], "token": "hush", "empty": {}}))
    assert "9223372036854775809" in shown
    assert "true" in shown
    assert "x&lt;\\&#34;y" in shown
    assert "hush" not in shown
    assert len(str(tree(list(range(100_000))))) < 40_000
    assert len(str(tree({f"{number}{'<' * 5000}": ["&" * 9000] for number in range(500)}))) < 120_000


def test_copies_hide_secrets_and_change_nothing_else() -> None:
    assert redacted_text('{"n":1.50,"big":12345678901234567890}') == '{"n":1.50,"big":12345678901234567890}'
    for name in ("api_key", "X-Api-Key", "DB_PASSWORD", "secret_access_key", "privateKey", "refreshToken"):
        assert redacted_text(f'{{"n":1.50,"{name}":"hush"}}') == f'{{"n":1.50,"{name}":"***"}}'
    for name in ("key", "public_key", "keyword", "tokens"):
        assert redacted_text(f'{{"{name}":"shown"}}') == f'{{"{name}":"shown"}}'
    assert redacted_text("no json") == "no json"


async def test_the_page_of_a_running_job_has_regions_for_its_result() -> None:
    """The stream fills and empties them: it does not make any."""
    store = MemoryStore()
    job = await store.jobs.enqueue(NewJob(task="send"))
    before = await PageReader(store).page(f"/job?id={job.id}")
    await store.settle(
        [(one, Settlement(State.COMPLETED, AttemptOutcome.OK, result="7")) for one in await claimed(store)]
    )
    after = await PageReader(store).page(f"/job?id={job.id}")
    empty = re.compile(r'<section id="(\w+)" data-region[^>]*></section>')
    assert empty.findall(before) == ["steps", "children", "error", "result", "attempts"]
    assert empty.findall(after) == ["actions", "why", "steps", "children", "error"]


async def test_a_failure_by_hand_is_mentioned_once() -> None:
    store = MemoryStore()
    job = await store.jobs.enqueue(NewJob(task="send"))
    await store.admin.permanently_fail_jobs([job.id])
    page = await PageReader(store).page(f"/job?id={job.id}")
    assert page.count("by hand") == 1


async def test_a_large_payload_is_cut_on_the_page_and_complete_as_text() -> None:
    store = MemoryStore()
    large = '{"lines":["' + '","'.join("x" * 90 for _ in range(9000)) + '"]}'
    job = await store.jobs.enqueue(NewJob(task="send", payload=large))
    visitor = PageReader(store)
    for _ in range(10):
        await store.settle(
            [(one, Settlement(State.ERRORED, AttemptOutcome.RETRY, 0.0, LONG)) for one in await claimed(store)]
        )
    assert len((await visitor.page(f"/job?id={job.id}")).encode()) < 60_000
    await store.settle(
        [(one, Settlement(State.COMPLETED, AttemptOutcome.OK, result=ELSEWHERE)) for one in await claimed(store)]
    )
    assert len((await visitor.page(f"/job?id={job.id}")).encode()) < 60_000
    assert (await visitor.page(f"/job/text?id={job.id}&as=payload")).strip() == large
    assert "unknown text" in await visitor.page(f"/job/text?id={job.id}&as=xml", 400)
