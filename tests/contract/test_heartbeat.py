"""Heartbeats: what they renew, and what they tell."""

from __future__ import annotations

from typing import Any

import msgspec

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.protocols.store import Pulse
from tests.contract.needs import needs
from tests.contract.store_harness import StoreHarness, new_token


def pair(lease: Lease) -> tuple[int, str]:
    return (lease.job_id, lease.token)


async def test_a_beat_renews_the_lease_from_now(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.pass_time(20)
    assert await harness.heartbeats.beat([lease], 30) == Pulse()
    await harness.pass_time(20)
    assert list(await harness.heartbeats.reset_stalled(0)) == []
    await harness.pass_time(11)
    assert [reset.job_id for reset in await harness.heartbeats.reset_stalled(0)] == [lease.job_id]


async def test_a_beat_changes_nothing_but_the_deadline(harness: StoreHarness) -> None:
    lease = await harness.start()
    before = await harness.job(lease.job_id)
    await harness.pass_time(20)
    await harness.heartbeats.beat([lease], 30)
    assert await harness.job(lease.job_id) == before


@needs("expired_leases")
async def test_an_expired_lease_that_was_not_reset_is_renewed(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.pass_time(300)
    assert await harness.heartbeats.beat([lease], 30) == Pulse()
    assert list(await harness.heartbeats.reset_stalled(0)) == []


async def test_a_beat_renews_only_what_it_names(harness: StoreHarness) -> None:
    beaten, forgotten = await harness.start("a"), await harness.start("b")
    await harness.pass_time(20)
    await harness.heartbeats.beat([beaten], 30)
    await harness.pass_time(11)
    assert [reset.job_id for reset in await harness.heartbeats.reset_stalled(0)] == [forgotten.job_id]


async def test_a_beat_without_leases_returns_an_empty_pulse(harness: StoreHarness) -> None:
    await harness.start()
    assert await harness.heartbeats.beat([], 30) == Pulse()


async def test_a_beat_names_what_is_lost_and_renews_the_rest(harness: StoreHarness) -> None:
    kept, settled, reset, released = [await harness.start(task) for task in "abcd"]
    await harness.settle(settled)
    await harness.lose(reset)
    await harness.heartbeats.release([released])
    unknown = Lease(999_999, new_token(), 1)
    await harness.pass_time(20)
    pulse = await harness.heartbeats.beat([kept, settled, reset, released, unknown], 30)
    assert pulse == Pulse(lost=frozenset(pair(lease) for lease in (settled, reset, released, unknown)))
    await harness.pass_time(20)
    assert list(await harness.heartbeats.reset_stalled(0)) == []


@needs("find_canceled")
async def test_cancellations_are_found_between_two_beats(harness: StoreHarness) -> None:
    finder: Any = harness.heartbeats
    asked, other, ended, stale = [await harness.start(task) for task in "abcd"]
    assert await finder.find_canceled([]) == frozenset()
    assert await finder.find_canceled([asked, other]) == frozenset()
    for lease in (asked, ended, stale):
        await harness.store.admin.cancel(lease.job_id)
    await harness.settle(ended)
    old = msgspec.structs.replace(stale, token=new_token())
    assert await finder.find_canceled([asked, other, ended, old]) == frozenset({pair(asked)})


@needs("cancel")
async def test_a_beat_reports_a_cancellation_request_and_renews_the_lease(harness: StoreHarness) -> None:
    asked, other = await harness.start("a"), await harness.start("b")
    await harness.store.admin.cancel(asked.job_id)
    await harness.pass_time(20)
    for _ in range(2):
        assert await harness.heartbeats.beat([asked, other], 30) == Pulse(canceled=frozenset({pair(asked)}))
    await harness.pass_time(20)
    assert list(await harness.heartbeats.reset_stalled(0)) == []
    assert (await harness.job(asked.job_id)).state is State.PROCESSING


@needs("keys")
async def test_a_running_job_whose_key_was_removed_is_not_interrupted(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.store.admin.remove_key("k")
    assert await harness.heartbeats.beat([lease], 30) == Pulse()


async def test_a_beat_may_carry_hundreds_of_leases(harness: StoreHarness) -> None:
    for _ in range(300):
        await harness.add()
    leases = [claim.lease for claim in await harness.claim(300)]
    gone = leases[::7]
    await harness.heartbeats.release(gone)
    assert await harness.heartbeats.beat(leases, 30) == Pulse(lost=frozenset(pair(lease) for lease in gone))


async def test_a_heart_works_in_a_thread_of_its_own(harness: StoreHarness) -> None:
    lease = await harness.start()
    thread = harness.heartbeat_thread(harness.store)
    assert await thread.call(lambda heartbeats: heartbeats.beat([lease], 30)) == Pulse()
    await thread.call(lambda heartbeats: heartbeats.release([lease]))
    assert (await harness.job(lease.job_id)).state is State.QUEUED


async def test_a_heart_may_be_closed_twice(harness: StoreHarness) -> None:
    heartbeats = harness.another_heartbeats(harness.store)
    await heartbeats.beat([], 30)
    await heartbeats.close()
    await heartbeats.close()
