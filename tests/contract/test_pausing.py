"""A paused queue: nothing of it begins, everything else goes on, and it is told when it may again."""

from __future__ import annotations

import asyncio

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import State
from stowhand.protocols.figures import Pauses
from stowhand.protocols.operating import QueueChange, TaskChange
from stowhand.protocols.store import Verdict
from tests.contract.bench import ERRORED, SETTLEMENTS, Bench
from tests.contract.test_wake import asleep, woken


async def test_no_job_of_a_paused_queue_is_claimed_and_every_other_is(bench: Bench) -> None:
    await bench.add(queue="q", priority=-1)
    other = await bench.add(queue="other")
    free = await bench.add()
    assert await bench.store.pause_queue("q") == QueueChange("q", True)
    claims = await bench.claim(10)
    assert [claim.lease.job_id for claim in claims] == [other.id, free.id]


async def test_a_queue_without_any_job_can_be_paused(bench: Bench) -> None:
    assert (await bench.store.pause_queue("new")).changed
    await bench.add(queue="new")
    assert list(await bench.claim(10)) == []
    (row,) = await bench.store.queues()
    assert (row.name, row.paused_since, row.waiting, row.due) == ("new", bench.now, 1, 1)


async def test_pausing_and_resuming_twice_changes_nothing_more(bench: Bench) -> None:
    await bench.store.pause_queue("q")
    since = bench.now
    await bench.pass_time(5)
    assert await bench.store.pause_queue("q") == QueueChange("q", False)
    assert [row.paused_since for row in await bench.store.queues()] == [since]
    assert await bench.store.resume_queue("q") == QueueChange("q", True)
    assert await bench.store.resume_queue("q") == QueueChange("q", False)
    assert await bench.store.resume_queue("never heard of") == QueueChange("never heard of", False)
    assert list(await bench.store.queues()) == []


async def test_a_resumed_queue_goes_on_where_it_stood(bench: Bench) -> None:
    first = await bench.add(queue="q")
    await bench.store.pause_queue("q")
    second = await bench.add(queue="q", priority=-1)
    assert list(await bench.claim(10)) == []
    await bench.store.resume_queue("q")
    assert (await bench.take()).job_id == second.id
    assert list(await bench.claim(10)) == [], "and it is serial as before"
    assert first.state is State.QUEUED


@pytest.mark.parametrize("how", SETTLEMENTS)
async def test_a_running_job_goes_on_and_settles_and_then_nothing_follows(bench: Bench, how: str) -> None:
    lease = await bench.start(queue="q")
    following = await bench.add(queue="q")
    await bench.store.pause_queue("q")
    (row,) = await bench.store.queues()
    assert (row.held_by, row.running, row.waiting) == (lease.job_id, 1, 1)
    assert not (await asyncio.to_thread(bench.heart.beat, [lease], 30.0)).lost
    assert await bench.settle(lease, SETTLEMENTS[how]) is Verdict.SETTLED
    assert list(await bench.claim(10)) == []
    (row,) = await bench.store.queues()
    assert (row.held_by, row.running) == (None, 0)
    await bench.store.resume_queue("q")
    assert (await bench.take()).job_id == following.id


async def test_what_was_claimed_ahead_and_is_released_does_not_come_back(bench: Bench) -> None:
    lease = await bench.start(queue="q")
    await bench.store.pause_queue("q")
    await asyncio.to_thread(bench.heart.release, [lease])
    assert list(await bench.claim(10)) == []
    await bench.store.resume_queue("q")
    assert (await bench.take()).job_id == lease.job_id


async def test_what_a_dead_worker_held_waits_too(bench: Bench) -> None:
    lease = await bench.start(queue="q")
    await bench.store.pause_queue("q")
    await bench.lose(lease)
    assert list(await bench.claim(10)) == []


async def test_a_queue_that_is_resumed_while_its_job_runs_is_still_serial(bench: Bench) -> None:
    lease = await bench.start(queue="q")
    following = await bench.add(queue="q")
    await bench.store.pause_queue("q")
    await bench.store.resume_queue("q")
    assert list(await bench.claim(10)) == []
    await bench.settle(lease)
    assert (await bench.take()).job_id == following.id


async def test_a_suspect_of_a_paused_queue_waits_too(bench: Bench) -> None:
    job = await bench.make_suspect(queue="q")
    await bench.store.pause_queue("q")
    assert list(await bench.claim(10, suspects=True)) == []
    await bench.store.resume_queue("q")
    assert (await bench.take(suspects=True)).job_id == job.id


async def test_a_retry_of_a_paused_queue_waits_too(bench: Bench) -> None:
    lease = await bench.start(queue="q")
    await bench.store.pause_queue("q")
    await bench.settle(lease, ERRORED)
    await bench.store.retry(lease.job_id)
    assert list(await bench.claim(10)) == []


async def test_what_is_paused_hurries_no_worker(bench: Bench) -> None:
    await bench.add(queue="q")
    assert await bench.store.next_due(None) == 0
    await bench.store.pause_queue("q")
    assert await bench.store.next_due(None) is None
    await bench.store.resume_queue("q")
    assert await bench.store.next_due(None) == 0


async def test_a_resume_wakes_a_worker_in_another_process(bench: Bench) -> None:
    await bench.add(queue="q")
    await bench.store.pause_queue("q")
    waiting = await asleep(bench, await bench.another())
    await bench.store.resume_queue("q")
    assert await woken(waiting)


async def test_queues_tell_what_they_hold(bench: Bench) -> None:
    await bench.in_state(State.FAILED, queue="b")
    await bench.add(queue="b", delay=60.0)
    running = await bench.start("runs", queue="b")
    await bench.add(queue="a")
    await bench.add()
    await bench.store.pause_queue("B")
    rows = await bench.store.queues()
    assert [row.name for row in rows] == ["B", "a", "b"]
    last = rows[-1]
    assert (last.waiting, last.due, last.running, last.failed, last.held_by) == (1, 0, 1, 1, running.job_id)


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
async def test_a_name_that_no_queue_can_have_is_refused(bench: Bench, name: str) -> None:
    for call in (bench.store.pause_queue, bench.store.resume_queue):
        with pytest.raises(InvalidJob, match="queue: "):
            await call(name)


async def test_a_pause_outlives_maintenance_and_every_job_of_its_queue(bench: Bench) -> None:
    lease = await bench.start(queue="q")
    await bench.store.pause_queue("q")
    await bench.settle(lease)
    await bench.pass_time(40 * 86_400)
    bench.heart.maintain()
    await bench.add(queue="q")
    assert list(await bench.claim(10)) == []


async def test_no_job_of_a_paused_task_is_claimed_in_whatever_queue_and_every_other_is(bench: Bench) -> None:
    await bench.add("a", priority=-1)
    await bench.add("a", queue="q", priority=-1)
    behind = await bench.add("b", queue="q")
    free = await bench.add("b")
    assert await bench.store.pause_task("a") == TaskChange("a", True)
    assert await bench.store.pause_task("a") == TaskChange("a", False)
    claims = await bench.claim(10)
    assert sorted(claim.lease.job_id for claim in claims) == [behind.id, free.id]


async def test_a_worker_with_a_list_of_tasks_leaves_the_paused_one_of_them_alone(bench: Bench) -> None:
    for task in ("a", "b", "c"):
        await bench.add(task)
    await bench.store.pause_task("a")
    assert [claim.task for claim in await bench.claim(10, tasks=("a", "b"))] == ["b"]
    assert list(await bench.claim(10, tasks=("a",))) == []
    assert await bench.store.next_due(("a",)) is None


async def test_a_resumed_task_goes_on_where_it_stood(bench: Bench) -> None:
    await bench.store.pause_task("a")
    first, second = await bench.add("a"), await bench.add("a", queue="q")
    assert list(await bench.claim(10)) == []
    assert await bench.store.resume_task("a") == TaskChange("a", True)
    assert await bench.store.resume_task("a") == TaskChange("a", False)
    assert [claim.lease.job_id for claim in await bench.claim(10)] == [first.id, second.id]


async def test_jobs_without_a_queue_are_paused_and_those_of_queues_go_on(bench: Bench) -> None:
    free, queued = await bench.add("a", priority=-1), await bench.add("a", queue="q")
    assert await bench.store.pause_unqueued() == TaskChange(None, True)
    assert await bench.store.pause_unqueued() == TaskChange(None, False)
    assert (await bench.take()).job_id == queued.id
    assert list(await bench.claim(10)) == []
    assert await bench.store.next_due(None) is None
    assert await bench.store.resume_unqueued() == TaskChange(None, True)
    assert await bench.store.resume_unqueued() == TaskChange(None, False)
    assert (await bench.take()).job_id == free.id


@pytest.mark.parametrize("what", ["a", None])
async def test_a_running_job_of_what_is_paused_goes_on_and_its_retry_waits(bench: Bench, what: str | None) -> None:
    lease = await bench.start("a")
    await pause(bench, what)
    assert not (await asyncio.to_thread(bench.heart.beat, [lease], 30.0)).lost
    assert await bench.settle(lease, ERRORED) is Verdict.SETTLED
    await bench.store.retry(lease.job_id)
    assert list(await bench.claim(10)) == []
    await resume(bench, what)
    assert (await bench.take()).job_id == lease.job_id


@pytest.mark.parametrize("what", ["a", None])
async def test_a_suspect_of_what_is_paused_waits_and_hurries_no_worker(bench: Bench, what: str | None) -> None:
    job = await bench.make_suspect("a")
    await pause(bench, what)
    assert list(await bench.claim(10, suspects=True)) == []
    assert await bench.store.next_due(None) is None
    await resume(bench, what)
    assert (await bench.take(suspects=True)).job_id == job.id


async def test_a_suspect_of_a_queue_is_no_job_without_one(bench: Bench) -> None:
    job = await bench.make_suspect("a", queue="q")
    await bench.store.pause_unqueued()
    assert await bench.store.next_due(None) == 0
    assert (await bench.take(suspects=True)).job_id == job.id


@pytest.mark.parametrize("queue", [None, "q"])
async def test_a_paused_task_hurries_no_worker_and_is_not_late(bench: Bench, queue: str | None) -> None:
    await bench.add("a", queue=queue)
    await bench.pass_time(60)
    await bench.add("b", queue=queue)
    await bench.pass_time(5)
    assert await bench.store.oldest_due() == pytest.approx(65, abs=1)
    await bench.store.pause_task("a")
    assert await bench.store.oldest_due() == pytest.approx(5, abs=1)
    await bench.store.pause_task("b")
    assert await bench.store.oldest_due() == 0
    assert await bench.store.next_due(None) is None
    await bench.store.resume_task("b")
    assert await bench.store.next_due(None) == 0


async def test_paused_jobs_without_a_queue_are_not_late(bench: Bench) -> None:
    await bench.add("a")
    await bench.pass_time(60)
    await bench.add("a", queue="q")
    await bench.store.pause_unqueued()
    assert await bench.store.oldest_due() == pytest.approx(0, abs=1)


@pytest.mark.parametrize("what", ["a", None])
async def test_a_resume_of_a_task_wakes_a_worker_in_another_process(bench: Bench, what: str | None) -> None:
    await bench.add("a")
    await pause(bench, what)
    waiting = await asleep(bench, await bench.another())
    await resume(bench, what)
    assert await woken(waiting)


async def test_what_is_paused_is_told(bench: Bench) -> None:
    assert await bench.store.pauses() == Pauses()
    since = bench.now
    await bench.store.pause_task("b")
    await bench.store.pause_task("a")
    await bench.pass_time(5)
    await bench.store.pause_task("a")
    await bench.store.pause_unqueued()
    expected = Pauses(tasks={"a": since, "b": since}, unqueued=bench.now)
    assert await bench.store.pauses() == expected
    assert list(expected.tasks) == ["a", "b"]
    assert (await bench.store.figures()).pauses == expected


async def test_it_is_explained_that_a_task_or_jobs_without_a_queue_are_paused(bench: Bench) -> None:
    free, queued = await bench.add("a"), await bench.add("a", queue="q")
    await bench.store.pause_task("a")
    await bench.store.pause_unqueued()
    codes = [await explained(bench, job.id) for job in (free, queued)]
    assert codes[0][:2] == ["task_paused", "unqueued_paused"]
    assert "task_paused" in codes[1]
    assert "unqueued_paused" not in codes[1]


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
async def test_a_name_that_no_task_can_have_is_refused(bench: Bench, name: str) -> None:
    for call in (bench.store.pause_task, bench.store.resume_task):
        with pytest.raises(InvalidJob, match="task: "):
            await call(name)


async def pause(bench: Bench, task: str | None) -> None:
    """A task, or the jobs without a queue."""
    await (bench.store.pause_unqueued() if task is None else bench.store.pause_task(task))


async def resume(bench: Bench, task: str | None) -> None:
    """The same again."""
    await (bench.store.resume_unqueued() if task is None else bench.store.resume_task(task))


async def explained(bench: Bench, job_id: int) -> list[str]:
    """The codes, in order."""
    found = await bench.store.explain(job_id)
    assert found is not None
    return [reason.code for reason in found.reasons]
