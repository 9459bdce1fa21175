"""Serial keys, tasks, failures and workers, on every store."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import pytest

from stowhand.events import Events
from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import Fail
from stowhand.jobs.task_limits import NO_DECLARATIONS, LimitValues, TaskDeclarations, TaskLimits
from stowhand.protocols.operator import WorkerDescription, WorkerList
from stowhand.protocols.store import ClaimRequest
from stowhand.protocols.throughput import OutcomeCounts, TaskMinute, ThroughputKeeper
from stowhand.testing import FakeClock, MemoryStore
from stowhand.web.actions import ActionPages
from stowhand.web.board import Board
from stowhand.web.request import Right, Visitor
from tests.contract.store_harness import ERRORED, judged, new_token
from tests.web.conftest import LOOKER, PageReader, Stores

ODD = "a/b.c \"'<i>&שלום"
ACTOR = Visitor("act", frozenset({Right.LOOK, Right.ACT}))


async def test_a_queue_shows_its_depth_its_holder_and_its_pause(store_at: Stores) -> None:
    async with store_at() as store:
        assert "No job has a serial key" in await PageReader(store).page("/queues")
        for _ in range(3):
            await store.jobs.enqueue(NewJob(task="t", serial=ODD))
        (claim,) = await store.claim(ClaimRequest(worker="w", token=new_token(), limit=1, lease=60.0))
        await store.operate.pause_serial(ODD)
        page = PageReader(store, LOOKER)
        text = await page.page("/queues")
        assert "&lt;i&gt;" in text
        assert "<i>" not in text
        assert f'<a href="/job?id={claim.lease.job_id}">' in text
        assert cells(text, "serials-1")[1:3] == ["2", "2"]
        assert "now" in cells(text, "serials-1")[3] or "ago" in cells(text, "serial keys-1")[3]
        assert "paused" in text
        assert "<form" not in text
        assert 'name="resume serial"' in await PageReader(store, ACTOR).page("/queues")


async def test_the_link_of_an_unusual_name_leads_to_its_jobs() -> None:
    store = MemoryStore()
    await store.jobs.enqueue(NewJob(task=ODD, serial=ODD))
    await store.jobs.enqueue(NewJob(task="other"))
    visitor = PageReader(store, prefix="/jobs-admin")
    for page in ("/queues", "/tasks"):
        (link,) = re.findall(r'scope="row"><a href="(/jobs-admin/jobs\?[^"]*%2F[^"]*)"', await visitor.page(page))
        text = await visitor.page(link)
        assert 'id="job-1"' in text
        assert 'id="job-2"' not in text


async def test_a_task_shows_its_rate_its_failures_and_its_workers(store_at: Stores) -> None:
    async with store_at() as store:
        assert "No task is known yet" in await PageReader(store).page("/tasks")
        for task in ("busy", "orphan"):
            await store.jobs.enqueue(NewJob(task=task))
        heartbeats = store.heartbeats()
        assert isinstance(heartbeats, ThroughputKeeper)
        assert isinstance(heartbeats, WorkerList)
        await heartbeats.worker_seen(WorkerDescription("w1", "host", 1, "1", ("busy",), 4), NO_DECLARATIONS)
        minute = int((await store.timetable.now()).timestamp()) // 60
        tally = OutcomeCounts(ok=90, failed=6, retry=24, runs={20: 100}, waits={10: 100})
        await heartbeats.write_throughput("w1", [TaskMinute(minute, "busy", tally)])
        await heartbeats.close()
        visitor = PageReader(store)
        text = await visitor.page("/tasks")
        orphan, busy = cells(text, "tasks-1"), cells(text, "tasks-2")
        assert cells(await visitor.page("/tasks?sort=name"), "tasks-1")[0] == "busy"
        assert busy[2:4] == ["1.6", "25.0%"]
        assert "<svg" in text
        assert "none" in orphan[-2]
        assert cells(await visitor.page("/tasks?sort=failing"), "tasks-1")[0] == "busy"
        assert "got &#39;speed&#39;, must be one of trouble" in await visitor.page("/tasks?sort=speed", 400)


async def test_a_limit_shows_its_values_its_jobs_and_those_that_wait(store_at: Stores) -> None:
    async with store_at() as store:
        assert "No task has a limit" in await PageReader(store).page("/limits")
        values = LimitValues(concurrency=1, rate=5, rate_seconds=60.0)
        await declare_limit(store, "send", ODD, values)
        ids = [(await store.jobs.enqueue(NewJob(task="send"))).id for _ in range(3)]
        await store.claim(ClaimRequest(worker="w", token=new_token(), limit=3, lease=60.0))
        text = await PageReader(store, LOOKER).page("/limits")
        row = cells(text, "limits-1")
        assert unescape(row[0]) == ODD
        assert row[1] == "1 at once, 5 per 1m"
        assert row[3:7] == ["1/1", "2", "2", "full"]
        assert f'<a href="/job?id={ids[0]}">' in text
        assert "<i>" not in text
        assert "<form" not in text
        assert "Change" not in text
        assert "its limit" in await PageReader(store, LOOKER).page(f"/job?id={ids[1]}")
        await store.operate.set_limit(ODD, LimitValues(concurrency=7))
        text = await PageReader(store, ACTOR).page("/limits")
        assert "declared: 1 at once" in cells(text, "limits-1")[1]
        assert "next start" in cells(text, "limits-1")[6]
        assert 'name="reset limit"' in text


async def declare_limit(store: Any, task: str, name: str, values: LimitValues) -> None:
    heartbeats = store.heartbeats()
    own = TaskLimits(
        concurrency=None if values.concurrency is None else name,
        rate=None if values.rate is None else name,
        key_limit=None if values.key_concurrency is None else name,
        key=None if values.key_concurrency is None else "customer",
    )
    await heartbeats.declare_tasks(TaskDeclarations({task: "default"}, {task: own}, {name: values}))
    await heartbeats.close()


async def test_failures_are_grouped_with_their_start(store_at: Stores) -> None:
    async with store_at() as store:
        assert "No failed jobs" in await PageReader(store).page("/failures")
        for _ in range(2):
            await store.jobs.enqueue(NewJob(task="sync"))
        for claim in await store.claim(ClaimRequest(worker="w", token=new_token(), limit=2, lease=60.0)):
            broken = judged(Fail("httpx.ConnectError: no route\nTraceback", error_class="httpx.ConnectError"))
            await store.settle([(claim.lease, broken)])
        text = await PageReader(store).page("/failures")
        row = cells(text, "failures-1")
        assert row[0] == "httpx.ConnectErrorno route"
        assert row[1:3] == ["sync", "2"]
        assert '<a href="/jobs?task=sync&amp;state=failed">' in text
        assert '<a href="/jobs?task=sync&amp;state=failed&amp;error=ConnectError">' in text
        assert 'id="job-2"' in await PageReader(store).page("/jobs?task=sync&state=failed&error=ConnectError")
        assert "no route" not in await PageReader(store, LOOKER).page("/failures")
        assert "error=" not in await PageReader(store, LOOKER).page("/failures"), "they may not search in errors"


async def test_without_permanent_failures_failed_attempts_are_linked() -> None:
    store = MemoryStore()
    assert "Waiting for another attempt" not in await PageReader(store).page("/failures")
    await store.jobs.enqueue(NewJob(task="sync"))
    (claim,) = await store.claim(ClaimRequest(worker="w", token=new_token(), limit=1, lease=60.0))
    await store.settle([(claim.lease, ERRORED)])
    page = await PageReader(store).page("/failures")
    assert '<a href="/jobs?state=errored">Waiting for another attempt after an error: 1</a>' in page


async def test_a_worker_shows_its_host_and_its_jobs(store_at: Stores) -> None:
    async with store_at() as store:
        assert "stowhand worker" in await PageReader(store).page("/workers")
        heartbeats = store.heartbeats()
        assert isinstance(heartbeats, WorkerList)
        card = WorkerDescription("w1", "host<1>", 77, "1.2", tuple("abcdef"), 4, app_version="2.9.0")
        await heartbeats.worker_seen(card, NO_DECLARATIONS)
        await heartbeats.close()
        job = await store.jobs.enqueue(NewJob(task="a"))
        await store.claim(ClaimRequest(worker="w1", token=new_token(), limit=1, lease=60.0))
        text = await PageReader(store).page("/workers")
        assert "host&lt;1&gt;" in text
        assert cells(text, "workers-1")[1:3] == ["alive", "1/4"]
        assert f'<a href="/job?id={job.id}">' in text
        assert "2.9.0" in text
        assert "a, b, and 4 more" in text


async def test_attention_items_come_first() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    beats = store.heartbeats()
    assert isinstance(beats, WorkerList)
    for name in ("a", "b", "c"):
        await store.jobs.enqueue(NewJob(task="t", serial=name))
    await store.operate.pause_serial("c")
    await store.admin.permanently_fail_jobs([2])
    await beats.worker_seen(WorkerDescription("b", "host", 1, "1", None, 4), NO_DECLARATIONS)
    await clock.advance(timedelta(minutes=5).total_seconds())
    await beats.worker_seen(WorkerDescription("a", "host", 1, "1", None, 4), NO_DECLARATIONS)
    for path, part, names in (("queues", "serials", "cba"), ("workers", "workers", "ba")):
        page = await PageReader(store).page(f"/{path}")
        assert "".join(cells(page, f"{part}-{number + 1}")[0][0] for number in range(len(names))) == names


NAMES = {
    "ordinary": lambda kind, number: f"shop.{kind}s.send_order_confirmation_{number:03}",
    "long and full of quotes": lambda kind, number: (f"{number:03}" + "\"'<&>" * 30)[:128],
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
async def test_pages_stay_small_with_many_rows_and_long_names(
    name: Callable[[str, int], str],
) -> None:
    store = MemoryStore()
    tasks = [name("task", number) for number in range(60)]
    for number in range(200):
        await store.jobs.enqueue(
            NewJob(task=tasks[number % 60], serial=name("serial", number), key=name("key", number))
        )
    for number in range(200, 250):
        await store.jobs.enqueue(NewJob(task=tasks[number % 60]))
    beats = store.heartbeats()
    assert isinstance(beats, ThroughputKeeper)
    minute = int((await store.timetable.now()).timestamp()) // 60
    for number in range(50):
        card = WorkerDescription(
            name("worker", number), name("host", number)[:60], 7, "1", tuple(tasks), 8, app_version="2.9.0"
        )
        await beats.worker_seen(card, NO_DECLARATIONS)
        await store.claim(ClaimRequest(worker=card.name, token=new_token(), limit=4, lease=60.0))
    for one in range(60):
        tally = OutcomeCounts(ok=90 + one, failed=one % 3, retry=one % 7, runs={20: 100}, waits={10 + one % 5: 100})
        await beats.write_throughput("w", [TaskMinute(minute - one, task, tally) for task in tasks])
    await store.admin.permanently_fail_jobs(range(201, 251), f"ValueError: {name('error', 1) * 9}")
    visitor = PageReader(store)
    visitor.board = Board(visitor.reader, actions=ActionPages(Events()))
    for at in ("/", "/jobs", "/jobs?state=failed", "/queues", "/tasks", "/failures", "/workers", "/job?id=1"):
        assert len((await visitor.page(at)).encode()) < 60_000, at


async def test_a_long_list_has_pages() -> None:
    store = MemoryStore()
    for number in range(120):
        await store.jobs.enqueue(NewJob(task="t", serial=f"queue-{number:03}"))
    visitor = PageReader(store)
    first = await visitor.page("/queues")
    assert "1 to 20 of 120" in first
    assert 'rel="next" href="/queues?from=20"' in first
    last = await visitor.page("/queues?from=100")
    assert "101 to 120 of 120" in last
    assert "queue-119" in last
    assert 'rel="next"' not in last
    assert "101 to 120 of 120" in await visitor.page("/queues?from=150"), "the list was longer once"
    assert "1 to 20 of 120" in await visitor.page("/queues?from=-1")
    assert "is not a whole number" in await visitor.page("/queues?from=x", 400)


def cells(text: str, row: str) -> list[str]:
    """The words of a row, without markup."""
    body = text.partition(f'<tr id="{row}"')[2].partition("</tr>")[0]
    result = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", body, re.DOTALL)
    return [re.sub(r"<[^>]+>", "", one).strip() for one in result]
