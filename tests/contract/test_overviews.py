"""What the pages of the dashboard ask besides lists: amounts by state, what workers hold, versions, tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import msgspec
import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.task_limits import NO_DECLARATIONS
from stowhand.protocols.counts import MAX_EXACT_COUNT, MAX_EXACT_COUNT_FOR_METRICS, BoundedCount
from stowhand.protocols.operator import (
    MAX_SHOWN_WORKERS,
    VERSION_ABSENCE_SECONDS,
    VERSION_RETENTION_SECONDS,
    WORKER_TIMEOUT_SECONDS,
    WorkerDescription,
    WorkerList,
)
from stowhand.protocols.throughput import OutcomeCounts, TaskMinute, ThroughputKeeper
from stowhand.stores.kernel import counts
from tests.contract.needs import needs
from tests.contract.store_harness import STATES, StoreHarness

pytestmark = needs("inspect")

CARD = WorkerDescription(name="w1", host="h", pid=7, version="1.2", tasks=("a", "b"), concurrency=4, app_version="5.0")


async def see(harness: StoreHarness, **details: object) -> None:
    assert isinstance(harness.heartbeats, WorkerList)
    await harness.heartbeats.worker_seen(msgspec.structs.replace(CARD, **details), NO_DECLARATIONS)


async def test_few_jobs_are_counted_exactly(harness: StoreHarness) -> None:
    assert await harness.store.inspect.amounts() == dict.fromkeys(State, BoundedCount(0))
    for number, state in enumerate(STATES, 1):
        for _ in range(number):
            await harness.in_state(state)
    await harness.add(serial="q")
    await harness.make_suspect()
    expected = {state: BoundedCount(number) for number, state in enumerate(STATES, 1)}
    expected[State.QUEUED] = BoundedCount(3)
    assert await harness.store.inspect.amounts() == expected


async def test_counts_beyond_ten_thousand_are_lower_bounds(harness: StoreHarness) -> None:
    await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(MAX_EXACT_COUNT))
    assert (await harness.store.inspect.amounts())[State.QUEUED] == BoundedCount(MAX_EXACT_COUNT)
    await harness.store.jobs.enqueue_many(NewJob(task="t", serial=f"q{number % 2}") for number in range(2000))
    amounts = await harness.store.inspect.amounts()
    assert (amounts[State.QUEUED], amounts[State.ERRORED]) == (
        BoundedCount(MAX_EXACT_COUNT, is_lower_bound=True),
        BoundedCount(0),
    )
    assert amounts[State.QUEUED].text == "more than 10,000"
    states = (await harness.store.inspect.figures()).states
    assert states == amounts
    assert (await harness.store.inspect.figures(MAX_EXACT_COUNT_FOR_METRICS)).states[State.QUEUED] == BoundedCount(
        MAX_EXACT_COUNT + 2000
    )


async def test_what_a_worker_holds_is_shown_from_what_it_has_held_longest(harness: StoreHarness) -> None:
    for number in range(5):
        await harness.add("t", payload='{"n": 1}', flags=(f"f{number}",))
    order = []
    for _ in range(3):
        (claim,) = await harness.claim(worker="w2")
        order.append(claim.record.id)
        await harness.pass_time(1.0)
    (only,) = await harness.claim(worker="w1")
    one, two = await harness.store.inspect.held(2)
    assert (one.worker, one.jobs, [job.id for job in one.longest]) == ("w1", BoundedCount(1), [only.record.id])
    assert (two.worker, two.jobs, [job.id for job in two.longest]) == ("w2", BoundedCount(3), order[:2])
    whole = await harness.job(order[0])
    assert two.longest[0] == msgspec.structs.replace(whole, payload_text="")


async def test_without_running_jobs_no_worker_holds_any(harness: StoreHarness) -> None:
    await harness.add()
    assert list(await harness.store.inspect.held()) == []


async def test_a_worker_reports_its_application_version(harness: StoreHarness) -> None:
    await see(harness)
    await see(harness, name="w2", app_version=None)
    assert [row.description.app_version for row in await harness.store.inspect.workers()] == ["5.0", None]


async def test_a_version_is_known_from_the_moment_its_first_worker_came_up(harness: StoreHarness) -> None:
    begin = harness.now
    await see(harness)
    await harness.pass_time(20.0)
    await see(harness, name="w2")
    await see(harness, name="w3", app_version="5.1")
    await see(harness, name="w4", app_version=None)
    versions = [(one.version, one.since) for one in await harness.store.inspect.app_versions()]
    assert versions == [("5.0", begin), ("5.1", begin + timedelta(seconds=20))]
    assert isinstance(harness.heartbeats, WorkerList)
    for name in ("w1", "w2", "w3"):
        await harness.heartbeats.worker_gone(name)
    assert len(await harness.store.inspect.app_versions()) == 2, "workers go, and what came up has come up"


async def test_a_version_that_comes_back_comes_up_once_more(harness: StoreHarness) -> None:
    begin = harness.now
    for _ in range(3):
        await see(harness)
        await harness.pass_time(VERSION_ABSENCE_SECONDS - 1)
    assert len(await harness.store.inspect.app_versions()) == 1, "it was there all the time"
    await harness.pass_time(VERSION_ABSENCE_SECONDS + 1)
    back = harness.now
    await see(harness)
    versions = [(one.version, one.since) for one in await harness.store.inspect.app_versions()]
    assert versions == [("5.0", begin), ("5.0", back)]
    await harness.pass_time(VERSION_RETENTION_SECONDS + 60)
    await harness.heartbeats.maintain()
    assert list(await harness.store.inspect.app_versions()) == []


async def test_tasks_are_known_from_jobs_workers_figures_and_pauses(harness: StoreHarness) -> None:
    for state in STATES:
        await harness.in_state(state, task="a")
    await harness.add("later", delay=60.0)
    await harness.add("nobodys")
    await see(harness)
    await see(harness, name="w0", tasks=("b",))
    await harness.store.operate.pause_task("held up")
    minute = int(harness.now.timestamp() // 60)
    counted = TaskMinute(minute, "over", OutcomeCounts(ok=3))
    await cast("ThroughputKeeper", harness.heartbeats).write_throughput("w1", [counted])
    tasks = {one.name: one for one in await harness.store.inspect.tasks()}
    assert list(tasks) == ["a", "b", "held up", "later", "nobodys", "over"]
    a, one, none = tasks["a"], BoundedCount(1), BoundedCount(0)
    assert (a.waiting, a.due, a.running, a.failed) == (BoundedCount(2), one, one, one)
    assert (a.serving, a.workers, a.is_unserved) == (1, ("w1",), False)
    assert (tasks["b"].waiting, tasks["b"].workers) == (none, ("w0", "w1"))
    assert (tasks["later"].due, tasks["later"].is_unserved) == (none, False)
    assert (tasks["nobodys"].due, tasks["nobodys"].is_unserved) == (one, True)
    assert tasks["held up"].paused_since == harness.now
    assert [name for name, task in tasks.items() if task.paused_since is not None] == ["held up"]


async def test_a_known_task_without_a_counted_job_may_have_more_than_none(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "MAX_EXACT_COUNT", 2)
    for _ in range(3):
        await harness.add("a")
        await harness.claim(worker="w1")
    await see(harness)
    tasks = {one.name: (one.running, one.waiting) for one in await harness.store.inspect.tasks()}
    assert tasks == {
        "a": (BoundedCount(2, is_lower_bound=True), BoundedCount(0)),
        "b": (BoundedCount(0, is_lower_bound=True), BoundedCount(0)),
    }


async def test_a_worker_of_any_task_can_run_each_and_a_lost_one_none(harness: StoreHarness) -> None:
    await harness.add("a")
    await see(harness, tasks=None)
    (task,) = await harness.store.inspect.tasks()
    assert (task.serving, task.workers, task.is_unserved) == (1, ("w1",), False)
    await harness.pass_time(WORKER_TIMEOUT_SECONDS + 1)
    (task,) = await harness.store.inspect.tasks()
    assert (task.serving, task.workers, task.is_unserved) == (0, (), True)
    for number in range(MAX_SHOWN_WORKERS + 5):
        await see(harness, name=f"x{number:02}", tasks=("a",))
    (task,) = await harness.store.inspect.tasks()
    assert (task.serving, len(task.workers)) == (MAX_SHOWN_WORKERS + 5, MAX_SHOWN_WORKERS)
