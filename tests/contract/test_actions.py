"""Actions on single jobs: the table "what each call does in each state", line by line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement, with_state
from stowhand.protocols.queue_store import ActionResult, Answer
from stowhand.protocols.store import Verdict
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, FAILED, SETTLEMENTS, SNOOZED, STATES, StoreHarness

pytestmark = needs("admin")

Q, P, E, C, F, X = State.QUEUED, State.PROCESSING, State.ERRORED, State.COMPLETED, State.FAILED, State.CANCELED

TABLE = [
    ("cancel", Q, ActionResult.DONE, X),
    ("cancel", E, ActionResult.DONE, X),
    ("cancel", P, ActionResult.ASKED, P),
    ("cancel", F, ActionResult.REFUSED, F),
    ("cancel", X, ActionResult.UNCHANGED, X),
    ("cancel", C, ActionResult.REFUSED, C),
    ("remove", Q, ActionResult.DONE, None),
    ("remove", E, ActionResult.DONE, None),
    ("remove", P, ActionResult.REFUSED, P),
    ("remove", F, ActionResult.DONE, None),
    ("remove", X, ActionResult.DONE, None),
    ("remove", C, ActionResult.REFUSED, C),
    ("remove_key", Q, ActionResult.DONE, None),
    ("remove_key", E, ActionResult.DONE, None),
    ("remove_key", F, ActionResult.DONE, None),
    ("remove_key", X, ActionResult.MISSING, X),
    ("remove_key", C, ActionResult.MISSING, C),
    ("retry", Q, ActionResult.DONE, Q),
    ("retry", E, ActionResult.DONE, Q),
    ("retry", P, ActionResult.REFUSED, P),
    ("retry", F, ActionResult.DONE, Q),
    ("retry", X, ActionResult.DONE, Q),
    ("retry", C, ActionResult.REFUSED, C),
]


@pytest.mark.parametrize(("call", "state", "done", "after"), TABLE)
async def test_the_table_of_calls_and_states(
    harness: StoreHarness, call: str, state: State, done: ActionResult, after: State | None
) -> None:
    job = await harness.in_state(state, key="k")
    before = await harness.image(job.id)
    act: Callable[[object], Awaitable[Answer]] = getattr(harness.store.admin, call)
    answer = await act("k" if call == "remove_key" else job.id)
    assert answer.result is done
    assert answer.job_id == (None if (call, done) == ("remove_key", ActionResult.MISSING) else job.id)
    result = await harness.store.jobs.get(job.id)
    assert (result and result.state) == after
    if done in (ActionResult.REFUSED, ActionResult.UNCHANGED, ActionResult.MISSING):
        assert answer.reason, "people must be told why"
        assert await harness.image(job.id) == before


async def test_an_unknown_job_is_missing(harness: StoreHarness) -> None:
    for act in (harness.store.admin.retry, harness.store.admin.cancel, harness.store.admin.remove):
        answer = await act(999_999)
        assert (answer.result, answer.job_id) == (ActionResult.MISSING, 999_999)


async def test_an_unused_key_is_missing(harness: StoreHarness) -> None:
    assert (await harness.store.admin.remove_key("nobody")).result is ActionResult.MISSING


async def test_a_canceled_job_is_in_the_history_and_its_key_free(harness: StoreHarness) -> None:
    job = await harness.add(key="k")
    await harness.pass_time(5)
    await harness.store.admin.cancel(job.id)
    canceled = await harness.job(job.id)
    assert (canceled.state, canceled.finished_at, canceled.attempts) == (X, harness.now, 0)
    assert (await harness.add(key="k")).id != job.id


@pytest.mark.parametrize("how", ["retry", "snooze", "cancel"])
async def test_cancel_wins_over_every_way_back(harness: StoreHarness, how: str) -> None:
    lease = await harness.start(key="k")
    await harness.store.admin.cancel(lease.job_id)
    assert (await harness.job(lease.job_id)).cancel_requested
    message = with_state(SETTLEMENTS[how], X) if how in ("retry", "snooze") else Verdict.SETTLED
    assert await harness.settle(lease, SETTLEMENTS[how]) == message
    job = await harness.job(lease.job_id)
    assert (job.state, job.finished_at) == (X, harness.now)
    again = Verdict.ALREADY_SETTLED if message is Verdict.SETTLED else message
    assert await harness.settle(lease, SETTLEMENTS[how], repeat=True) == again
    assert (await harness.add(key="k")).id != job.id


async def test_a_canceled_step_of_a_flow_does_not_go_on(harness: StoreHarness) -> None:
    lease = await harness.start(task="demo/first", key="flow:demo:1")
    await harness.store.admin.cancel(lease.job_id)
    following = (NewJob(task="demo/second", key="flow:demo:1"), NewJob(task="other"))
    going_on = Settlement(State.COMPLETED, AttemptOutcome.OK, then=following)
    message = await harness.settle(lease, going_on)
    assert message == with_state(going_on, X)
    assert message.then == ()
    assert await harness.settle(lease, going_on, repeat=True) == message
    assert (await harness.job(lease.job_id)).state is X
    assert await harness.claim() == []


async def test_a_canceled_step_that_ends_its_flow_is_completed(harness: StoreHarness) -> None:
    lease = await harness.start(task="demo/last", key="flow:demo:1")
    await harness.store.admin.cancel(lease.job_id)
    ended = Settlement(State.COMPLETED, AttemptOutcome.OK, result="{}", then=(NewJob(task="other"),))
    assert await harness.settle(lease, ended) is Verdict.SETTLED
    assert (await harness.job(lease.job_id)).state is C
    assert len(await harness.claim()) == 1


@pytest.mark.parametrize(("settlement", "state"), [(COMPLETED, C), (FAILED, F)])
async def test_cancel_does_not_undo_an_end(harness: StoreHarness, settlement: object, state: State) -> None:
    lease = await harness.start()
    await harness.store.admin.cancel(lease.job_id)
    await harness.settle(lease, COMPLETED if state is C else FAILED)
    assert (await harness.job(lease.job_id)).state is state


async def test_asking_twice_to_cancel_is_asking_once(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.store.admin.cancel(lease.job_id)
    image = await harness.image(lease.job_id)
    answer = await harness.store.admin.cancel(lease.job_id)
    assert answer.result in (ActionResult.ASKED, ActionResult.UNCHANGED)
    assert await harness.image(lease.job_id) == image


@pytest.mark.parametrize("end", [C, F])
async def test_a_request_to_cancel_does_not_survive_the_attempt(harness: StoreHarness, end: State) -> None:
    lease = await harness.start(key="k")
    await harness.store.admin.cancel(lease.job_id)
    await harness.settle(lease, FAILED)
    await harness.store.admin.retry(lease.job_id)
    again = await harness.take()
    assert (await harness.heartbeats.beat([again], 30)).canceled == frozenset()
    await harness.settle(again, ERRORED)
    assert (await harness.job(lease.job_id)).state is E


async def test_removing_the_key_of_a_running_job_lets_it_end_once(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    answer = await harness.store.admin.remove_key("k")
    assert answer.job_id == lease.job_id
    assert answer.result in (ActionResult.DONE, ActionResult.ASKED)
    running = await harness.job(lease.job_id)
    assert (running.state, running.key) == (P, None)
    assert (await harness.store.admin.remove_key("k")).result is ActionResult.MISSING
    assert await harness.settle(lease) is Verdict.SETTLED
    assert (await harness.job(lease.job_id)).state is C


@pytest.mark.parametrize("settlement", [ERRORED, SNOOZED])
async def test_a_running_job_whose_key_was_removed_has_no_way_back(harness: StoreHarness, settlement: object) -> None:
    lease = await harness.start(key="k")
    await harness.store.admin.remove_key("k")
    await harness.settle(lease, ERRORED if settlement is ERRORED else SNOOZED)
    assert (await harness.job(lease.job_id)).state is X


async def test_retry_makes_a_failed_job_due_now_with_every_attempt_before_it(harness: StoreHarness) -> None:
    job = await harness.add(key="k", max_attempts=2, max_resets=3)
    await harness.lose(await harness.take())
    await harness.settle(await harness.take(), FAILED)
    await harness.pass_time(100)
    assert (await harness.store.admin.retry(job.id)).result is ActionResult.DONE
    back = await harness.job(job.id)
    assert (back.state, back.attempts, back.resets, back.key) == (Q, 0, 0, "k")
    assert (back.finished_at, back.max_attempts, back.max_resets) == (None, 2, 3)
    assert back.run_at <= harness.now
    assert (await harness.take()).job_id == job.id


async def test_retry_makes_an_errored_job_due_now(harness: StoreHarness) -> None:
    job = await harness.in_state(E)
    await harness.store.admin.retry(job.id)
    back = await harness.job(job.id)
    assert (back.state, back.attempts, back.run_at) == (Q, 0, harness.now)
    (claim,) = await harness.claim()
    assert (claim.lease.job_id, claim.attempts) == (job.id, 1)


async def test_retry_makes_a_future_job_due_now(harness: StoreHarness) -> None:
    job = await harness.add(delay=3600.0)
    await harness.store.admin.retry(job.id)
    assert (await harness.take()).job_id == job.id


async def test_retry_of_a_dead_killer_gives_it_another_chance(harness: StoreHarness) -> None:
    job = await harness.add(max_attempts=1)
    await harness.lose(await harness.take())
    assert (await harness.job(job.id)).state is F
    await harness.store.admin.retry(job.id)
    assert (await harness.job(job.id)).resets == 0
    assert (await harness.take()).job_id == job.id


async def test_retry_brings_a_canceled_job_back_with_its_id_and_its_key(harness: StoreHarness) -> None:
    job = await harness.in_state(X, key="k", payload='{"n": 1}', serial="q", priority=4, flags=("f",))
    assert await harness.store.admin.retry(job.id) == Answer(job.id, ActionResult.DONE)
    back = await harness.job(job.id)
    assert (back.id, back.state, back.key, back.attempts) == (job.id, Q, "k", 0)
    assert (back.payload, back.serial, back.priority, back.flags) == (job.payload, "q", 4, ("f",))
    assert back.finished_at is None
    assert (await harness.store.inspect.counts())[X] == 0
    assert (await harness.store.admin.remove_key("k")).job_id == job.id


async def test_a_canceled_job_comes_back_without_its_key_when_another_has_it(harness: StoreHarness) -> None:
    job = await harness.in_state(X, key="k")
    newer = await harness.add("newer", key="k")
    answer = await harness.store.admin.retry(job.id)
    assert answer == Answer(job.id, ActionResult.DONE, "its key belongs to another job now, so it has none")
    assert (await harness.job(job.id)).key is None
    assert (await harness.job(newer.id)).key == "k"


async def test_a_canceled_job_that_came_back_can_be_canceled_and_retried_again(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.store.admin.cancel(lease.job_id)
    await harness.settle(lease, ERRORED)
    for _ in range(2):
        assert (await harness.store.admin.retry(lease.job_id)).result is ActionResult.DONE
        assert not (await harness.job(lease.job_id)).cancel_requested
        assert (await harness.store.admin.cancel(lease.job_id)).result is ActionResult.DONE
    assert (await harness.store.inspect.counts())[X] == 1


async def test_a_retried_job_that_had_lost_its_retries_has_them_again(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.add("newer", key="k")
    await harness.settle(lease, ERRORED)
    assert (await harness.job(lease.job_id)).state is F
    await harness.store.admin.retry(lease.job_id)
    await harness.settle(await harness.take(tasks=("t",)), ERRORED)
    assert (await harness.job(lease.job_id)).state is E


@pytest.mark.parametrize("state", STATES)
async def test_remove_leaves_other_jobs_alone(harness: StoreHarness, state: State) -> None:
    bystander = await harness.in_state(state)
    job = await harness.add("other")
    await harness.store.admin.remove(job.id)
    assert await harness.store.jobs.get(job.id) is None
    assert await harness.job(bystander.id) == bystander


async def test_a_number_that_no_job_can_have_is_no_jobs_and_what_is_no_number_is_refused(harness: StoreHarness) -> None:
    job = await harness.add()
    acts: list[Any] = [
        harness.store.jobs.get,
        harness.store.admin.retry,
        harness.store.admin.cancel,
        harness.store.admin.remove,
    ]
    for act in acts:
        for nobody in (0, -1, 2**63, -(2**70)):
            result = await act(nobody)
            assert result is None or (result.job_id, result.result) == (nobody, ActionResult.MISSING)
        for wrong in ("1", True, 1.0, None):
            with pytest.raises(InvalidJob, match="job_id"):
                await act(wrong)
    assert await harness.job(job.id) == job


async def test_a_key_that_no_job_can_bear_is_no_jobs_and_what_is_no_text_is_refused(harness: StoreHarness) -> None:
    job = await harness.add(key="k")
    remove: Any = harness.store.admin.remove_key
    for nobody in ("", "k\x00", "k\udc80", "x" * 600):
        assert (await remove(nobody)).result is ActionResult.MISSING
    for wrong in (None, 1, b"k"):
        with pytest.raises(InvalidJob, match="key"):
            await remove(wrong)
    assert await harness.job(job.id) == job


async def test_many_are_acted_on_in_one_call_each_as_alone(harness: StoreHarness) -> None:
    for verb in ("cancel", "remove", "retry"):
        alone = [(await harness.in_state(state)).id for state in STATES]
        together = [(await harness.in_state(state)).id for state in STATES]
        one_by_one = [await getattr(harness.store.admin, verb)(job_id) for job_id in alone]
        answers = await getattr(harness.store.admin, f"{verb}_jobs")([*reversed(together), 987_654_321, together[0]])
        assert [answer.job_id for answer in answers] == [*together, 987_654_321]
        assert [(answer.result, answer.reason) for answer in answers[:-1]] == [
            (answer.result, answer.reason) for answer in one_by_one
        ]
        assert answers[-1].result is ActionResult.MISSING
        for one, other in zip(alone, together, strict=True):
            left, right = await harness.store.jobs.get(one), await harness.store.jobs.get(other)
            assert (left and left.state) == (right and right.state)
    assert list(await harness.store.admin.cancel_jobs([])) == []
