"""Acting on many jobs at once: the table "what each call does in each state", its last three lines, cell by cell.

A live lease is never touched. A lease that has expired is: its holder is fenced out, and its queue is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Retry, Settlement
from stowhand.protocols.operating import PURGE
from stowhand.protocols.queue_store import Reschedule
from stowhand.protocols.store import Verdict
from tests.contract.bench import ERRORED, FAILED, SETTLEMENTS, SNOOZED, STATES, Bench, judged
from tests.contract.places import payload_of

Q, P, E, C, F, X = State.QUEUED, State.PROCESSING, State.ERRORED, State.COMPLETED, State.FAILED, State.CANCELED
ATTEMPTED = Reschedule(attempts=0)
POSTPONED = Reschedule(run_at=datetime(2031, 1, 1, tzinfo=UTC))

TABLE = [
    ("complete", Q, C),
    ("complete", E, C),
    ("complete", F, C),
    ("complete", P, None),
    ("complete", X, None),
    ("complete", C, None),
    ("fail", Q, F),
    ("fail", E, F),
    ("fail", F, F),
    ("fail", P, None),
    ("fail", X, None),
    ("fail", C, None),
    ("postpone", Q, Q),
    ("postpone", E, E),
    ("postpone", F, F),
    ("postpone", P, None),
    ("postpone", X, None),
    ("postpone", C, None),
    ("give attempts", Q, Q),
    ("give attempts", E, E),
    ("give attempts", F, Q),
    ("give attempts", P, None),
    ("give attempts", X, None),
    ("give attempts", C, None),
    ("unlock", Q, None),
    ("unlock", E, None),
    ("unlock", F, None),
    ("unlock", P, Q),
    ("unlock", X, None),
    ("unlock", C, None),
]


async def call(bench: Bench, name: str, *ids: int) -> Sequence[Job]:
    """One of the four calls, by what it does."""
    match name:
        case "complete":
            return await bench.store.complete_jobs(ids)
        case "fail":
            return await bench.store.permanently_fail_jobs(ids)
        case "postpone":
            return await bench.store.reschedule_jobs(ids, POSTPONED)
        case "give attempts":
            return await bench.store.reschedule_jobs(ids, ATTEMPTED)
        case _:
            return await bench.store.force_unlock_workers(["w1"])


@pytest.mark.parametrize(("name", "state", "after"), TABLE)
async def test_the_table_of_calls_and_states(bench: Bench, name: str, state: State, after: State | None) -> None:
    job = await bench.in_state(state, key="k")
    before = await bench.image(job.id)
    changed = await call(bench, name, job.id)
    if after is None:
        assert list(changed) == []
        assert await bench.image(job.id) == before, "skipped is untouched"
    else:
        assert [(one.id, one.state) for one in changed] == [(job.id, after)]
        assert await bench.job(job.id) == changed[0]


@pytest.mark.parametrize("name", ["complete", "fail", "postpone", "give attempts"])
async def test_the_changed_jobs_come_in_id_order_whatever_else_was_named(bench: Bench, name: str) -> None:
    waiting = [await bench.add(f"t{number}") for number in range(5)]
    running, canceled = await bench.in_state(P), await bench.in_state(X)
    bystander = await bench.add("bystander")
    ids = [job.id for job in waiting]
    asked = [*reversed(ids), running.id, canceled.id, 999_999, -1, 2**62, *ids]
    assert [job.id for job in await call(bench, name, *asked)] == ids
    assert await bench.job(bystander.id) == bystander


@pytest.mark.parametrize("name", ["complete", "fail", "postpone"])
async def test_naming_no_job_changes_none(bench: Bench, name: str) -> None:
    job = await bench.add()
    assert list(await call(bench, name)) == []
    assert await bench.job(job.id) == job


@pytest.mark.parametrize("name", ["complete", "fail", "postpone", "unlock"])
async def test_many_jobs_are_changed_by_one_call(bench: Bench, name: str) -> None:
    ids = await bench.store.enqueue_many(NewJob(task="t", queue=f"q{n}" if n % 9 == 0 else None) for n in range(1100))
    if name == "unlock":
        await bench.claim(1100)
    assert [job.id for job in await call(bench, name, *ids)] == ids


async def test_ids_that_are_no_whole_numbers_are_refused(bench: Bench) -> None:
    """A lone text above all: each of its letters might be the number of a job."""
    jobs = [await bench.add(), await bench.add()]
    wrong: list[Any] = ["12", b"12", 1, None, ["1"], [True], [1.0], [None]]
    for ids in wrong:
        with pytest.raises(InvalidJob, match="job_ids"):
            await bench.store.complete_jobs(ids)
        with pytest.raises(InvalidJob, match="job_ids"):
            await bench.store.permanently_fail_jobs(ids)
        with pytest.raises(InvalidJob, match="job_ids"):
            await bench.store.reschedule_jobs(ids, POSTPONED)
    assert [await bench.job(job.id) for job in jobs] == jobs


async def test_an_id_that_no_job_can_have_names_none(bench: Bench) -> None:
    job = await bench.add()
    ids = [2**63, -(2**70), 0, job.id, 2**63 - 1]
    assert [one.id for one in await bench.store.permanently_fail_jobs(ids)] == [job.id]
    assert [one.id for one in await bench.store.reschedule_jobs(ids, ATTEMPTED)] == [job.id]
    assert [one.id for one in await bench.store.complete_jobs(ids)] == [job.id]


async def test_workers_that_are_no_list_of_names_are_refused(bench: Bench) -> None:
    await bench.add()
    lease = await bench.take(worker="w")
    wrong: list[Any] = ["w1", b"w1", None, 1, [1], [None]]
    for workers in wrong:
        with pytest.raises(InvalidJob, match="workers"):
            await bench.store.force_unlock_workers(workers)
    assert await bench.settle(lease) is Verdict.SETTLED


async def test_a_name_that_no_worker_has_unlocks_nothing(bench: Bench) -> None:
    lease = await bench.start()
    for name in ("", "w\x00", "w\udc80", '{"w1"}', "W1", "w1 ", "%"):
        assert list(await bench.store.force_unlock_workers([name])) == []
    assert await bench.settle(lease) is Verdict.SETTLED


async def test_a_reason_that_is_no_text_and_details_of_another_kind_are_refused(bench: Bench) -> None:
    job = await bench.add()
    bad: Any = {"attempts": 0}
    with pytest.raises(InvalidJob, match="reason"):
        await bench.store.permanently_fail_jobs([job.id], bad)
    with pytest.raises(InvalidJob, match="Reschedule"):
        await bench.store.reschedule_jobs([job.id], bad)
    assert await bench.job(job.id) == job


# -- complete_jobs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [Q, E, F])
async def test_completed_by_hand_is_in_the_history_and_its_key_free(bench: Bench, state: State) -> None:
    job = await bench.in_state(state, key="k", payload='{"n": 1}')
    await bench.pass_time(5)
    (done,) = await bench.store.complete_jobs([job.id])
    assert (done.state, done.finished_at, done.worker) == (C, bench.now, None)
    assert (done.attempts, done.last_error, payload_of(done.payload_text)) == (job.attempts, job.last_error, {"n": 1})
    assert (await bench.store.counts())[C] == 1
    assert (await bench.add(key="k")).id != job.id


async def test_without_a_history_what_is_completed_by_hand_is_gone_and_given_back_all_the_same(
    forgetful_bench: Bench,
) -> None:
    job = await forgetful_bench.in_state(F, key="k")
    (done,) = await forgetful_bench.store.complete_jobs([job.id])
    assert (done.id, done.state, done.finished_at) == (job.id, C, forgetful_bench.now)
    assert await forgetful_bench.store.get(job.id) is None
    assert (await forgetful_bench.add(key="k")).id != job.id


async def test_a_repeated_settlement_is_known_after_the_job_was_completed_by_hand(bench: Bench) -> None:
    lease = await bench.start()
    await bench.settle(lease, FAILED)
    await bench.store.complete_jobs([lease.job_id])
    assert await bench.settle(lease, FAILED, repeat=True) is Verdict.ALREADY_SETTLED


# -- permanently_fail_jobs ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [Q, E])
async def test_failed_by_hand_has_no_attempts_left_and_keeps_its_key(bench: Bench, state: State) -> None:
    job = await bench.in_state(state, key="k", max_attempts=7)
    await bench.pass_time(5)
    (failed,) = await bench.store.permanently_fail_jobs([job.id], "we moved")
    assert (failed.state, failed.attempts, failed.max_attempts, failed.last_error) == (F, 7, 7, "we moved")
    assert (failed.finished_at, failed.updated_at, failed.key) == (bench.now, bench.now, "k")
    assert await bench.store.next_due(None) is None


async def test_failing_by_hand_without_a_reason_says_so(bench: Bench) -> None:
    job = await bench.in_state(E)
    (failed,) = await bench.store.permanently_fail_jobs([job.id])
    assert failed.last_error == "Manually marked as failed"


async def test_what_had_failed_takes_the_new_reason_and_stays_finished_when_it_was(bench: Bench) -> None:
    job = await bench.in_state(F)
    await bench.pass_time(5)
    (failed,) = await bench.store.permanently_fail_jobs([job.id], "for good")
    assert (failed.attempts, failed.last_error, failed.finished_at) == (25, "for good", job.finished_at)


async def test_any_text_may_be_a_reason(bench: Bench) -> None:
    job = await bench.add()
    (failed,) = await bench.store.permanently_fail_jobs([job.id], "a\x00b \ud800 " + "é" * 50_000)
    assert failed.last_error is not None
    assert "\x00" not in failed.last_error
    assert len(failed.last_error.encode()) <= 16 * 1024
    assert await bench.job(job.id) == failed


# -- reschedule_jobs ------------------------------------------------------------------------------------

LATER = datetime(2030, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
GIVEN: dict[str, dict[str, Any]] = {
    "run_at": {"run_at": LATER},
    "priority": {"priority": 5},
    "priority nought": {"priority": 0},
    "attempts": {"attempts": 4},
    "attempts nought": {"attempts": 0},
    "max_attempts": {"max_attempts": 9},
    "all": {"run_at": LATER, "priority": -5, "attempts": 2, "max_attempts": 3},
    "nothing": {},
}


@pytest.mark.parametrize("state", [Q, E])
@pytest.mark.parametrize("what", GIVEN)
async def test_what_is_given_is_set_and_what_is_not_is_kept(bench: Bench, what: str, state: State) -> None:
    job = await bench.in_state(state, priority=7, max_attempts=20, key="k", queue="q", flags=("f",))
    await bench.pass_time(5)
    (changed,) = await bench.store.reschedule_jobs([job.id], Reschedule(**GIVEN[what]))
    expected = {name: getattr(job, name) for name in Job.__struct_fields__} | GIVEN[what] | {"updated_at": bench.now}
    assert {name: getattr(changed, name) for name in Job.__struct_fields__} == expected
    assert await bench.job(job.id) == changed


@pytest.mark.parametrize(
    ("to", "attempts", "state"),
    [
        (Reschedule(attempts=99), 5, F),
        (Reschedule(attempts=5), 5, F),
        (Reschedule(attempts=4), 4, Q),
        (Reschedule(max_attempts=1), 0, Q),
        (Reschedule(attempts=7, max_attempts=8), 7, Q),
        (Reschedule(attempts=8, max_attempts=8), 8, F),
    ],
)
async def test_attempts_are_clamped_and_a_waiting_job_without_any_left_is_failed(
    bench: Bench, to: Reschedule, attempts: int, state: State
) -> None:
    job = await bench.add(max_attempts=5)
    await bench.pass_time(5)
    (changed,) = await bench.store.reschedule_jobs([job.id], to)
    assert (changed.attempts, changed.state) == (attempts, state)
    assert changed.finished_at == (bench.now if state is F else None)


async def test_a_lower_maximum_fails_an_errored_job_that_has_used_it_up(bench: Bench) -> None:
    job = await bench.in_state(E)
    await bench.pass_time(60)
    await bench.settle(await bench.take(), ERRORED)
    (changed,) = await bench.store.reschedule_jobs([job.id], Reschedule(max_attempts=1))
    assert (changed.state, changed.attempts, changed.max_attempts, changed.last_error) == (F, 1, 1, "it failed")


@pytest.mark.parametrize(
    ("to", "state", "attempts"),
    [
        (Reschedule(), F, 2),
        (Reschedule(run_at=LATER), F, 2),
        (Reschedule(priority=3), F, 2),
        (Reschedule(attempts=0), Q, 0),
        (Reschedule(attempts=1), Q, 1),
        (Reschedule(attempts=2), F, 2),
        (Reschedule(attempts=9), F, 2),
        (Reschedule(max_attempts=3), Q, 2),
        (Reschedule(max_attempts=2), F, 2),
        (Reschedule(max_attempts=1), F, 1),
        (Reschedule(attempts=0, max_attempts=1), Q, 0),
    ],
)
async def test_a_failed_job_waits_again_only_if_it_is_given_attempts(
    bench: Bench, to: Reschedule, state: State, attempts: int
) -> None:
    job = await bench.in_state(E, task="t", max_attempts=2, key="k")
    await bench.pass_time(60)
    await bench.settle(await bench.take(), FAILED)
    failed = await bench.job(job.id)
    await bench.pass_time(5)
    (changed,) = await bench.store.reschedule_jobs([job.id], to)
    assert (changed.state, changed.attempts, changed.key) == (state, attempts, "k")
    assert changed.finished_at == (failed.finished_at if state is F else None)
    assert changed.last_error == "it is broken"
    claimed = await bench.claim(tasks=("t",))
    assert [claim.attempts for claim in claimed] == ([attempts + 1] if state is Q else [])


async def test_what_was_failed_by_hand_can_be_rescheduled(bench: Bench) -> None:
    job = await bench.add()
    await bench.store.permanently_fail_jobs([job.id])
    (changed,) = await bench.store.reschedule_jobs([job.id], Reschedule(attempts=0))
    assert (changed.state, changed.attempts) == (Q, 0)
    assert (await bench.take()).job_id == job.id


async def test_a_dead_killer_that_is_given_attempts_has_another_chance(bench: Bench) -> None:
    job = await bench.add(max_resets=0)
    await bench.lose(await bench.take())
    (changed,) = await bench.store.reschedule_jobs([job.id], Reschedule(attempts=0))
    assert (changed.state, changed.resets) == (Q, 0)
    assert (await bench.take()).job_id == job.id


async def test_a_waiting_suspect_stays_one(bench: Bench) -> None:
    job = await bench.make_suspect()
    (changed,) = await bench.store.reschedule_jobs([job.id], Reschedule(attempts=0))
    assert changed.resets == 2
    assert list(await bench.claim()) == []
    assert (await bench.take(suspects=True)).job_id == job.id


async def test_a_failed_job_that_had_lost_its_retries_has_those_that_it_is_given(bench: Bench) -> None:
    lease = await bench.start(key="k")
    await bench.add("newer", key="k")
    await bench.settle(lease, ERRORED)
    assert (await bench.job(lease.job_id)).state is F
    await bench.store.reschedule_jobs([lease.job_id], Reschedule(attempts=0))
    await bench.settle(await bench.take(tasks=("t",)), ERRORED)
    assert (await bench.job(lease.job_id)).state is E


@pytest.mark.parametrize(("to", "state"), [(Reschedule(attempts=0), E), (Reschedule(priority=1), F)])
async def test_a_waiting_job_that_had_lost_its_retries_has_those_that_it_is_given(
    bench: Bench, to: Reschedule, state: State
) -> None:
    lease = await bench.start(key="k")
    await bench.add("newer", key="k")
    await bench.settle(lease, SNOOZED)
    await bench.store.reschedule_jobs([lease.job_id], to)
    await bench.pass_time(60)
    await bench.settle(await bench.take(tasks=("t",)), ERRORED)
    assert (await bench.job(lease.job_id)).state is state


async def test_a_job_that_was_asked_to_cancel_and_failed_is_not_canceled_when_it_runs_again(bench: Bench) -> None:
    lease = await bench.start()
    await bench.store.cancel(lease.job_id)
    await bench.settle(lease, FAILED)
    (changed,) = await bench.store.reschedule_jobs([lease.job_id], Reschedule(attempts=0))
    assert not changed.cancel_requested
    again = await bench.take()
    assert bench.heart.beat([again], 30).canceled == frozenset()
    await bench.settle(again, ERRORED)
    assert (await bench.job(lease.job_id)).state is E


async def test_a_job_that_is_moved_forward_is_claimed_and_one_that_is_moved_back_is_not(bench: Bench) -> None:
    for queue in (None, "q"):
        later = await bench.add("a", delay=3600.0, queue=queue)
        now = await bench.add("b", queue=queue and f"{queue}2")
        await bench.store.reschedule_jobs([later.id], Reschedule(run_at=bench.now))
        await bench.store.reschedule_jobs([now.id], Reschedule(run_at=bench.now + timedelta(seconds=60)))
        assert [claim.lease.job_id for claim in await bench.claim(9)] == [later.id]
        await bench.pass_time(60)
        assert [claim.lease.job_id for claim in await bench.claim(9)] == [now.id]


@pytest.mark.parametrize("queue", [None, "q"])
async def test_a_new_priority_decides_who_is_first(bench: Bench, queue: str | None) -> None:
    first, second = await bench.add(queue=queue), await bench.add(queue=queue)
    await bench.store.reschedule_jobs([second.id], Reschedule(priority=-1))
    lease = await bench.take()
    assert lease.job_id == second.id
    await bench.settle(lease)
    assert (await bench.take()).job_id == first.id


@pytest.mark.parametrize(
    "asked",
    [
        {"attempts": -1},
        {"attempts": 2**31},
        {"attempts": True},
        {"max_attempts": 0},
        {"max_attempts": 2**31},
        {"priority": 2**31},
        {"priority": 0.5},
        {"run_at": LATER.replace(tzinfo=None)},
    ],
)
async def test_what_no_job_may_have_is_refused_and_nothing_changed(bench: Bench, asked: dict[str, Any]) -> None:
    job = await bench.add()
    with pytest.raises(InvalidJob):
        await bench.store.reschedule_jobs([job.id], Reschedule(**asked))
    assert await bench.job(job.id) == job


# -- leases that have expired ---------------------------------------------------------------------------


async def expired(bench: Bench, **details: Any) -> Lease:
    """A running job whose worker let its lease end."""
    lease = await bench.start(queue="q", key="k", **details)
    await bench.pass_time(31)
    return lease


@pytest.mark.parametrize(
    ("name", "state", "attempts", "resets"),
    [("complete", C, 1, 0), ("fail", F, 25, 0), ("postpone", Q, 0, 1), ("give attempts", Q, 0, 1)],
)
async def test_an_expired_lease_is_acted_on_and_its_holder_fenced_out(
    bench: Bench, name: str, state: State, attempts: int, resets: int
) -> None:
    lease = await expired(bench)
    (changed,) = await call(bench, name, lease.job_id)
    assert (changed.state, changed.worker) == (state, None)
    assert (changed.attempts, changed.resets) == (attempts, resets)
    assert await bench.job(lease.job_id) == changed
    epoch, token, settled, _ = (await asyncio.to_thread(bench.place.secrets))[lease.job_id]
    assert (epoch, token, settled) == (lease.epoch + 1, None, None)
    assert await bench.settle(lease) is Verdict.LOST
    assert await bench.settle(lease, ERRORED, repeat=True) is Verdict.LOST
    assert (lease.job_id, lease.token) in bench.heart.beat([lease], 30.0).lost
    assert list(bench.heart.reset_lease(lease)) == []
    assert await bench.job(lease.job_id) == changed


@pytest.mark.parametrize("name", ["complete", "fail", "postpone"])
async def test_the_queue_of_an_expired_lease_is_free_at_once(bench: Bench, name: str) -> None:
    lease = await expired(bench)
    following = await bench.add("next", queue="q")
    assert list(await bench.claim()) == []
    await call(bench, name, lease.job_id)
    assert (await bench.take()).job_id == following.id


@pytest.mark.parametrize("name", ["complete", "fail", "postpone", "give attempts"])
async def test_a_lease_is_live_until_its_very_end(bench: Bench, name: str) -> None:
    lease = await bench.start()
    await bench.pass_time(30)
    assert list(await call(bench, name, lease.job_id)) == []
    await bench.pass_time(0.001)
    assert [job.id for job in await call(bench, name, lease.job_id)] == [lease.job_id]


@pytest.mark.parametrize("name", ["complete", "fail", "postpone", "give attempts"])
async def test_a_beat_keeps_the_hands_off(bench: Bench, name: str) -> None:
    lease = await expired(bench)
    bench.heart.beat([lease], 30.0)
    assert list(await call(bench, name, lease.job_id)) == []
    assert await bench.settle(lease) is Verdict.SETTLED


async def test_an_expired_killer_is_failed_and_rescheduling_alone_does_not_revive_it(bench: Bench) -> None:
    lease = await expired(bench, max_resets=0)
    (changed,) = await bench.store.reschedule_jobs([lease.job_id], Reschedule(priority=4))
    assert (changed.state, changed.priority, changed.resets) == (F, 4, 1)
    assert changed.last_error == "its worker died 1 time while running it"
    (changed,) = await bench.store.reschedule_jobs([lease.job_id], Reschedule(attempts=0))
    assert (changed.state, changed.resets) == (Q, 0)


async def test_an_expired_killer_that_is_given_attempts_waits_again(bench: Bench) -> None:
    lease = await expired(bench, max_attempts=1)
    (changed,) = await bench.store.reschedule_jobs([lease.job_id], Reschedule(attempts=0))
    assert (changed.state, changed.attempts, changed.resets, changed.finished_at) == (Q, 0, 0, None)


@pytest.mark.parametrize("ask", ["cancel", "remove_key"])
@pytest.mark.parametrize(("name", "state"), [("complete", C), ("fail", F), ("postpone", X), ("give attempts", X)])
async def test_what_was_asked_to_go_may_end_but_never_waits_again(
    bench: Bench, name: str, state: State, ask: str
) -> None:
    lease = await expired(bench)
    await (bench.store.cancel(lease.job_id) if ask == "cancel" else bench.store.remove_key("k"))
    (changed,) = await call(bench, name, lease.job_id)
    assert changed.state is state
    assert await bench.job(lease.job_id) == changed
    assert await bench.settle(lease) is Verdict.LOST


# -- force_unlock_workers -------------------------------------------------------------------------------


async def test_what_a_worker_holds_is_taken_back_as_by_a_reset_and_nobody_elses(bench: Bench) -> None:
    for _ in range(3):
        await bench.add(max_attempts=3)
    dead = await bench.claim(2, worker="dead")
    alive = await bench.take(worker="alive")
    await bench.pass_time(1)
    changed = await bench.store.force_unlock_workers(["dead", "nobody", "dead"])
    assert [(job.id, job.state, job.attempts, job.resets, job.worker) for job in changed] == [
        (claim.lease.job_id, Q, 0, 1, None) for claim in dead
    ]
    assert [await bench.job(job.id) for job in changed] == list(changed)
    assert (await bench.job(alive.job_id)).state is P
    assert await bench.settle(alive) is Verdict.SETTLED
    assert list(await bench.store.force_unlock_workers(["dead"])) == []
    assert list(await bench.store.force_unlock_workers([])) == []


@pytest.mark.parametrize("how", SETTLEMENTS)
async def test_a_worker_that_is_unlocked_while_it_lives_is_fenced_out(bench: Bench, how: str) -> None:
    lease = await bench.start(queue="q")
    await bench.store.force_unlock_workers(["w1"])
    before = await bench.image(lease.job_id)
    assert await bench.settle(lease, SETTLEMENTS[how]) is Verdict.LOST
    assert (lease.job_id, lease.token) in bench.heart.beat([lease], 30.0).lost
    bench.heart.release([lease])
    assert await bench.image(lease.job_id) == before
    again = await bench.take()
    assert (again.job_id, again.epoch) == (lease.job_id, lease.epoch + 2)
    assert await bench.settle(lease, repeat=True) is Verdict.LOST
    assert await bench.settle(again) is Verdict.SETTLED


@pytest.mark.parametrize("ask", ["cancel", "remove_key"])
async def test_what_was_asked_to_go_is_canceled_when_its_worker_is_unlocked(bench: Bench, ask: str) -> None:
    lease = await bench.start(key="k")
    await (bench.store.cancel(lease.job_id) if ask == "cancel" else bench.store.remove_key("k"))
    (changed,) = await bench.store.force_unlock_workers(["w1"])
    assert (changed.id, changed.state, changed.finished_at) == (lease.job_id, X, bench.now)
    assert await bench.job(lease.job_id) == changed


async def test_what_was_canceled_so_is_given_back_where_no_history_is_kept(forgetful_bench: Bench) -> None:
    lease = await forgetful_bench.start()
    await forgetful_bench.store.cancel(lease.job_id)
    (changed,) = await forgetful_bench.store.force_unlock_workers(["w1"])
    assert (changed.id, changed.state) == (lease.job_id, X)
    assert await forgetful_bench.store.get(lease.job_id) is None


@pytest.mark.parametrize(("max_attempts", "max_resets", "fatal"), [(25, None, 6), (25, 0, 1), (1, None, 1), (1, 2, 3)])
async def test_a_worker_that_is_unlocked_too_often_fails_its_job(
    bench: Bench, max_attempts: int, max_resets: int | None, fatal: int
) -> None:
    job = await bench.add(max_attempts=max_attempts, max_resets=max_resets)
    for death in range(1, fatal + 1):
        await bench.take(suspects=death > 2)
        (changed,) = await bench.store.force_unlock_workers(["w1"])
        assert changed.state is (F if death == fatal else Q)
    times = "1 time" if fatal == 1 else f"{fatal} times"
    dead = await bench.job(job.id)
    assert (dead.attempts, dead.resets, dead.finished_at) == (1, fatal, bench.now)
    assert dead.last_error == f"its worker died {times} while running it"


async def test_what_a_worker_held_whose_lease_has_ended_is_taken_back_too(bench: Bench) -> None:
    lease = await bench.start(queue="q")
    await bench.pass_time(31)
    (changed,) = await bench.store.force_unlock_workers(["w1"])
    assert (changed.id, changed.state, changed.resets) == (lease.job_id, Q, 1)
    assert await bench.settle(lease) is Verdict.LOST
    assert (await bench.take()).job_id == lease.job_id


# -- together -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["postpone", "give attempts", "unlock", "complete"])
async def test_a_sleeper_hears_of_what_became_claimable(bench: Bench, name: str) -> None:
    other = await bench.another()
    if name in ("unlock", "complete"):
        job = await bench.start(queue="q")
        await bench.add("next", queue="q")
        await bench.pass_time(31 if name == "complete" else 0)
        act = other.complete_jobs([job.job_id]) if name == "complete" else other.force_unlock_workers(["w1"])
    else:
        waiting = await bench.add(delay=3600.0) if name == "postpone" else await bench.in_state(F)
        to = Reschedule(run_at=bench.now) if name == "postpone" else Reschedule(attempts=0)
        act = other.reschedule_jobs([waiting.id], to)
    while await bench.store.wait(0.05):
        pass  # what was said before
    sleeping = asyncio.create_task(bench.store.wait(20.0))
    await asyncio.sleep(0)
    await act
    assert await sleeping
    assert await bench.claim()


async def test_of_several_who_act_on_one_job_only_one_completes_it(bench: Bench) -> None:
    stores = [await bench.another() for _ in range(3)]
    for _ in range(5):
        job = await bench.add()
        answers = await asyncio.gather(*(store.complete_jobs([job.id]) for store in stores))
        assert sorted(len(answer) for answer in answers) == [0, 0, 1]


async def test_an_administrator_and_a_claim_exclude_each_other(bench: Bench) -> None:
    other = await bench.another()
    for _ in range(10):
        job = await bench.add()
        changed, claimed = await asyncio.gather(other.permanently_fail_jobs([job.id]), bench.claim())
        assert len(changed) + len(claimed) == 1
        assert (await bench.job(job.id)).state is (F if changed else P)
        await other.force_unlock_workers(["w1"])
        await other.complete_jobs([job.id])


async def test_an_administrator_and_the_holder_of_an_expired_lease_exclude_each_other(bench: Bench) -> None:
    other = await bench.another()
    for _ in range(10):
        lease = await bench.start()
        await bench.pass_time(31)
        changed, verdict = await asyncio.gather(other.permanently_fail_jobs([lease.job_id]), bench.settle(lease))
        state = (await bench.job(lease.job_id)).state
        if verdict is Verdict.SETTLED:
            assert (list(changed), state) == ([], C)
        else:
            assert verdict in (Verdict.LOST, Verdict.BUSY)
            assert ([job.id for job in changed], state) == ([lease.job_id], F)


@pytest.mark.parametrize("state", STATES)
async def test_others_are_left_alone(bench: Bench, state: State) -> None:
    bystander = await bench.in_state(state, key="other", queue="q")
    image = await bench.image(bystander.id)
    job = await bench.add("t", key="k", queue="r")
    for to in (POSTPONED, ATTEMPTED):
        await bench.store.reschedule_jobs([job.id], to)
    await bench.store.permanently_fail_jobs([job.id])
    await bench.store.complete_jobs([job.id])
    await bench.store.force_unlock_workers(["w2"])
    assert await bench.image(bystander.id) == image


async def test_what_is_left_of_a_batch_survives_being_rescheduled(bench: Bench) -> None:
    lease = await bench.start(payload="[1, 2, 3]")
    left: Settlement = judged(Retry("some failed", 60.0, "[2]"))
    await bench.settle(lease, left)
    (changed,) = await bench.store.reschedule_jobs([lease.job_id], Reschedule(run_at=bench.now))
    assert payload_of(changed.payload_text) == [2]


async def test_an_administrator_enqueues_what_is_built_in_and_that_way_nothing_else(bench: Bench) -> None:
    first = await bench.store.add_built_in(NewJob(task=PURGE, payload='{"a": 1}', key="k", queue="q", priority=3))
    assert (first.task, payload_of(first.payload_text), first.key, first.queue, first.priority) == (
        PURGE,
        {"a": 1},
        "k",
        "q",
        3,
    )
    later = bench.now + timedelta(hours=1)
    again = await bench.store.add_built_in(NewJob(task=PURGE, key="k", run_at=later))
    assert (again.id, again.run_at, again.revision) == (first.id, later, 1)
    assert (await bench.store.add_built_in(NewJob(task=PURGE))).max_attempts == 25
    with pytest.raises(InvalidJob, match="is not built in"):
        await bench.store.add_built_in(NewJob(task="t"))
    (claim,) = await bench.claim(tasks=(PURGE,))
    assert claim.record.task == PURGE
