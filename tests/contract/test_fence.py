"""The fence: what a stale lease does is refused, says so, and leaves the row exactly as it was."""

from __future__ import annotations

import pytest

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import Verdict
from tests.contract.bench import SETTLEMENTS, Bench, new_token


@pytest.mark.parametrize("how", SETTLEMENTS)
async def test_a_repeat_of_a_recorded_settlement_is_known_as_one(bench: Bench, how: str) -> None:
    lease = await bench.start()
    assert await bench.settle(lease, SETTLEMENTS[how]) is Verdict.SETTLED
    image = await bench.image(lease.job_id)
    assert await bench.settle(lease, SETTLEMENTS[how], repeat=True) is Verdict.ALREADY_SETTLED
    assert await bench.settle(lease, SETTLEMENTS[how]) is Verdict.ALREADY_SETTLED
    assert await bench.image(lease.job_id) == image


async def test_another_outcome_for_a_settled_lease_changes_nothing(bench: Bench) -> None:
    lease = await bench.start()
    await bench.settle(lease, SETTLEMENTS["retry"])
    image = await bench.image(lease.job_id)
    assert await bench.settle(lease, COMPLETED) is Verdict.ALREADY_SETTLED
    assert await bench.image(lease.job_id) == image


async def test_a_repeat_that_is_the_first_to_arrive_is_recorded(bench: Bench) -> None:
    lease = await bench.start()
    assert await bench.settle(lease, repeat=True) is Verdict.SETTLED
    assert (await bench.job(lease.job_id)).state is State.COMPLETED


async def test_after_the_next_claim_an_old_repeat_is_lost(bench: Bench) -> None:
    lease = await bench.start()
    await bench.settle(lease, SETTLEMENTS["retry"])
    await bench.pass_time(60)
    await bench.take()
    assert await bench.settle(lease, SETTLEMENTS["retry"], repeat=True) is Verdict.LOST


@pytest.mark.parametrize("repeat", [False, True])
async def test_a_lease_that_was_reset_is_lost(bench: Bench, repeat: bool) -> None:
    lease = await bench.start()
    await bench.lose(lease)
    assert await bench.settle(lease, repeat=repeat) is Verdict.LOST


@pytest.mark.parametrize("repeat", [False, True])
async def test_a_lease_that_was_released_is_lost(bench: Bench, repeat: bool) -> None:
    lease = await bench.start()
    bench.heart.release([lease])
    assert await bench.settle(lease, repeat=repeat) is Verdict.LOST


async def test_a_lease_that_was_abandoned_is_lost(bench: Bench) -> None:
    lease = await bench.start()
    bench.heart.abandon(lease.token)
    assert await bench.settle(lease) is Verdict.LOST


async def test_a_lease_on_a_removed_job_is_lost_and_a_repeat_of_it_unknown(bench: Bench) -> None:
    lease = await bench.start()
    await bench.lose(lease)
    await bench.store.remove(lease.job_id)
    assert await bench.settle(lease) is Verdict.LOST
    assert await bench.settle(lease, repeat=True) is Verdict.UNKNOWN


async def test_without_a_history_a_repeat_leaves_no_trace_and_is_unknown(forgetful_bench: Bench) -> None:
    lease = await forgetful_bench.start()
    assert await forgetful_bench.settle(lease) is Verdict.SETTLED
    assert await forgetful_bench.settle(lease, repeat=True) is Verdict.UNKNOWN


async def test_a_settled_job_that_was_retried_still_knows_its_settlement(bench: Bench) -> None:
    lease = await bench.start()
    await bench.settle(lease, SETTLEMENTS["fail"])
    await bench.store.retry(lease.job_id)
    assert await bench.settle(lease, SETTLEMENTS["fail"], repeat=True) is Verdict.ALREADY_SETTLED


async def zombie_of(bench: Bench, how: str) -> Lease:
    """A lease that has lost its job, which somebody else (or the same worker) holds now."""
    lease = await bench.start()
    match how:
        case "reset":
            await bench.lose(lease)
        case "stall":
            await bench.pass_time(31)
            bench.heart.reset_stalled(0)
        case "release":
            bench.heart.release([lease])
        case "snooze":
            await bench.settle(lease, SETTLEMENTS["snooze"])
            await bench.pass_time(60)
    return lease


@pytest.mark.parametrize("worker", ["w1", "w2"])
@pytest.mark.parametrize("how", ["reset", "stall", "release", "snooze"])
async def test_a_zombie_changes_nothing_whoever_holds_the_job_now(bench: Bench, how: str, worker: str) -> None:
    zombie = await zombie_of(bench, how)
    current = await bench.take(worker=worker)
    assert current.job_id == zombie.job_id
    image = await bench.image(zombie.job_id)
    for settlement in SETTLEMENTS.values():
        assert await bench.settle(zombie, settlement) is Verdict.LOST
    pair = (zombie.job_id, zombie.token)
    assert bench.heart.beat([zombie], 3600).lost == {pair}
    bench.heart.release([zombie])
    assert list(bench.heart.reset_lease(zombie)) == []
    bench.heart.abandon(zombie.token)
    assert await bench.image(zombie.job_id) == image
    assert await bench.settle(current) is Verdict.SETTLED


@pytest.mark.parametrize("state", [State.QUEUED, State.ERRORED, State.FAILED, State.CANCELED, State.COMPLETED])
async def test_a_stranger_changes_nothing_in_any_state(bench: Bench, state: State) -> None:
    job = await bench.in_state(state)
    stranger = Lease(job.id, new_token(), 1)
    image = await bench.image(job.id)
    for settlement in SETTLEMENTS.values():
        assert await bench.settle(stranger, settlement) is Verdict.LOST
    assert bench.heart.beat([stranger], 30).lost == {(job.id, stranger.token)}
    bench.heart.release([stranger])
    assert list(bench.heart.reset_lease(stranger)) == []
    assert await bench.image(job.id) == image


async def test_the_guard_is_the_pair_and_not_two_lists(bench: Bench) -> None:
    first, second = await bench.start("a"), await bench.start("b")
    crossed = [Lease(first.job_id, second.token, 1), Lease(second.job_id, first.token, 1)]
    images = [await bench.image(lease.job_id) for lease in (first, second)]
    assert list(await bench.store.settle([(lease, COMPLETED) for lease in crossed])) == [Verdict.LOST] * 2
    pulse = bench.heart.beat(crossed, 3600)
    assert pulse.lost == {(lease.job_id, lease.token) for lease in crossed}
    bench.heart.release(crossed)
    assert list(bench.heart.reset_lease(crossed[0])) == []
    assert [await bench.image(lease.job_id) for lease in (first, second)] == images


async def test_one_token_on_two_jobs_guards_each_of_them(bench: Bench) -> None:
    await bench.add()
    await bench.add()
    first, second = [claim.lease for claim in await bench.claim(2)]
    await bench.settle(first, SETTLEMENTS["snooze"])
    await bench.pass_time(60)
    again = await bench.take(worker="w2")
    assert again.job_id == first.job_id
    assert list(await bench.store.settle([(first, COMPLETED), (second, COMPLETED)])) == [Verdict.LOST, Verdict.SETTLED]
    assert (await bench.job(first.job_id)).state is State.PROCESSING


async def test_an_expired_lease_that_nobody_has_taken_may_still_settle(bench: Bench) -> None:
    lease = await bench.start()
    await bench.pass_time(3600)
    assert await bench.settle(lease) is Verdict.SETTLED


async def test_the_epoch_grows_at_every_claim_and_every_take_away(bench: Bench) -> None:
    lease = await bench.start()
    assert lease.epoch == 1
    await bench.lose(lease)
    lease = await bench.take()
    assert lease.epoch == 3
    await bench.settle(lease, SETTLEMENTS["snooze"])
    await bench.pass_time(60)
    assert (await bench.take()).epoch == 4


async def test_a_revived_job_goes_on_counting_epochs(bench: Bench) -> None:
    lease = await bench.start(key="k")
    await bench.settle(lease, SETTLEMENTS["fail"])
    await bench.add(key="k")
    assert (await bench.take()).epoch == 2


async def test_a_canceled_job_that_came_back_goes_on_counting_epochs(bench: Bench) -> None:
    lease = await bench.start()
    await bench.settle(lease, SETTLEMENTS["cancel"])
    await bench.store.retry(lease.job_id)
    assert (await bench.take()).epoch == 2


async def test_a_lease_named_twice_in_one_release_is_released_once(bench: Bench) -> None:
    plain, asked = await bench.start("a"), await bench.start("b")
    await bench.store.cancel(asked.job_id)
    bench.heart.release([plain, asked, plain, asked])
    assert [(job.id, job.state, job.attempts) for job in await bench.everything()] == [
        (plain.job_id, State.QUEUED, 0),
        (asked.job_id, State.CANCELED, 0),
    ]


async def test_a_lease_named_twice_in_one_beat_is_renewed(bench: Bench) -> None:
    lease = await bench.start()
    assert bench.heart.beat([lease, lease], 30).lost == frozenset()


@pytest.mark.parametrize("how", SETTLEMENTS)
async def test_a_lease_settled_twice_in_one_batch_is_settled_once(bench: Bench, how: str) -> None:
    lease, other = await bench.start("a"), await bench.start("b")
    batch = [(lease, SETTLEMENTS[how]), (other, COMPLETED), (lease, SETTLEMENTS[how])]
    verdicts = await bench.store.settle(batch)
    assert set(verdicts) <= {Verdict.SETTLED, Verdict.ALREADY_SETTLED}
    assert verdicts[1] is Verdict.SETTLED
    assert [job.id for job in await bench.everything()] == [lease.job_id, other.job_id]
    assert (await bench.job(lease.job_id)).attempts == (0 if how == "snooze" else 1)


async def test_a_zombie_completes_nothing_where_no_history_is_kept(forgetful_bench: Bench) -> None:
    bench = forgetful_bench
    stale = [await bench.start("a"), await bench.start("b")]
    for lease in stale:
        await bench.lose(lease)
    current = [await bench.take(), await bench.take()]
    assert set(await bench.store.settle([(lease, COMPLETED) for lease in stale])) == {Verdict.LOST}
    assert set(await bench.store.settle([(lease, COMPLETED) for lease in current])) == {Verdict.SETTLED}
