"""Serial keys: one after another, whatever happens to the one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED
from tests.contract.needs import needs
from tests.contract.store_harness import CANCELED, ERRORED, FAILED, SNOOZED, StoreHarness

pytestmark = needs("serials")


async def test_a_claim_takes_at_most_one_job_of_a_queue(harness: StoreHarness) -> None:
    head = await harness.add(serial="q")
    await harness.add(serial="q")
    free = [await harness.add() for _ in range(2)]
    claims = await harness.claim(10)
    assert [claim.lease.job_id for claim in claims] == [head.id, *(job.id for job in free)]


async def test_a_running_job_blocks_its_queue_and_no_other(harness: StoreHarness) -> None:
    await harness.add(serial="q")
    await harness.take()
    await harness.add(serial="q")
    other = await harness.add(serial="other")
    free = await harness.add()
    claims = await harness.claim(10)
    assert [claim.lease.job_id for claim in claims] == [other.id, free.id]


async def test_five_queues_run_five_jobs_at_once(harness: StoreHarness) -> None:
    for number in range(5):
        await harness.add(serial=f"q{number}")
        await harness.add(serial=f"q{number}")
    claims = await harness.claim(10)
    assert {claim.serial for claim in claims} == {"q0", "q1", "q2", "q3", "q4"}
    assert len(claims) == 5


async def test_a_queue_runs_by_priority_then_run_time_then_id(harness: StoreHarness) -> None:
    third = await harness.add(serial="q")
    second = await harness.add(serial="q", run_at=harness.now - timedelta(seconds=5))
    fourth = await harness.add(serial="q")
    first = await harness.add(serial="q", priority=-1)
    order = []
    for _ in range(4):
        lease = await harness.take()
        order.append(lease.job_id)
        await harness.settle(lease)
    assert order == [first.id, second.id, third.id, fourth.id]


async def settle_with(harness: StoreHarness, lease: Lease, how: str) -> None:
    settlements = {"complete": COMPLETED, "retry": ERRORED, "fail": FAILED, "snooze": SNOOZED, "cancel": CANCELED}
    await harness.settle(lease, settlements[how])


async def release(harness: StoreHarness, lease: Lease) -> None:
    await harness.heartbeats.release([lease])
    # It is due as before: without this it would be the head again.
    await harness.store.admin.cancel(lease.job_id)


async def abandon(harness: StoreHarness, lease: Lease) -> None:
    await harness.heartbeats.abandon(lease.token)
    await harness.store.admin.cancel(lease.job_id)


async def reset(harness: StoreHarness, lease: Lease) -> None:
    await harness.lose(lease)
    await harness.store.admin.cancel(lease.job_id)


async def stall(harness: StoreHarness, lease: Lease) -> None:
    await harness.pass_time(31)
    await harness.heartbeats.reset_stalled(0)
    await harness.store.admin.cancel(lease.job_id)


FREEING: dict[str, Callable[[StoreHarness, Lease], Awaitable[None]]] = {
    "release": release,
    "abandon": abandon,
    "reset": reset,
    "stall": stall,
}


@pytest.mark.parametrize("how", ["complete", "retry", "fail", "snooze", "cancel", *FREEING])
async def test_whatever_ends_a_job_frees_its_queue(harness: StoreHarness, how: str) -> None:
    await harness.add(serial="q")
    lease = await harness.take()
    following = await harness.add(serial="q")
    assert list(await harness.claim()) == []
    if how in FREEING:
        await FREEING[how](harness, lease)
    else:
        await settle_with(harness, lease, how)
    assert (await harness.take()).job_id == following.id


async def test_a_zombie_does_not_free_the_queue_of_the_next_holder(harness: StoreHarness) -> None:
    await harness.add(serial="q")
    zombie = await harness.take()
    await harness.lose(zombie)
    await harness.take()
    await harness.add(serial="q")
    await harness.settle(zombie)
    await harness.heartbeats.release([zombie])
    assert list(await harness.claim()) == []


async def test_an_errored_head_that_waits_for_its_retry_does_not_block_the_queue(harness: StoreHarness) -> None:
    head = await harness.in_state(State.ERRORED, serial="q")
    following = await harness.add(serial="q")
    assert (await harness.take()).job_id == following.id
    await harness.pass_time(60)
    assert list(await harness.claim()) == []
    assert (await harness.job(head.id)).state is State.ERRORED


async def test_a_head_in_the_future_does_not_block_the_queue(harness: StoreHarness) -> None:
    await harness.add(serial="q", priority=-9, run_at=harness.now + timedelta(seconds=9))
    following = await harness.add(serial="q")
    assert (await harness.take()).job_id == following.id


async def test_a_first_job_of_an_unrequested_task_does_not_block_the_serial_key(harness: StoreHarness) -> None:
    await harness.add("unknown", serial="q")
    following = await harness.add("known", serial="q")
    assert (await harness.take(tasks=("known",))).job_id == following.id


async def test_a_flagged_head_does_not_block_the_queue(harness: StoreHarness) -> None:
    await harness.add(serial="q", flags=("heavy",))
    following = await harness.add(serial="q")
    assert (await harness.take(forbidden_flags=("heavy",))).job_id == following.id


async def test_a_failed_head_does_not_block_the_queue(harness: StoreHarness) -> None:
    await harness.in_state(State.FAILED, serial="q")
    following = await harness.add(serial="q")
    assert (await harness.take()).job_id == following.id


async def test_a_waiting_suspect_does_not_block_its_queue(harness: StoreHarness) -> None:
    await harness.make_suspect(serial="q")
    following = await harness.add(serial="q")
    assert (await harness.take()).job_id == following.id


async def test_a_running_suspect_blocks_its_queue(harness: StoreHarness) -> None:
    await harness.make_suspect(serial="q")
    await harness.take(suspects=True)
    await harness.add(serial="q")
    assert list(await harness.claim(10)) == []


async def test_a_suspect_waits_while_its_queue_is_taken(harness: StoreHarness) -> None:
    suspect = await harness.make_suspect(serial="q")
    await harness.add(serial="q")
    lease = await harness.take()
    assert list(await harness.claim(suspects=True)) == []
    await harness.settle(lease)
    assert (await harness.take(suspects=True)).job_id == suspect.id


async def test_a_running_job_that_moved_to_history_leaves_nothing_of_its_queue_behind(harness: StoreHarness) -> None:
    for _ in range(3):
        await harness.add(serial="q")
        await harness.settle(await harness.take())
    assert list(await harness.claim()) == []


async def test_a_key_update_may_move_a_waiting_job_to_another_queue(harness: StoreHarness) -> None:
    await harness.add(serial="q")
    await harness.take()
    moved = await harness.add(serial="q", key="k")
    await harness.add(serial="elsewhere", key="k")
    assert (await harness.take()).job_id == moved.id
