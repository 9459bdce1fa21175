"""The first page: figures, and what needs attention."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.task_limits import NO_DECLARATIONS
from stowhand.protocols.operator import WorkerDescription, WorkerList
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import ClaimRequest, Heartbeats
from stowhand.protocols.throughput import OutcomeCounts, TaskMinute, ThroughputKeeper
from stowhand.testing import FakeClock, MemoryStore
from tests.contract.store_harness import ERRORED, new_token
from tests.web.conftest import PageReader, Stores

CARD = WorkerDescription("worker-1", "host", 7, "1", ("mail/x.y",), 4)


@asynccontextmanager
async def heartbeats_of(store: QueueStore) -> AsyncIterator[Heartbeats]:
    heartbeats = store.heartbeats()
    try:
        yield heartbeats
    finally:
        await heartbeats.close()


def lines(page: str) -> list[tuple[str, str]]:
    """What needs attention, without what holds names of another direction apart; and where each leads."""
    result = re.findall(r'<li(?: class="bad")?><a href="([^"]*)"><bdi>(.*?)</a>', page)
    messages = [(re.sub("<time.*?</time>", "ago", what), href) for href, what in result]
    return [(html.unescape(re.sub("</bdi>|[\u2068\u2069]", "", what)), html.unescape(href)) for what, href in messages]


async def test_each_attention_item_links_to_its_jobs(store_at: Stores) -> None:
    async with store_at() as store:
        await store.jobs.enqueue(NewJob(task="mail/x.y", serial='the "post"'))
        await store.jobs.enqueue(NewJob(task="unknown"))
        failed = await store.jobs.enqueue(NewJob(task="resize"))
        await store.admin.permanently_fail_jobs([failed.id])
        await store.operate.pause_serial('the "post"')
        await store.operate.pause_task("resize")
        async with heartbeats_of(store) as heartbeats:
            assert isinstance(heartbeats, WorkerList)
            await heartbeats.worker_seen(CARD, NO_DECLARATIONS)
        visitor = PageReader(store)
        page, waiting = await visitor.page("/"), "state=queued&state=errored"
        assert lines(page) == [
            ('Serial key the "post" is paused; 1 job is waiting', f"/jobs?serial=the%20%22post%22&{waiting}"),
            ("Task resize is paused; 0 jobs are waiting", f"/jobs?task=resize&{waiting}"),
            ("No worker has the task unknown; 1 job is due", f"/jobs?task=unknown&{waiting}"),
            ("resize: 1 job failed by hand, the first ago", "/jobs?task=resize&state=failed"),
        ]
        assert "stowhand serials resume &#39;the &#34;post&#34;&#39;" in page
        for what, href in lines(page):
            if not href.startswith("/queues") and "0 jobs" not in what:
                assert "<tbody>" in await visitor.page(href), href


async def test_a_right_to_left_name_does_not_reorder_its_line() -> None:
    store = MemoryStore()
    failed = await store.jobs.enqueue(NewJob(task="שלח"))
    await store.admin.permanently_fail_jobs([failed.id])
    assert "<bdi>\u2068שלח\u2069: 1 job failed" in await PageReader(store).page("/")


async def test_states_have_the_same_order_on_every_store(store_at: Stores) -> None:
    async with store_at() as store:
        page = await PageReader(store).page("/")
        assert re.findall(r'<a href="/jobs\?state=(\w+)">', page) == [state.value for state in State]


async def test_an_idle_store_has_no_attention_items(store_at: Stores) -> None:
    async with store_at() as store:
        page = await PageReader(store).page("/")
        assert lines(page) == []
        assert "No jobs yet" in page
        assert "Nothing is due." in page
        assert "No jobs finished in this period" in page


async def test_throughput_is_drawn_and_the_outlook_estimates_the_rest(store_at: Stores) -> None:
    async with store_at() as store:
        await store.jobs.enqueue_many(NewJob(task="mail/x.y") for _ in range(120))
        minute = int((await store.timetable.now()).timestamp() // 60)
        async with heartbeats_of(store) as heartbeats:
            assert isinstance(heartbeats, ThroughputKeeper)
            assert isinstance(heartbeats, WorkerList)
            await heartbeats.worker_seen(CARD, NO_DECLARATIONS)
            tally = OutcomeCounts(ok=60, retry=3, waits={20: 60}, runs={15: 60})
            await heartbeats.write_throughput("worker-1", [TaskMinute(minute, "mail/x.y", tally)])
        page = await PageReader(store).page("/")
        assert page.count("<svg") == 3
        assert re.search(r"120 jobs are due; at this rate that is 1[0-2]m[ 0-9s]* of work\.", page)
        for span in ("1d", "7d", "90d"):
            assert page.count("<svg") == (await PageReader(store).page(f"/?span={span}")).count("<svg"), span
        assert len(page) < 60_000


async def test_a_failing_task_is_reported_before_a_job_fails_permanently() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    await store.jobs.enqueue(NewJob(task="charge_card"))
    (claim,) = await store.claim(ClaimRequest(worker="w", token=new_token(), limit=1, lease=60.0))
    await store.settle([(claim.lease, ERRORED)])
    await clock.advance(1200.0)
    minute = int((await store.timetable.now()).timestamp() // 60)
    counted = [
        TaskMinute(minute - 1, "charge_card", OutcomeCounts(retry=42)),
        TaskMinute(minute, "send", OutcomeCounts(ok=900)),
    ]
    await store.heartbeats().write_throughput("worker-1", counted)
    visitor = PageReader(store)
    page = await visitor.page("/")
    what = "charge_card: 42 of 42 attempts of the last 10 minutes failed, the first ago"
    assert (what, href := "/jobs?task=charge_card&state=errored") in lines(page)
    assert 'id="job-1"' in await visitor.page(href)
    assert "stowhand serials pause --task charge_card" in page


async def test_a_serial_key_held_for_long_links_to_its_job() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    for serial in ("busy", "busy", "alone"):
        await store.jobs.enqueue(NewJob(task="import", serial=serial))
    await store.claim(ClaimRequest(worker="w", token=new_token(), limit=2, lease=3600.0))
    visitor = PageReader(store)
    assert "is held by" not in await visitor.page("/")
    await clock.advance(660.0)
    visitor.reader.forget_answers()
    held = ("Serial key busy is held by job 1 of import; 1 job is due behind it; it started ago", "/job?id=1")
    assert held in lines(page := await visitor.page("/"))
    assert "If it is stuck: stowhand jobs cancel 1" in page
    assert "Queue alone" not in page, "nothing waits for it"


async def test_a_lost_worker_is_named() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    await store.heartbeats().worker_seen(CARD, NO_DECLARATIONS)
    await clock.advance(timedelta(minutes=5).total_seconds())
    assert lines(await PageReader(store).page("/"))[0] == ("Worker worker-1 on host was lost", "/workers")


@pytest.mark.parametrize("span", ["2h", "<x>"])
async def test_an_unknown_span_is_refused(span: str) -> None:
    page = await PageReader(MemoryStore()).page(f"/?span={span}", 400)
    assert f"span: got {span!r}, must be one of 1h, 1d" in html.unescape(page)
