"""A paused serial key: nothing of it begins, everything else goes on, and it is told when it may again."""

from __future__ import annotations

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import State
from stowhand.protocols.counts import Pauses
from stowhand.protocols.operator import SerialChange, TaskChange
from stowhand.protocols.store import Verdict
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, SETTLEMENTS, StoreHarness
from tests.contract.test_wake import asleep, woken

pytestmark = needs("operate")


async def test_no_job_of_a_paused_queue_is_claimed_and_every_other_is(harness: StoreHarness) -> None:
    await harness.add(serial="q", priority=-1)
    other = await harness.add(serial="other")
    free = await harness.add()
    assert await harness.store.operate.pause_serial("q") == SerialChange("q", True)
    claims = await harness.claim(10)
    assert [claim.lease.job_id for claim in claims] == [other.id, free.id]


async def test_a_queue_without_any_job_can_be_paused(harness: StoreHarness) -> None:
    assert (await harness.store.operate.pause_serial("new")).changed
    await harness.add(serial="new")
    assert list(await harness.claim(10)) == []
    (row,) = await harness.store.inspect.serials()
    assert (row.name, row.paused_since, row.waiting, row.due) == ("new", harness.now, 1, 1)


async def test_pausing_and_resuming_twice_changes_nothing_more(harness: StoreHarness) -> None:
    await harness.store.operate.pause_serial("q")
    since = harness.now
    await harness.pass_time(5)
    assert await harness.store.operate.pause_serial("q") == SerialChange("q", False)
    assert [row.paused_since for row in await harness.store.inspect.serials()] == [since]
    assert await harness.store.operate.resume_serial("q") == SerialChange("q", True)
    assert await harness.store.operate.resume_serial("q") == SerialChange("q", False)
    assert await harness.store.operate.resume_serial("never heard of") == SerialChange("never heard of", False)
    assert list(await harness.store.inspect.serials()) == []


async def test_a_resumed_queue_goes_on_where_it_stood(harness: StoreHarness) -> None:
    first = await harness.add(serial="q")
    await harness.store.operate.pause_serial("q")
    second = await harness.add(serial="q", priority=-1)
    assert list(await harness.claim(10)) == []
    await harness.store.operate.resume_serial("q")
    assert (await harness.take()).job_id == second.id
    assert list(await harness.claim(10)) == [], "and it is serial as before"
    assert first.state is State.QUEUED


@pytest.mark.parametrize("how", SETTLEMENTS)
async def test_a_running_job_goes_on_and_settles_and_then_nothing_follows(harness: StoreHarness, how: str) -> None:
    lease = await harness.start(serial="q")
    following = await harness.add(serial="q")
    await harness.store.operate.pause_serial("q")
    (row,) = await harness.store.inspect.serials()
    assert (row.held_by, row.running, row.waiting) == (lease.job_id, 1, 1)
    assert not (await harness.heartbeats.beat([lease], 30.0)).lost
    assert await harness.settle(lease, SETTLEMENTS[how]) is Verdict.SETTLED
    assert list(await harness.claim(10)) == []
    (row,) = await harness.store.inspect.serials()
    assert (row.held_by, row.running) == (None, 0)
    await harness.store.operate.resume_serial("q")
    assert (await harness.take()).job_id == following.id


async def test_what_was_claimed_ahead_and_is_released_does_not_come_back(harness: StoreHarness) -> None:
    lease = await harness.start(serial="q")
    await harness.store.operate.pause_serial("q")
    await harness.heartbeats.release([lease])
    assert list(await harness.claim(10)) == []
    await harness.store.operate.resume_serial("q")
    assert (await harness.take()).job_id == lease.job_id


async def test_what_a_dead_worker_held_waits_too(harness: StoreHarness) -> None:
    lease = await harness.start(serial="q")
    await harness.store.operate.pause_serial("q")
    await harness.lose(lease)
    assert list(await harness.claim(10)) == []


async def test_a_queue_that_is_resumed_while_its_job_runs_is_still_serial(harness: StoreHarness) -> None:
    lease = await harness.start(serial="q")
    following = await harness.add(serial="q")
    await harness.store.operate.pause_serial("q")
    await harness.store.operate.resume_serial("q")
    assert list(await harness.claim(10)) == []
    await harness.settle(lease)
    assert (await harness.take()).job_id == following.id


async def test_a_suspect_of_a_paused_queue_waits_too(harness: StoreHarness) -> None:
    job = await harness.make_suspect(serial="q")
    await harness.store.operate.pause_serial("q")
    assert list(await harness.claim(10, suspects=True)) == []
    await harness.store.operate.resume_serial("q")
    assert (await harness.take(suspects=True)).job_id == job.id


async def test_a_retry_of_a_paused_queue_waits_too(harness: StoreHarness) -> None:
    lease = await harness.start(serial="q")
    await harness.store.operate.pause_serial("q")
    await harness.settle(lease, ERRORED)
    await harness.store.admin.retry(lease.job_id)
    assert list(await harness.claim(10)) == []


async def test_what_is_paused_hurries_no_worker(harness: StoreHarness) -> None:
    await harness.add(serial="q")
    assert await harness.store.next_due(None) == 0
    await harness.store.operate.pause_serial("q")
    assert await harness.store.next_due(None) is None
    await harness.store.operate.resume_serial("q")
    assert await harness.store.next_due(None) == 0


async def test_a_resume_wakes_a_worker_in_another_process(harness: StoreHarness) -> None:
    await harness.add(serial="q")
    await harness.store.operate.pause_serial("q")
    waiting = await asleep(harness, await harness.another())
    await harness.store.operate.resume_serial("q")
    assert await woken(waiting)


async def test_serial_keys_are_listed_with_their_counts(harness: StoreHarness) -> None:
    await harness.in_state(State.FAILED, serial="b")
    await harness.add(serial="b", delay=60.0)
    running = await harness.start("runs", serial="b")
    await harness.add(serial="a")
    await harness.add()
    await harness.store.operate.pause_serial("B")
    rows = await harness.store.inspect.serials()
    assert [row.name for row in rows] == ["B", "a", "b"]
    last = rows[-1]
    assert (last.waiting, last.due, last.running, last.failed, last.held_by) == (1, 0, 1, 1, running.job_id)


async def test_paused_queues_are_listed_alone(harness: StoreHarness) -> None:
    assert list(await harness.store.inspect.serials(paused=True)) == []
    await harness.in_state(State.FAILED, serial="b")
    await harness.add(serial="b", delay=60.0)
    for serial in ("b", "a", "other"):
        await harness.start(serial, serial=serial)
        await harness.add(serial=serial)
    await harness.make_suspect(serial="c")
    for serial in ("new", "c", "b", "a"):
        await harness.store.operate.pause_serial(serial)
    rows = await harness.store.inspect.serials()
    assert [row.name for row in rows] == ["a", "b", "c", "new", "other"]
    assert list(await harness.store.inspect.serials(paused=True)) == list(rows[:4])


async def test_a_queue_tells_since_when_its_oldest_job_is_due(harness: StoreHarness) -> None:
    first = harness.now
    await harness.add(serial="q", delay=30.0)
    await harness.add(serial="q", delay=20.0)
    assert [row.due_since for row in await harness.store.inspect.serials()] == [None]
    await harness.pass_time(60.0)
    (row,) = await harness.store.inspect.serials()
    assert row.due_since is not None
    assert abs((row.due_since - first).total_seconds() - 20) < 1


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
async def test_a_name_that_no_queue_can_have_is_refused(harness: StoreHarness, name: str) -> None:
    for call in (harness.store.operate.pause_serial, harness.store.operate.resume_serial):
        with pytest.raises(InvalidJob, match="serial: "):
            await call(name)


async def test_a_pause_outlives_maintenance_and_every_job_of_its_queue(harness: StoreHarness) -> None:
    lease = await harness.start(serial="q")
    await harness.store.operate.pause_serial("q")
    await harness.settle(lease)
    await harness.pass_time(40 * 86_400)
    await harness.heartbeats.maintain()
    await harness.add(serial="q")
    assert list(await harness.claim(10)) == []


async def test_no_job_of_a_paused_task_is_claimed_in_whatever_queue_and_every_other_is(harness: StoreHarness) -> None:
    await harness.add("a", priority=-1)
    await harness.add("a", serial="q", priority=-1)
    behind = await harness.add("b", serial="q")
    free = await harness.add("b")
    assert await harness.store.operate.pause_task("a") == TaskChange("a", True)
    assert await harness.store.operate.pause_task("a") == TaskChange("a", False)
    claims = await harness.claim(10)
    assert sorted(claim.lease.job_id for claim in claims) == [behind.id, free.id]


async def test_a_worker_with_a_list_of_tasks_leaves_the_paused_one_of_them_alone(harness: StoreHarness) -> None:
    for task in ("a", "b", "c"):
        await harness.add(task)
    await harness.store.operate.pause_task("a")
    assert [claim.task for claim in await harness.claim(10, tasks=("a", "b"))] == ["b"]
    assert list(await harness.claim(10, tasks=("a",))) == []
    assert await harness.store.next_due(("a",)) is None


async def test_a_resumed_task_goes_on_where_it_stood(harness: StoreHarness) -> None:
    await harness.store.operate.pause_task("a")
    first, second = await harness.add("a"), await harness.add("a", serial="q")
    assert list(await harness.claim(10)) == []
    assert await harness.store.operate.resume_task("a") == TaskChange("a", True)
    assert await harness.store.operate.resume_task("a") == TaskChange("a", False)
    assert [claim.lease.job_id for claim in await harness.claim(10)] == [first.id, second.id]


async def test_a_running_job_of_a_paused_task_goes_on_and_its_retry_waits(harness: StoreHarness) -> None:
    lease = await harness.start("a")
    await harness.store.operate.pause_task("a")
    assert not (await harness.heartbeats.beat([lease], 30.0)).lost
    assert await harness.settle(lease, ERRORED) is Verdict.SETTLED
    await harness.store.admin.retry(lease.job_id)
    assert list(await harness.claim(10)) == []
    await harness.store.operate.resume_task("a")
    assert (await harness.take()).job_id == lease.job_id


async def test_a_suspect_of_a_paused_task_waits_and_hurries_no_worker(harness: StoreHarness) -> None:
    job = await harness.make_suspect("a")
    await harness.store.operate.pause_task("a")
    assert list(await harness.claim(10, suspects=True)) == []
    assert await harness.store.next_due(None) is None
    await harness.store.operate.resume_task("a")
    assert (await harness.take(suspects=True)).job_id == job.id


@pytest.mark.parametrize("serial", [None, "q"])
async def test_a_paused_task_hurries_no_worker_and_is_not_late(harness: StoreHarness, serial: str | None) -> None:
    await harness.add("a", serial=serial)
    await harness.pass_time(60)
    await harness.add("b", serial=serial)
    await harness.pass_time(5)
    assert await harness.store.inspect.oldest_due() == {"default": pytest.approx(65, abs=1)}
    await harness.store.operate.pause_task("a")
    assert await harness.store.inspect.oldest_due() == {"default": pytest.approx(5, abs=1)}
    await harness.store.operate.pause_task("b")
    assert await harness.store.inspect.oldest_due() == {}
    assert await harness.store.next_due(None) is None
    await harness.store.operate.resume_task("b")
    assert await harness.store.next_due(None) == 0


async def test_a_resume_of_a_task_wakes_a_worker_in_another_process(harness: StoreHarness) -> None:
    await harness.add("a")
    await harness.store.operate.pause_task("a")
    waiting = await asleep(harness, await harness.another())
    await harness.store.operate.resume_task("a")
    assert await woken(waiting)


async def test_pauses_are_listed(harness: StoreHarness) -> None:
    assert await harness.store.inspect.pauses() == Pauses()
    since = harness.now
    await harness.store.operate.pause_task("b")
    await harness.store.operate.pause_task("a")
    await harness.pass_time(5)
    await harness.store.operate.pause_task("a")
    expected = Pauses(tasks={"a": since, "b": since})
    assert await harness.store.inspect.pauses() == expected
    assert list(expected.tasks) == ["a", "b"]
    assert (await harness.store.inspect.figures()).pauses == expected


async def test_it_is_explained_that_a_task_is_paused(harness: StoreHarness) -> None:
    free, queued = await harness.add("a"), await harness.add("a", serial="q")
    await harness.store.operate.pause_task("a")
    codes = [await explained(harness, job.id) for job in (free, queued)]
    assert codes[0][0] == "task_paused"
    assert "task_paused" in codes[1]


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
async def test_a_name_that_no_task_can_have_is_refused(harness: StoreHarness, name: str) -> None:
    for call in (harness.store.operate.pause_task, harness.store.operate.resume_task):
        with pytest.raises(InvalidJob, match="task: "):
            await call(name)


async def explained(harness: StoreHarness, job_id: int) -> list[str]:
    """The codes, in order."""
    result = await harness.store.inspect.explain(job_id)
    assert result is not None
    return [reason.code for reason in result.reasons]
