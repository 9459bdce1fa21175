"""Settling: what a store writes for each settlement, and that one never sinks another."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.operator import PURGE_TASK
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.store import RefusedSettlement, Verdict
from tests.contract.backends import payload_of
from tests.contract.needs import excepted, needs
from tests.contract.store_harness import CANCELED, ERRORED, FAILED, SETTLEMENTS, SNOOZED, StoreHarness


@needs("keys")
async def test_completed_goes_to_the_history_with_its_result(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.pass_time(5)
    assert (
        await harness.settle(lease, Settlement(State.COMPLETED, AttemptOutcome.OK, result='{"sum": 3}'))
        is Verdict.SETTLED
    )
    job = await harness.job(lease.job_id)
    assert (job.state, job.finished_at, job.worker, job.attempts) == (State.COMPLETED, harness.now, None, 1)
    assert job.result == {"sum": 3}
    assert [listed.id for listed in await harness.store.inspect.list(JobFilter())] == []


@needs("messages")
async def test_a_completed_job_keeps_the_error_of_an_earlier_attempt(harness: StoreHarness) -> None:
    job = await harness.in_state(State.ERRORED)
    await harness.pass_time(60)
    await harness.settle(await harness.take())
    done = await harness.job(job.id)
    assert (done.state, done.last_error, done.attempts) == (State.COMPLETED, "it failed", 2)


@needs("keys")
async def test_completing_frees_the_key(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.settle(lease)
    following = await harness.add(key="k")
    assert following.id != lease.job_id
    assert following.state is State.QUEUED


@needs("keys")
async def test_errored_waits_for_its_delay_by_the_stores_clock(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.pass_time(5)
    assert await harness.settle(lease, ERRORED) is Verdict.SETTLED
    job = await harness.job(lease.job_id)
    assert (job.state, job.attempts, job.resets, job.last_error) == (State.ERRORED, 1, 0, "it failed")
    assert (job.run_at, job.worker, job.finished_at) == (harness.now + timedelta(seconds=60), None, None)
    assert job.key == "k"


@pytest.mark.parametrize("delay", [0.0, 0.25, 22026.465795])
@excepted(redis="to the millisecond")
async def test_a_delay_is_kept_to_the_microsecond(harness: StoreHarness, delay: float) -> None:
    lease = await harness.start()
    await harness.settle(lease, Settlement(State.ERRORED, AttemptOutcome.RETRY, delay=delay, error="x"))
    job = await harness.job(lease.job_id)
    assert abs((job.run_at - harness.now).total_seconds() - delay) < 0.000_002


@needs("keys")
async def test_failed_stays_among_the_living_with_its_key(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.pass_time(5)
    assert await harness.settle(lease, FAILED) is Verdict.SETTLED
    (job,) = await harness.store.inspect.list(JobFilter())
    assert (job.id, job.state, job.last_error, job.key) == (lease.job_id, State.FAILED, "it is broken", "k")
    assert (job.finished_at, job.worker, job.attempts, job.resets) == (harness.now, None, 1, 0)


@needs("keys")
async def test_a_snooze_does_not_count_the_attempt(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    assert await harness.settle(lease, SNOOZED) is Verdict.SETTLED
    job = await harness.job(lease.job_id)
    assert (job.state, job.attempts, job.last_error, job.key) == (State.QUEUED, 0, None, "k")
    assert (job.run_at, job.worker) == (harness.now + timedelta(seconds=60), None)


@needs("keys")
async def test_canceled_goes_to_the_history_with_its_reason_and_frees_the_key(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    assert await harness.settle(lease, CANCELED) is Verdict.SETTLED
    job = await harness.job(lease.job_id)
    assert (job.state, job.last_error, job.finished_at) == (State.CANCELED, "not wanted", harness.now)
    assert (await harness.add(key="k")).id != job.id


@pytest.mark.parametrize("how", SETTLEMENTS)
@needs("forgiving")
async def test_every_settlement_sets_the_resets_to_0(harness: StoreHarness, how: str) -> None:
    job = await harness.make_suspect(times=1)
    lease = await harness.take()
    assert (await harness.job(job.id)).resets == 1
    await harness.settle(lease, SETTLEMENTS[how])
    assert (await harness.job(job.id)).resets == 0


@needs("forgiving")
async def test_completing_several_jobs_sets_their_resets_to_0(harness: StoreHarness) -> None:
    jobs = [await harness.make_suspect(task=task, times=1) for task in ("a", "b")]
    claims = await harness.claim(2)
    await harness.store.settle([(claim.lease, COMPLETED) for claim in claims])
    assert [(await harness.job(job.id)).resets for job in jobs] == [0, 0]


LEFT = {
    "errored": Settlement(State.ERRORED, AttemptOutcome.RETRY, delay=60.0, error="some failed", payload='[{"n": 2}]'),
    "failed": Settlement(State.FAILED, AttemptOutcome.FAILED, error="some failed", payload='[{"n": 2}]'),
}


@pytest.mark.parametrize("how", LEFT)
@needs("keys")
async def test_what_is_left_of_a_batch_takes_the_payloads_place(harness: StoreHarness, how: str) -> None:
    lease = await harness.start(payload='[{"n": 1}, {"n": 2}]', key="k", serial="q")
    other = await harness.start("other", payload="[1]")
    verdicts = await harness.store.settle([(other, ERRORED), (lease, LEFT[how])])
    assert list(verdicts) == [Verdict.SETTLED] * 2
    job = await harness.job(lease.job_id)
    assert (job.state, job.last_error, payload_of(job.payload_text)) == (how, "some failed", [{"n": 2}])
    assert (job.key, job.serial, job.revision) == ("k", "q", 0)
    assert payload_of((await harness.job(other.job_id)).payload_text) == [1]


@needs("keys")
async def test_what_is_left_of_a_batch_is_what_the_next_attempt_gets(harness: StoreHarness) -> None:
    lease = await harness.start(payload="[1, 2]", key="k")
    await harness.settle(lease, LEFT["errored"])
    await harness.add(key="k", payload="[3]")
    (claim,) = await harness.claim()
    assert payload_of(claim.record.payload_text) == [{"n": 2}, 3]


@needs("retry")
async def test_what_is_left_of_a_batch_that_was_asked_to_cancel_is_what_comes_back(harness: StoreHarness) -> None:
    lease = await harness.start(payload="[1, 2]")
    await harness.store.admin.cancel(lease.job_id)
    await harness.settle(lease, LEFT["errored"])
    assert (await harness.job(lease.job_id)).state is State.CANCELED
    await harness.store.admin.retry(lease.job_id)
    assert payload_of((await harness.job(lease.job_id)).payload_text) == [{"n": 2}]


@pytest.mark.parametrize("state", [State.COMPLETED, State.CANCELED, State.QUEUED])
@excepted(
    redis="such a settlement is refused: that job fails",
    http="no worker sends such endings, and the server refuses them",
)
async def test_no_other_settlement_changes_the_payload(harness: StoreHarness, state: State) -> None:
    lease = await harness.start(payload="[1, 2]")
    await harness.settle(lease, Settlement(state, AttemptOutcome.OK, payload="[]"))
    job = await harness.job(lease.job_id)
    assert (job.state, payload_of(job.payload_text)) == (state, [1, 2])


async def test_a_stale_lease_changes_no_payload(harness: StoreHarness) -> None:
    lease = await harness.start(payload="[1, 2]")
    await harness.lose(lease)
    assert await harness.settle(lease, LEFT["errored"]) is Verdict.LOST
    assert payload_of((await harness.job(lease.job_id)).payload_text) == [1, 2]


@pytest.mark.parametrize("payload", ['[{"n"', "[1, NaN]", '["\\ud800"]', f'["{"x" * 1024 * 1024}"]'])
@needs("rests")
@excepted(table="its payload is its own")
async def test_a_rest_that_cannot_be_stored_is_unwritten_alone_and_changes_nothing(
    harness: StoreHarness, payload: str
) -> None:
    bad, good = await harness.start(payload="[1, 2]"), await harness.start("other")
    rest = Settlement(State.ERRORED, AttemptOutcome.RETRY, error="some failed", payload=payload)
    unwritten, settled = await harness.store.settle([(bad, rest), (good, ERRORED)])
    assert isinstance(unwritten, RefusedSettlement)
    assert settled is Verdict.SETTLED
    job = await harness.job(bad.job_id)
    assert (job.state, payload_of(job.payload_text)) == (State.PROCESSING, [1, 2])
    assert (await harness.job(good.job_id)).state is State.ERRORED
    assert await harness.settle(bad, ERRORED) is Verdict.SETTLED


async def test_an_empty_batch_settles_nothing(harness: StoreHarness) -> None:
    assert list(await harness.store.settle([])) == []


@excepted(redis="the mark of a settlement is of the whole call")
async def test_verdicts_come_in_the_order_of_the_batch(harness: StoreHarness) -> None:
    leases = [await harness.start(f"t{number}") for number in range(6)]
    await harness.settle(leases[1])
    await harness.lose(leases[4])
    batch = [(lease, ERRORED if lease.job_id % 2 else COMPLETED) for lease in reversed(leases)]
    verdicts = await harness.store.settle(batch)
    expected = [Verdict.SETTLED] * 6
    expected[1], expected[4] = Verdict.LOST, Verdict.ALREADY_SETTLED
    assert list(verdicts) == expected


async def test_a_batch_may_mix_every_outcome(harness: StoreHarness) -> None:
    leases = [await harness.start(f"t{number}") for number in range(5)]
    await harness.store.settle(list(zip(leases, SETTLEMENTS.values(), strict=True)))
    states = [(await harness.job(lease.job_id)).state for lease in leases]
    assert states == [State.COMPLETED, State.ERRORED, State.FAILED, State.QUEUED, State.CANCELED]


async def test_a_large_batch_is_settled_whole(harness: StoreHarness) -> None:
    await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(700))
    claims = [claim for _ in range(7) for claim in await harness.claim(100)]  # a lent store gives no more in one claim
    verdicts = await harness.store.settle([(claim.lease, COMPLETED) for claim in claims])
    assert list(verdicts) == [Verdict.SETTLED] * 700
    assert (await harness.store.inspect.counts())[State.COMPLETED] == 700


@needs("follow_ups")
async def test_what_follows_is_enqueued_with_the_settlement(harness: StoreHarness) -> None:
    lease = await harness.start()
    then = (NewJob(task="next", payload='{"n": 1}', serial="q"), NewJob(task="later", delay=60.0, key="k"))
    await harness.settle(lease, Settlement(State.COMPLETED, AttemptOutcome.OK, then=then))
    first, second = await harness.store.inspect.list(JobFilter())
    assert (first.task, payload_of(first.payload_text), first.serial, first.run_at) == (
        "next",
        {"n": 1},
        "q",
        harness.now,
    )
    assert (second.task, second.key, second.run_at) == ("later", "k", harness.now + timedelta(seconds=60))


@needs("keys")
async def test_what_follows_obeys_the_rules_of_keys(harness: StoreHarness) -> None:
    waiting = await harness.add("old", key="k", run_at=harness.now + timedelta(hours=1))
    lease = await harness.start()
    await harness.settle(lease, Settlement(State.COMPLETED, AttemptOutcome.OK, then=(NewJob(task="new", key="k"),)))
    (job,) = await harness.store.inspect.list(JobFilter())
    assert (job.id, job.task, job.revision) == (waiting.id, "new", 1)


async def test_nothing_follows_a_settlement_that_was_not_accepted(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.lose(lease)
    then = (NewJob(task="next"),)
    assert await harness.settle(lease, Settlement(State.COMPLETED, AttemptOutcome.OK, then=then)) is Verdict.LOST
    assert [job.task for job in await harness.everything()] == ["t"]


@needs("follow_ups")
async def test_a_repeated_settlement_enqueues_what_follows_once(harness: StoreHarness) -> None:
    lease = await harness.start()
    what = Settlement(State.COMPLETED, AttemptOutcome.OK, then=(NewJob(task="next"),))
    await harness.settle(lease, what)
    assert await harness.settle(lease, what, repeat=True) is Verdict.ALREADY_SETTLED
    assert [job.task for job in await harness.everything()] == ["t", "next"]


UNWRITABLE = {
    "follows without a legal attempt": Settlement(
        State.COMPLETED, AttemptOutcome.OK, result="1", then=(NewJob(task="fine"), NewJob(task="next", max_attempts=0))
    ),
    "follows with an endless task name": Settlement(State.COMPLETED, AttemptOutcome.OK, then=(NewJob(task="x" * 200),)),
    "follows with a job of a built-in task": Settlement(
        State.COMPLETED, AttemptOutcome.OK, then=(NewJob(task=PURGE_TASK),)
    ),
    "follows with an endless key": Settlement(
        State.COMPLETED, AttemptOutcome.OK, then=(NewJob(task="x", key="k" * 600),)
    ),
    "a lone surrogate in the result": Settlement(State.COMPLETED, AttemptOutcome.OK, result='"\ud800"'),
}


@pytest.mark.parametrize("why", UNWRITABLE)
@needs("moments")
@excepted(table="no result is kept")
async def test_a_settlement_that_cannot_be_written_is_unwritten_alone(harness: StoreHarness, why: str) -> None:
    before, bad, after = [await harness.start(f"t{number}") for number in range(3)]
    replies = await harness.store.settle([(before, COMPLETED), (bad, UNWRITABLE[why]), (after, ERRORED)])
    assert [replies[0], replies[2]] == [Verdict.SETTLED] * 2
    assert isinstance(replies[1], RefusedSettlement)
    job = await harness.job(bad.job_id)
    assert (job.state, job.result_text) == (State.PROCESSING, None)
    assert (await harness.job(before.job_id)).state is State.COMPLETED
    assert (await harness.job(after.job_id)).state is State.ERRORED
    assert len(await harness.everything()) == 3
    assert await harness.settle(bad, ERRORED) is Verdict.SETTLED


@needs("history")
@excepted(table="records stay")
async def test_without_a_history_what_completed_is_gone(forgetful_harness: StoreHarness) -> None:
    harness = forgetful_harness
    lease = await harness.start(key="k")
    await harness.settle(lease)
    assert await harness.store.jobs.get(lease.job_id) is None
    assert (await harness.add(key="k")).id != lease.job_id


@needs("history")
@excepted(table="records stay")
async def test_without_a_history_what_was_canceled_is_gone(forgetful_harness: StoreHarness) -> None:
    harness = forgetful_harness
    lease = await harness.start()
    await harness.settle(lease, CANCELED)
    assert await harness.store.jobs.get(lease.job_id) is None
    waiting = await harness.add()
    await harness.store.admin.cancel(waiting.id)
    assert await harness.store.jobs.get(waiting.id) is None


@needs("follow_ups")
async def test_without_a_history_what_follows_is_enqueued_all_the_same(forgetful_harness: StoreHarness) -> None:
    harness = forgetful_harness
    lease = await harness.start()
    await harness.settle(lease, Settlement(State.COMPLETED, AttemptOutcome.OK, then=(NewJob(task="next"),)))
    assert [job.task for job in await harness.everything()] == ["next"]


async def test_attempts_never_fall_below_nought(harness: StoreHarness) -> None:
    lease = await harness.start()
    for _ in range(3):
        await harness.settle(lease, SNOOZED)
        assert (await harness.job(lease.job_id)).attempts == 0
        await harness.pass_time(60)
        lease = await harness.take()
