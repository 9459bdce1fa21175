"""Heartbeats: what they renew, and what they tell."""

from __future__ import annotations

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.protocols.store import Pulse
from tests.contract.bench import Bench, in_thread, new_token


def pair(lease: Lease) -> tuple[int, str]:
    return (lease.job_id, lease.token)


async def test_a_beat_renews_the_lease_from_now(bench: Bench) -> None:
    lease = await bench.start()
    await bench.pass_time(20)
    assert bench.heart.beat([lease], 30) == Pulse()
    await bench.pass_time(20)
    assert list(bench.heart.reset_stalled(0)) == []
    await bench.pass_time(11)
    assert [reset.job_id for reset in bench.heart.reset_stalled(0)] == [lease.job_id]


async def test_a_beat_changes_nothing_but_the_deadline(bench: Bench) -> None:
    lease = await bench.start()
    before = await bench.job(lease.job_id)
    await bench.pass_time(20)
    bench.heart.beat([lease], 30)
    assert await bench.job(lease.job_id) == before


async def test_an_expired_lease_that_was_not_reset_is_renewed(bench: Bench) -> None:
    lease = await bench.start()
    await bench.pass_time(300)
    assert bench.heart.beat([lease], 30) == Pulse()
    assert list(bench.heart.reset_stalled(0)) == []


async def test_a_beat_renews_only_what_it_names(bench: Bench) -> None:
    beaten, forgotten = await bench.start("a"), await bench.start("b")
    await bench.pass_time(20)
    bench.heart.beat([beaten], 30)
    await bench.pass_time(11)
    assert [reset.job_id for reset in bench.heart.reset_stalled(0)] == [forgotten.job_id]


async def test_a_beat_without_leases_says_nothing(bench: Bench) -> None:
    await bench.start()
    assert bench.heart.beat([], 30) == Pulse()


async def test_a_beat_names_what_is_lost_and_renews_the_rest(bench: Bench) -> None:
    kept, settled, reset, released = [await bench.start(task) for task in "abcd"]
    await bench.settle(settled)
    await bench.lose(reset)
    bench.heart.release([released])
    unknown = Lease(999_999, new_token(), 1)
    await bench.pass_time(20)
    pulse = bench.heart.beat([kept, settled, reset, released, unknown], 30)
    assert pulse == Pulse(lost=frozenset(pair(lease) for lease in (settled, reset, released, unknown)))
    await bench.pass_time(20)
    assert list(bench.heart.reset_stalled(0)) == []


async def test_a_beat_tells_who_was_asked_to_cancel_and_still_renews_it(bench: Bench) -> None:
    asked, other = await bench.start("a"), await bench.start("b")
    await bench.store.cancel(asked.job_id)
    await bench.pass_time(20)
    for _ in range(2):
        assert bench.heart.beat([asked, other], 30) == Pulse(canceled=frozenset({pair(asked)}))
    await bench.pass_time(20)
    assert list(bench.heart.reset_stalled(0)) == []
    assert (await bench.job(asked.job_id)).state is State.PROCESSING


async def test_a_running_job_whose_key_was_removed_is_not_interrupted(bench: Bench) -> None:
    lease = await bench.start(key="k")
    await bench.store.remove_key("k")
    assert bench.heart.beat([lease], 30) == Pulse()


async def test_a_beat_may_carry_hundreds_of_leases(bench: Bench) -> None:
    for _ in range(300):
        await bench.add()
    leases = [claim.lease for claim in await bench.claim(300)]
    gone = leases[::7]
    bench.heart.release(gone)
    assert bench.heart.beat(leases, 30) == Pulse(lost=frozenset(pair(lease) for lease in gone))


async def test_a_heart_works_in_a_thread_of_its_own(bench: Bench) -> None:
    lease = await bench.start()
    heart = await in_thread(bench.store.heart)
    try:
        assert await in_thread(heart.beat, [lease], 30) == Pulse()
        await in_thread(heart.release, [lease])
    finally:
        await in_thread(heart.close)
    assert (await bench.job(lease.job_id)).state is State.QUEUED


async def test_a_heart_may_be_closed_twice(bench: Bench) -> None:
    heart = bench.another_heart(bench.store)
    heart.beat([], 30)
    heart.close()
    heart.close()
