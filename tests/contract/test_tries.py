"""What an attempt leaves that did not complete: one entry, of which a job's last ten are kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from stowhand.jobs.failed_attempts import BY_HAND, MAX_KEPT_ATTEMPTS, TIMED_OUT, WORKER_DIED, AttemptEnd, FailedAttempt
from stowhand.jobs.job import KeyMode, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, Complete, Fail, Retry
from stowhand.protocols.operator import Ages
from stowhand.protocols.queue_store import MAX_EXAMINED_FAILURES, Reschedule
from stowhand.protocols.store import SECONDS_PER_DAY, Verdict
from tests.contract.needs import needs
from tests.contract.store_harness import CANCELED, ERRORED, SNOOZED, StoreHarness, judged

pytestmark = needs("tries")

ERROR = "ValueError: no\n" + "".join(f'  File "app.py", line {n}, in step_{n}\n' for n in range(200)) + "  the end"


async def tries_of(harness: StoreHarness, job_id: int) -> Sequence[FailedAttempt]:
    return await harness.store.jobs.tries(job_id)


async def fail_once(harness: StoreHarness, lease: Lease, error: str = "it failed") -> None:
    assert await harness.settle(lease, judged(Retry(error, 0.0, error_class="ValueError"))) is Verdict.SETTLED


async def test_an_error_leaves_what_is_known_of_its_attempt(harness: StoreHarness) -> None:
    lease = await harness.start()
    began = harness.now
    await harness.pass_time(5)
    await fail_once(harness, lease, "ValueError: no")
    (entry,) = await tries_of(harness, lease.job_id)
    assert entry == FailedAttempt(
        number=1,
        round=1,
        worker="w1",
        started_at=began,
        ended_at=began + timedelta(seconds=5),
        outcome=AttemptEnd.ERROR,
        error_class="ValueError",
        error="ValueError: no",
    )


async def test_a_long_error_is_cut_to_its_first_line_and_its_end(harness: StoreHarness) -> None:
    lease = await harness.start()
    await fail_once(harness, lease, ERROR)
    other = await harness.start("other")
    await fail_once(harness, other, "é" * 5000)
    (entry,), (wide,) = await tries_of(harness, lease.job_id), await tries_of(harness, other.job_id)
    assert entry.error is not None
    assert wide.error is not None
    assert entry.error.startswith("ValueError: no\n[...]\n")
    assert entry.error.endswith("in step_199\n  the end")
    assert max(len(entry.error.encode()), len(wide.error.encode())) <= 1024
    assert (await harness.job(lease.job_id)).last_error == ERROR


async def test_each_failed_attempt_has_its_outcome(harness: StoreHarness) -> None:
    timed_out, failed, canceled = await harness.start("a"), await harness.start("b"), await harness.start("c")
    await harness.settle(timed_out, judged(Retry("timed out", 0.0, error_class=TIMED_OUT)))
    await harness.settle(failed, judged(Fail("it is broken")))
    await harness.settle(canceled, CANCELED)
    ends = [await tries_of(harness, lease.job_id) for lease in (timed_out, failed, canceled)]
    assert [(one.outcome, one.error_class, one.error) for (one,) in ends] == [
        (AttemptEnd.TIMEOUT, TIMED_OUT, "timed out"),
        (AttemptEnd.ERROR, None, "it is broken"),
        (AttemptEnd.CANCELED, None, "not wanted"),
    ]


async def test_completed_snoozed_and_released_attempts_leave_no_entry(harness: StoreHarness) -> None:
    done, kept, snoozed, released = [await harness.start(task) for task in "abcd"]
    await harness.settle(done, COMPLETED)
    await harness.settle(kept, judged(Complete(), 1))
    await harness.settle(snoozed, SNOOZED)
    await harness.heartbeats.release([released])
    for lease in (done, kept, snoozed, released):
        assert not await tries_of(harness, lease.job_id)


async def test_a_lost_settlement_leaves_none_and_a_repeat_no_second_one(harness: StoreHarness) -> None:
    lease = await harness.start()
    await fail_once(harness, lease)
    assert await harness.settle(lease, ERRORED, repeat=True) is Verdict.ALREADY_SETTLED
    await harness.take()
    assert await harness.settle(lease, ERRORED) is Verdict.LOST
    assert len(await tries_of(harness, lease.job_id)) == 1


async def test_each_reset_leaves_an_entry(harness: StoreHarness) -> None:
    job = await harness.add(max_resets=1)
    for _ in range(2):
        await harness.lose(await harness.take())
    first, last = await tries_of(harness, job.id)
    assert [(one.number, one.outcome, one.error_class, one.worker) for one in (first, last)] == [
        (1, AttemptEnd.RESET, WORKER_DIED, "w1")
    ] * 2
    assert (first.error, last.error) == (None, "its worker died 2 times while running it")


async def test_the_last_ten_are_kept_in_their_order(harness: StoreHarness) -> None:
    job = await harness.add()
    for attempt in range(MAX_KEPT_ATTEMPTS + 3):
        await fail_once(harness, await harness.take(), f"error {attempt}")
    result = await tries_of(harness, job.id)
    assert [one.number for one in result] == list(range(4, MAX_KEPT_ATTEMPTS + 4))
    assert result[-1].error == f"error {MAX_KEPT_ATTEMPTS + 2}"


async def test_entries_stay_when_the_job_completes(harness: StoreHarness) -> None:
    lease = await harness.start()
    await fail_once(harness, lease)
    await harness.settle(await harness.take(worker="w2"))
    assert [one.worker for one in await tries_of(harness, lease.job_id)] == ["w1"]
    assert (await harness.job(lease.job_id)).last_worker == "w2"


@needs("admin")
@pytest.mark.parametrize("how", ["retry", "retry_failed"])
async def test_a_retry_by_hand_keeps_them_under_a_new_round(harness: StoreHarness, how: str) -> None:
    job = await harness.in_state(State.FAILED)
    for _ in range(2):  # the second finds no entry of the round that the first began
        await (harness.store.admin.retry(job.id) if how == "retry" else harness.store.admin.retry_failed([job.id]))
    await fail_once(harness, await harness.take())
    assert [(one.round, one.number) for one in await tries_of(harness, job.id)] == [(1, 1), (2, 1)]


async def test_a_canceled_job_comes_back_with_its_entries(harness: StoreHarness) -> None:
    job = await harness.in_state(State.CANCELED)
    await harness.store.admin.retry(job.id)
    assert (await harness.job(job.id)).last_worker == "w1"
    await fail_once(harness, await harness.take())
    assert [(one.round, one.outcome) for one in await tries_of(harness, job.id)] == [
        (1, AttemptEnd.CANCELED),
        (2, AttemptEnd.ERROR),
    ]


@pytest.mark.parametrize("state", [State.FAILED, State.ERRORED])
async def test_a_newer_job_with_its_key_keeps_them_under_a_new_round(harness: StoreHarness, state: State) -> None:
    job = await harness.in_state(state, key="k")
    assert (await harness.add(key="k", key_mode=KeyMode.REPLACE)).id == job.id
    await fail_once(harness, await harness.take())
    assert [one.round for one in await tries_of(harness, job.id)] == [1, 2]


async def test_a_key_that_is_replaced_before_any_attempt_begins_no_round(harness: StoreHarness) -> None:
    await harness.add(key="k")
    job = await harness.add(key="k")
    await fail_once(harness, await harness.take())
    assert [one.round for one in await tries_of(harness, job.id)] == [1]


async def test_jobs_that_are_failed_by_hand_leave_one(harness: StoreHarness) -> None:
    waiting, held = await harness.add("waiting"), await harness.start("held", max_attempts=3)
    tired = await harness.in_state(State.ERRORED, task="tired")
    await harness.pass_time(100)
    await harness.store.admin.permanently_fail_jobs([waiting.id, held.job_id], "enough")
    await harness.store.admin.reschedule_jobs([tired.id], Reschedule(max_attempts=1))
    (of_waiting,), (of_held,) = await tries_of(harness, waiting.id), await tries_of(harness, held.job_id)
    assert (of_waiting.number, of_waiting.worker, of_waiting.started_at) == (0, None, None)
    assert (of_held.number, of_held.worker, of_held.error) == (1, "w1", "enough")
    of_tired = (await tries_of(harness, tired.id))[-1]
    for one in (of_waiting, of_held, of_tired):
        assert (one.outcome, one.error_class, one.ended_at) == (AttemptEnd.BY_HAND, BY_HAND, harness.now)


async def test_jobs_unlocked_by_hand_leave_an_entry(harness: StoreHarness) -> None:
    unlocked, rescheduled = await harness.start("a"), await harness.start("b", max_attempts=3)
    await harness.store.admin.force_unlock_workers(["w1"])
    again = await harness.take(tasks=("b",))
    await harness.pass_time(100)
    await harness.store.admin.reschedule_jobs([again.job_id], Reschedule(priority=1))
    assert [one.outcome for one in await tries_of(harness, unlocked.job_id)] == [AttemptEnd.RESET]
    assert [one.outcome for one in await tries_of(harness, rescheduled.job_id)] == [AttemptEnd.RESET] * 2


async def test_a_job_that_is_removed_takes_them_along(harness: StoreHarness) -> None:
    by_id, by_key = await harness.in_state(State.FAILED), await harness.in_state(State.FAILED, key="k")
    canceled, old = await harness.in_state(State.CANCELED), await harness.in_state(State.FAILED)
    await harness.store.admin.remove(by_id.id)
    await harness.store.admin.remove_key("k")
    await harness.pass_time(100)
    await harness.store.operate.purge(Ages(failed=50, canceled=50))
    for job in (by_id, by_key, canceled, old):
        assert not await tries_of(harness, job.id)


async def test_a_job_that_was_never_claimed_keeps_its_failed_attempts(harness: StoreHarness) -> None:
    job = await harness.add()
    await harness.store.admin.permanently_fail_jobs([job.id])
    await harness.store.admin.retry(job.id)
    await harness.store.admin.remove(job.id)
    assert not await tries_of(harness, job.id)


async def test_they_are_pruned_with_the_history(harness: StoreHarness) -> None:
    failed = await harness.in_state(State.FAILED)
    gone = await harness.in_state(State.CANCELED)
    await harness.pass_time(3 * SECONDS_PER_DAY)
    await harness.heartbeats.maintain()
    assert await harness.store.jobs.get(gone.id) is None
    assert not await tries_of(harness, gone.id)
    assert len(await tries_of(harness, failed.id)) == 1


async def test_they_are_pruned_where_no_history_is_kept(forgetful_harness: StoreHarness) -> None:
    async with forgetful_harness as harness:
        lease = await harness.start()
        await fail_once(harness, lease)
        await harness.settle(await harness.take())
        canceled = await harness.start("canceled")  # at its first attempt
        await harness.settle(canceled, CANCELED)
        await harness.heartbeats.maintain()
        for one in (lease, canceled):
            assert not await tries_of(harness, one.job_id)


async def test_the_last_worker_outlives_retry_and_end(harness: StoreHarness) -> None:
    job = await harness.add()
    assert job.last_worker is None
    (claim,) = await harness.claim(worker="w1")
    assert claim.record.last_worker == "w1"
    await harness.settle(claim.lease, ERRORED)
    await harness.pass_time(100)
    waiting = await harness.job(job.id)
    assert (waiting.worker, waiting.last_worker) == (None, "w1")
    again = await harness.take(worker="w2")
    running = await harness.job(job.id)
    assert (running.worker, running.last_worker) == ("w2", "w2")
    await harness.settle(again, judged(Fail("it is broken")))
    failed = await harness.job(job.id)
    assert (failed.worker, failed.last_worker) == (None, "w2")


@needs("inspect")
async def test_failures_are_grouped_by_task_and_class(harness: StoreHarness) -> None:
    failed = []
    for task, error_class in (("a", "ValueError"), ("a", "ValueError"), ("a", None), ("b", "ValueError")):
        lease = await harness.start(task)
        await harness.settle(lease, judged(Retry("an earlier one", 0.0, error_class="OSError")))
        await harness.settle(await harness.take(tasks=(task,)), judged(Fail("no\nmore", error_class=error_class)))
        await harness.pass_time(1)
        failed.append(lease.job_id)
    by_hand = await harness.add("a")
    await harness.in_state(State.ERRORED, task="c")
    await harness.store.admin.permanently_fail_jobs([by_hand.id], "enough")
    result = await harness.store.inspect.failures()
    assert [(one.task, one.error_class, one.jobs, one.latest, one.error) for one in result] == [
        ("a", "ValueError", 2, failed[1], "no\nmore"),
        ("a", BY_HAND, 1, by_hand.id, "enough"),
        ("b", "ValueError", 1, failed[3], "no\nmore"),
        ("a", None, 1, failed[2], "no\nmore"),
    ]
    assert result[0].latest_at == harness.now - timedelta(seconds=3)
    assert [one.since for one in result] == [harness.now - timedelta(seconds=ago) for ago in (4, 0, 1, 2)]
    assert not any(one.is_cut for one in result)


@needs("inspect")
async def test_older_failures_are_left_out_and_marked_as_cut(harness: StoreHarness) -> None:
    old = await harness.add("old")
    await harness.store.admin.permanently_fail_jobs([old.id])
    await harness.pass_time(1)
    job = await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(MAX_EXAMINED_FAILURES))
    for begin in range(0, MAX_EXAMINED_FAILURES, 2000):
        await harness.store.admin.permanently_fail_jobs(job[begin : begin + 2000])
    (found,) = await harness.store.inspect.failures()
    assert (found.task, found.jobs, found.since, found.is_cut) == ("t", MAX_EXAMINED_FAILURES, harness.now, True)


@needs("admin")
@needs("keys")
@pytest.mark.parametrize("by_numbers", [False, True])
async def test_a_repeat_of_the_key_of_one_that_was_failed_by_hand_and_revived_is_another_round(
    harness: StoreHarness, by_numbers: bool
) -> None:
    """No worker ever held it, so nothing but its entry says that it was tried."""
    admin, job = harness.store.admin, await harness.add(key="k")
    if by_numbers:
        await admin.reschedule_jobs([job.id], Reschedule(attempts=25))
    else:
        await admin.permanently_fail_jobs([job.id])
    await admin.reschedule_jobs([job.id], Reschedule(attempts=0))
    await harness.add(key="k")
    await admin.permanently_fail_jobs([job.id])
    assert [one.round for one in await harness.store.jobs.tries(job.id)] == [1, 2]
