"""Named queues: one after another, whatever happens to the one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED
from tests.contract.bench import CANCELED, ERRORED, FAILED, SNOOZED, Bench


async def test_a_claim_takes_at_most_one_job_of_a_queue(bench: Bench) -> None:
    head = await bench.add(queue="q")
    await bench.add(queue="q")
    free = [await bench.add() for _ in range(2)]
    claims = await bench.claim(10)
    assert [claim.lease.job_id for claim in claims] == [head.id, *(job.id for job in free)]


async def test_a_running_job_blocks_its_queue_and_no_other(bench: Bench) -> None:
    await bench.add(queue="q")
    await bench.take()
    await bench.add(queue="q")
    other = await bench.add(queue="other")
    free = await bench.add()
    claims = await bench.claim(10)
    assert [claim.lease.job_id for claim in claims] == [other.id, free.id]


async def test_five_queues_run_five_jobs_at_once(bench: Bench) -> None:
    for number in range(5):
        await bench.add(queue=f"q{number}")
        await bench.add(queue=f"q{number}")
    claims = await bench.claim(10)
    assert {claim.queue for claim in claims} == {"q0", "q1", "q2", "q3", "q4"}
    assert len(claims) == 5


async def test_a_queue_runs_by_priority_then_run_time_then_id(bench: Bench) -> None:
    third = await bench.add(queue="q")
    second = await bench.add(queue="q", run_at=bench.now - timedelta(seconds=5))
    fourth = await bench.add(queue="q")
    first = await bench.add(queue="q", priority=-1)
    order = []
    for _ in range(4):
        lease = await bench.take()
        order.append(lease.job_id)
        await bench.settle(lease)
    assert order == [first.id, second.id, third.id, fourth.id]


async def settle_with(bench: Bench, lease: Lease, how: str) -> None:
    settlements = {"complete": COMPLETED, "retry": ERRORED, "fail": FAILED, "snooze": SNOOZED, "cancel": CANCELED}
    await bench.settle(lease, settlements[how])


async def release(bench: Bench, lease: Lease) -> None:
    bench.heart.release([lease])
    # It is due as before: without this it would be the head again.
    await bench.store.cancel(lease.job_id)


async def abandon(bench: Bench, lease: Lease) -> None:
    bench.heart.abandon(lease.token)
    await bench.store.cancel(lease.job_id)


async def reset(bench: Bench, lease: Lease) -> None:
    await bench.lose(lease)
    await bench.store.cancel(lease.job_id)


async def stall(bench: Bench, lease: Lease) -> None:
    await bench.pass_time(31)
    bench.heart.reset_stalled(0)
    await bench.store.cancel(lease.job_id)


FREEING: dict[str, Callable[[Bench, Lease], Awaitable[None]]] = {
    "release": release,
    "abandon": abandon,
    "reset": reset,
    "stall": stall,
}


@pytest.mark.parametrize("how", ["complete", "retry", "fail", "snooze", "cancel", *FREEING])
async def test_whatever_ends_a_job_frees_its_queue(bench: Bench, how: str) -> None:
    await bench.add(queue="q")
    lease = await bench.take()
    following = await bench.add(queue="q")
    assert list(await bench.claim()) == []
    if how in FREEING:
        await FREEING[how](bench, lease)
    else:
        await settle_with(bench, lease, how)
    assert (await bench.take()).job_id == following.id


async def test_a_zombie_does_not_free_the_queue_of_the_next_holder(bench: Bench) -> None:
    await bench.add(queue="q")
    zombie = await bench.take()
    await bench.lose(zombie)
    await bench.take()
    await bench.add(queue="q")
    await bench.settle(zombie)
    bench.heart.release([zombie])
    assert list(await bench.claim()) == []


async def test_an_errored_head_that_waits_for_its_retry_does_not_block_the_queue(bench: Bench) -> None:
    head = await bench.in_state(State.ERRORED, queue="q")
    following = await bench.add(queue="q")
    assert (await bench.take()).job_id == following.id
    await bench.pass_time(60)
    assert list(await bench.claim()) == []
    assert (await bench.job(head.id)).state is State.ERRORED


async def test_a_head_in_the_future_does_not_block_the_queue(bench: Bench) -> None:
    await bench.add(queue="q", priority=-9, run_at=bench.now + timedelta(seconds=9))
    following = await bench.add(queue="q")
    assert (await bench.take()).job_id == following.id


async def test_a_head_of_a_task_that_nobody_asked_for_does_not_block_the_queue(bench: Bench) -> None:
    await bench.add("unknown", queue="q")
    following = await bench.add("known", queue="q")
    assert (await bench.take(tasks=("known",))).job_id == following.id


async def test_a_flagged_head_does_not_block_the_queue(bench: Bench) -> None:
    await bench.add(queue="q", flags=("heavy",))
    following = await bench.add(queue="q")
    assert (await bench.take(forbidden_flags=("heavy",))).job_id == following.id


async def test_a_failed_head_does_not_block_the_queue(bench: Bench) -> None:
    await bench.in_state(State.FAILED, queue="q")
    following = await bench.add(queue="q")
    assert (await bench.take()).job_id == following.id


async def test_a_waiting_suspect_does_not_block_its_queue(bench: Bench) -> None:
    await bench.make_suspect(queue="q")
    following = await bench.add(queue="q")
    assert (await bench.take()).job_id == following.id


async def test_a_running_suspect_blocks_its_queue(bench: Bench) -> None:
    await bench.make_suspect(queue="q")
    await bench.take(suspects=True)
    await bench.add(queue="q")
    assert list(await bench.claim(10)) == []


async def test_a_suspect_waits_while_its_queue_is_taken(bench: Bench) -> None:
    suspect = await bench.make_suspect(queue="q")
    await bench.add(queue="q")
    lease = await bench.take()
    assert list(await bench.claim(suspects=True)) == []
    await bench.settle(lease)
    assert (await bench.take(suspects=True)).job_id == suspect.id


async def test_a_running_job_that_moved_to_history_leaves_nothing_of_its_queue_behind(bench: Bench) -> None:
    for _ in range(3):
        await bench.add(queue="q")
        await bench.settle(await bench.take())
    assert list(await bench.claim()) == []


async def test_a_key_update_may_move_a_waiting_job_to_another_queue(bench: Bench) -> None:
    await bench.add(queue="q")
    await bench.take()
    moved = await bench.add(queue="q", key="k")
    await bench.add(queue="elsewhere", key="k")
    assert (await bench.take()).job_id == moved.id
