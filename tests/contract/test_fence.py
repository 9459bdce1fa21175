"""The fence: what a stale lease does is refused, says so, and leaves the row exactly as it was."""

from __future__ import annotations

import pytest

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.store import Verdict
from tests.contract.needs import cases, excepted, needs
from tests.contract.store_harness import SETTLEMENTS, StoreHarness, new_token


@cases("how", SETTLEMENTS, needs={"snooze": "marks"})
async def test_a_repeat_of_a_recorded_settlement_is_known_as_one(harness: StoreHarness, how: str) -> None:
    lease = await harness.start()
    assert await harness.settle(lease, SETTLEMENTS[how]) is Verdict.SETTLED
    image = await harness.image(lease.job_id)
    assert await harness.settle(lease, SETTLEMENTS[how], repeat=True) is Verdict.ALREADY_SETTLED
    assert await harness.settle(lease, SETTLEMENTS[how]) is Verdict.ALREADY_SETTLED
    assert await harness.image(lease.job_id) == image


@excepted(table="lost, not already settled: the row says another thing")
async def test_another_outcome_for_a_settled_lease_changes_nothing(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.settle(lease, SETTLEMENTS["retry"])
    image = await harness.image(lease.job_id)
    is_flow = harness.backend.name == "redis"  # whose store does not say what it recorded
    recorded = Verdict.ALREADY_SETTLED if is_flow else Settlement(State.ERRORED, AttemptOutcome.RETRY)
    assert await harness.settle(lease, COMPLETED) == recorded
    assert await harness.image(lease.job_id) == image


async def test_a_repeat_that_is_the_first_to_arrive_is_recorded(harness: StoreHarness) -> None:
    lease = await harness.start()
    assert await harness.settle(lease, repeat=True) is Verdict.SETTLED
    assert (await harness.job(lease.job_id)).state is State.COMPLETED


async def test_after_the_next_claim_an_old_repeat_is_lost(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.settle(lease, SETTLEMENTS["retry"])
    await harness.pass_time(60)
    await harness.take()
    assert await harness.settle(lease, SETTLEMENTS["retry"], repeat=True) is Verdict.LOST


@pytest.mark.parametrize("repeat", [False, True])
async def test_a_lease_that_was_reset_is_lost(harness: StoreHarness, repeat: bool) -> None:
    lease = await harness.start()
    await harness.lose(lease)
    assert await harness.settle(lease, repeat=repeat) is Verdict.LOST


@pytest.mark.parametrize("repeat", [False, True])
async def test_a_lease_that_was_released_is_lost(harness: StoreHarness, repeat: bool) -> None:
    lease = await harness.start()
    await harness.heartbeats.release([lease])
    assert await harness.settle(lease, repeat=repeat) is Verdict.LOST


async def test_a_lease_that_was_abandoned_is_lost(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.heartbeats.abandon(lease.token)
    assert await harness.settle(lease) is Verdict.LOST


async def test_a_lease_on_a_removed_job_is_lost_and_a_repeat_of_it_unknown(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.lose(lease)
    await harness.store.admin.remove(lease.job_id)
    assert await harness.settle(lease) is Verdict.LOST
    assert await harness.settle(lease, repeat=True) is Verdict.UNKNOWN


@needs("history")
@excepted(table="records stay")
async def test_without_a_history_a_repeat_leaves_no_trace_and_is_unknown(forgetful_harness: StoreHarness) -> None:
    lease = await forgetful_harness.start()
    assert await forgetful_harness.settle(lease) is Verdict.SETTLED
    assert await forgetful_harness.settle(lease, repeat=True) is Verdict.UNKNOWN


@needs("retry")
async def test_a_settled_job_that_was_retried_still_knows_its_settlement(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.settle(lease, SETTLEMENTS["fail"])
    await harness.store.admin.retry(lease.job_id)
    assert await harness.settle(lease, SETTLEMENTS["fail"], repeat=True) is Verdict.ALREADY_SETTLED


async def zombie_of(harness: StoreHarness, how: str) -> Lease:
    """A lease that has lost its job, which somebody else (or the same worker) holds now."""
    lease = await harness.start()
    match how:
        case "reset":
            await harness.lose(lease)
        case "stall":
            await harness.pass_time(31)
            await harness.heartbeats.reset_stalled(0)
        case "release":
            await harness.heartbeats.release([lease])
        case "snooze":
            await harness.settle(lease, SETTLEMENTS["snooze"])
            await harness.pass_time(60)
    return lease


@pytest.mark.parametrize("worker", ["w1", "w2"])
@pytest.mark.parametrize("how", ["reset", "stall", "release", "snooze"])
async def test_a_zombie_changes_nothing(harness: StoreHarness, how: str, worker: str) -> None:
    zombie = await zombie_of(harness, how)
    current = await harness.take(worker=worker)
    assert current.job_id == zombie.job_id
    image = await harness.image(zombie.job_id)
    for settlement in SETTLEMENTS.values():
        assert await harness.settle(zombie, settlement) is Verdict.LOST
    pair = (zombie.job_id, zombie.token)
    assert (await harness.heartbeats.beat([zombie], 3600)).lost == {pair}
    await harness.heartbeats.release([zombie])
    assert list(await harness.heartbeats.reset_lease(zombie)) == []
    await harness.heartbeats.abandon(zombie.token)
    assert await harness.image(zombie.job_id) == image
    assert await harness.settle(current) is Verdict.SETTLED


@pytest.mark.parametrize("state", [State.QUEUED, State.ERRORED, State.FAILED, State.CANCELED, State.COMPLETED])
async def test_a_stranger_changes_nothing_in_any_state(harness: StoreHarness, state: State) -> None:
    job = await harness.in_state(state)
    stranger = Lease(job.id, new_token(), 1)
    image = await harness.image(job.id)
    for settlement in SETTLEMENTS.values():
        assert await harness.settle(stranger, settlement) is Verdict.LOST
    assert (await harness.heartbeats.beat([stranger], 30)).lost == {(job.id, stranger.token)}
    await harness.heartbeats.release([stranger])
    assert list(await harness.heartbeats.reset_lease(stranger)) == []
    assert await harness.image(job.id) == image


async def test_the_guard_is_the_pair_and_not_two_lists(harness: StoreHarness) -> None:
    first, second = await harness.start("a"), await harness.start("b")
    crossed = [Lease(first.job_id, second.token, 1), Lease(second.job_id, first.token, 1)]
    images = [await harness.image(lease.job_id) for lease in (first, second)]
    assert list(await harness.store.settle([(lease, COMPLETED) for lease in crossed])) == [Verdict.LOST] * 2
    pulse = await harness.heartbeats.beat(crossed, 3600)
    assert pulse.lost == {(lease.job_id, lease.token) for lease in crossed}
    await harness.heartbeats.release(crossed)
    assert list(await harness.heartbeats.reset_lease(crossed[0])) == []
    assert [await harness.image(lease.job_id) for lease in (first, second)] == images


@needs("expired_leases")
async def test_one_token_on_two_jobs_guards_each_of_them(harness: StoreHarness) -> None:
    await harness.add()
    await harness.add()
    first, second = [claim.lease for claim in await harness.claim(2)]
    await harness.settle(first, SETTLEMENTS["snooze"])
    await harness.pass_time(60)
    again = await harness.take(worker="w2")
    assert again.job_id == first.job_id
    assert list(await harness.store.settle([(first, COMPLETED), (second, COMPLETED)])) == [
        Verdict.LOST,
        Verdict.SETTLED,
    ]
    assert (await harness.job(first.job_id)).state is State.PROCESSING


@needs("expired_leases")
async def test_an_expired_lease_may_settle_until_another_worker_claims_the_job(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.pass_time(3600)
    assert await harness.settle(lease) is Verdict.SETTLED


@needs("epochs")
async def test_the_epoch_grows_at_every_claim_and_every_take_away(harness: StoreHarness) -> None:
    lease = await harness.start()
    assert lease.epoch == 1
    await harness.lose(lease)
    lease = await harness.take()
    assert lease.epoch == 3
    await harness.settle(lease, SETTLEMENTS["snooze"])
    await harness.pass_time(60)
    assert (await harness.take()).epoch == 4


@needs("keys")
async def test_a_revived_job_goes_on_counting_epochs(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.settle(lease, SETTLEMENTS["fail"])
    await harness.add(key="k")
    assert (await harness.take()).epoch == 2


@needs("retry")
async def test_a_canceled_job_that_came_back_goes_on_counting_epochs(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.settle(lease, SETTLEMENTS["cancel"])
    await harness.store.admin.retry(lease.job_id)
    assert (await harness.take()).epoch == 2


@needs("cancel")
@excepted(table="attempts of a canceled record are not kept")
async def test_a_lease_named_twice_in_one_release_is_released_once(harness: StoreHarness) -> None:
    plain, asked = await harness.start("a"), await harness.start("b")
    await harness.store.admin.cancel(asked.job_id)
    await harness.heartbeats.release([plain, asked, plain, asked])
    assert [(job.id, job.state, job.attempts) for job in await harness.everything()] == [
        (plain.job_id, State.QUEUED, 0),
        (asked.job_id, State.CANCELED, 0),
    ]


async def test_a_lease_named_twice_in_one_beat_is_renewed(harness: StoreHarness) -> None:
    lease = await harness.start()
    assert (await harness.heartbeats.beat([lease, lease], 30)).lost == frozenset()


@cases("how", SETTLEMENTS, needs={"snooze": "marks"})
async def test_a_lease_settled_twice_in_one_batch_is_settled_once(harness: StoreHarness, how: str) -> None:
    lease, other = await harness.start("a"), await harness.start("b")
    batch = [(lease, SETTLEMENTS[how]), (other, COMPLETED), (lease, SETTLEMENTS[how])]
    verdicts = await harness.store.settle(batch)
    assert set(verdicts) <= {Verdict.SETTLED, Verdict.ALREADY_SETTLED}
    assert verdicts[1] is Verdict.SETTLED
    assert [job.id for job in await harness.everything()] == [lease.job_id, other.job_id]
    assert (await harness.job(lease.job_id)).attempts == (0 if how == "snooze" else 1)


async def test_a_zombie_completes_nothing_where_no_history_is_kept(forgetful_harness: StoreHarness) -> None:
    harness = forgetful_harness
    stale = [await harness.start("a"), await harness.start("b")]
    for lease in stale:
        await harness.lose(lease)
    current = [await harness.take(), await harness.take()]
    assert set(await harness.store.settle([(lease, COMPLETED) for lease in stale])) == {Verdict.LOST}
    assert set(await harness.store.settle([(lease, COMPLETED) for lease in current])) == {Verdict.SETTLED}
