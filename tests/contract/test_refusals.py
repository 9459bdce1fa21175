"""What an application's own CHECK or trigger refuses concerns one job: the others of a call are none the worse."""

from __future__ import annotations

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, Settlement
from stowhand.protocols.store import RefusedChange, RefusedSettlement, Verdict
from tests.contract.needs import excepted, needs
from tests.contract.store_harness import ERRORED, FAILED, SNOOZED, StoreHarness

pytestmark = needs("refusals")


async def start_many(harness: StoreHarness, count: int = 4) -> list[Lease]:
    return [await harness.start(f"t{number}") for number in range(count)]


async def test_an_end_that_the_database_refuses_is_unwritten_and_the_others_are_recorded(harness: StoreHarness) -> None:
    leases = await start_many(harness)
    harness.backend.refuse(leases[2].job_id, State.COMPLETED)
    replies = await harness.store.settle([(lease, COMPLETED) for lease in leases])
    assert replies[2] == RefusedSettlement(
        reason=replies[2].reason if isinstance(replies[2], RefusedSettlement) else ""
    )
    assert [reply for backend, reply in enumerate(replies) if backend != 2] == [Verdict.SETTLED] * 3
    assert (await harness.job(leases[2].job_id)).state is State.PROCESSING
    assert await harness.settle(leases[2], ERRORED) is Verdict.SETTLED
    assert (await harness.job(leases[2].job_id)).state is State.ERRORED


async def test_one_whose_every_end_is_refused_keeps_no_other_from_being_settled(harness: StoreHarness) -> None:
    leases = await start_many(harness)
    harness.backend.refuse(leases[0].job_id)
    for settlement in (COMPLETED, ERRORED, FAILED, SNOOZED):
        assert isinstance(await harness.settle(leases[0], settlement), RefusedSettlement)
    replies = await harness.store.settle(list(zip(leases, (ERRORED, FAILED, COMPLETED, SNOOZED), strict=True)))
    assert [isinstance(reply, RefusedSettlement) for reply in replies] == [True, False, False, False]
    assert (await harness.job(leases[0].job_id)).state is State.PROCESSING
    assert (await harness.job(leases[3].job_id)).state is State.QUEUED


async def test_a_beat_renews_the_others_and_names_the_one_that_is_refused(harness: StoreHarness) -> None:
    leases = await start_many(harness)
    bad = leases[1]
    harness.backend.refuse(bad.job_id)
    await harness.pass_time(20)
    pulse = await harness.heartbeats.beat(leases, 30.0)
    assert bad.job_id not in {job_id for job_id, _ in pulse.canceled | pulse.busy}
    if harness.backend.name == "http":  # what nobody renews is not the remote worker's for long
        assert pulse.lost == {(bad.job_id, bad.token)}
    else:
        assert pulse.refused == {(bad.job_id, bad.token)}
        assert [(one.job_id, one.operation) for one in harness.heartbeats.refused()] == [(bad.job_id, "beat")]
        assert list(harness.heartbeats.refused()) == []
    await harness.pass_time(15)
    assert [one.job_id for one in await harness.heartbeats.reset_stalled(0.0)] == []
    assert (await harness.job(bad.job_id)).state is State.PROCESSING


async def test_a_release_hands_back_the_others(harness: StoreHarness) -> None:
    leases = await start_many(harness)
    harness.backend.refuse(leases[1].job_id)
    assert list(await harness.heartbeats.release(leases)) == []
    states = [(await harness.job(lease.job_id)).state for lease in leases]
    assert states == [State.QUEUED, State.PROCESSING, State.QUEUED, State.QUEUED]


async def test_a_reset_takes_back_the_others_and_names_the_one_that_is_refused(harness: StoreHarness) -> None:
    leases = await start_many(harness)
    harness.backend.refuse(leases[1].job_id)
    taken = await harness.heartbeats.reset_worker("w1")
    assert [one.job_id for one in taken] == [lease.job_id for lease in leases if lease is not leases[1]]
    refused: list[RefusedChange] = list(harness.heartbeats.refused())
    assert {(one.job_id, one.operation) for one in refused} in ({(leases[1].job_id, "reset")}, set())


async def test_an_error_that_a_cancellation_changed_is_reported(harness: StoreHarness) -> None:
    error, snooze, done = await start_many(harness, 3)
    for lease in (error, snooze, done):
        await harness.store.admin.cancel(lease.job_id)
    replies = await harness.store.settle([(error, ERRORED), (snooze, SNOOZED), (done, COMPLETED)])
    assert [reply.state if isinstance(reply, Settlement) else reply for reply in replies] == [
        State.CANCELED,
        State.CANCELED,
        Verdict.SETTLED,
    ]
    again = await harness.settle(error, ERRORED, repeat=True)
    assert isinstance(again, Settlement)
    assert (again.state, again.ended, again.error) == (State.CANCELED, "canceled", "it failed")


@excepted(table="a record has no key")
async def test_a_failed_job_whose_key_was_taken_or_removed_is_reported_as_recorded(
    harness: StoreHarness,
) -> None:
    taken, removed = await harness.start("a", key="taken"), await harness.start("b", key="removed")
    await harness.add("c", key="taken")
    await harness.store.admin.remove_key("removed")
    replies = await harness.store.settle([(taken, ERRORED), (removed, ERRORED)])
    messages = [(reply.state, reply.ended, reply.delay) for reply in replies if isinstance(reply, Settlement)]
    assert messages == [(State.FAILED, "failed", 0.0), (State.CANCELED, "canceled", 0.0)]
    assert [(await harness.job(lease.job_id)).state for lease in (taken, removed)] == [State.FAILED, State.CANCELED]
    again = await harness.settle(taken, ERRORED, repeat=True)
    assert isinstance(again, Settlement)
    assert again.state is State.FAILED
