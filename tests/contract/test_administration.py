"""Acting on many jobs at once: the table "what each call does in each state", its last three lines, cell by cell.

A live lease is never touched. A lease that has expired is: its holder is fenced out, and its serial key is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stowhand.app.answers import answers_of
from stowhand.errors import InvalidJob
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Retry, Settlement
from stowhand.protocols.operator import PURGE_TASK
from stowhand.protocols.queue_store import ActionResult, Reschedule
from stowhand.protocols.store import Verdict
from tests.contract.backends import payload_of
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, FAILED, SETTLEMENTS, SNOOZED, STATES, StoreHarness, judged

pytestmark = needs("admin")

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
    ("use attempts", Q, Q),
    ("use attempts", E, E),
    ("use attempts", F, Q),
    ("use attempts", P, None),
    ("use attempts", X, None),
    ("use attempts", C, None),
    ("unlock", Q, None),
    ("unlock", E, None),
    ("unlock", F, None),
    ("unlock", P, Q),
    ("unlock", X, None),
    ("unlock", C, None),
]


async def call(harness: StoreHarness, name: str, *ids: int) -> Sequence[Job]:
    """One of the four calls, by what it does."""
    match name:
        case "complete":
            return await harness.store.admin.complete_jobs(ids)
        case "fail":
            return await harness.store.admin.permanently_fail_jobs(ids)
        case "postpone":
            return await harness.store.admin.reschedule_jobs(ids, POSTPONED)
        case "use attempts":
            return await harness.store.admin.reschedule_jobs(ids, ATTEMPTED)
        case _:
            return await harness.store.admin.force_unlock_workers(["w1"])


@pytest.mark.parametrize(("name", "state", "after"), TABLE)
async def test_the_table_of_calls_and_states(
    harness: StoreHarness, name: str, state: State, after: State | None
) -> None:
    job = await harness.in_state(state, key="k")
    before = await harness.image(job.id)
    changed = await call(harness, name, job.id)
    if after is None:
        assert list(changed) == []
        assert await harness.image(job.id) == before, "skipped is untouched"
    else:
        assert [(one.id, one.state) for one in changed] == [(job.id, after)]
        assert await harness.job(job.id) == changed[0]


@pytest.mark.parametrize("name", ["complete", "fail", "postpone", "use attempts"])
async def test_the_changed_jobs_come_in_id_order_whatever_else_was_named(harness: StoreHarness, name: str) -> None:
    waiting = [await harness.add(f"t{number}") for number in range(5)]
    running, canceled = await harness.in_state(P), await harness.in_state(X)
    bystander = await harness.add("bystander")
    ids = [job.id for job in waiting]
    calls = [*reversed(ids), running.id, canceled.id, 999_999, -1, 2**62, *ids]
    assert [job.id for job in await call(harness, name, *calls)] == ids
    assert await harness.job(bystander.id) == bystander


@pytest.mark.parametrize("name", ["complete", "fail", "postpone"])
async def test_naming_no_job_changes_none(harness: StoreHarness, name: str) -> None:
    job = await harness.add()
    assert list(await call(harness, name)) == []
    assert await harness.job(job.id) == job


@pytest.mark.parametrize("name", ["complete", "fail", "postpone", "unlock"])
async def test_many_jobs_are_changed_by_one_call(harness: StoreHarness, name: str) -> None:
    ids = await harness.store.jobs.enqueue_many(
        NewJob(task="t", serial=f"q{n}" if n % 9 == 0 else None) for n in range(1100)
    )
    if name == "unlock":
        await harness.claim(1100)
    assert [job.id for job in await call(harness, name, *ids)] == ids


async def test_ids_that_are_no_whole_numbers_are_refused(harness: StoreHarness) -> None:
    """A lone text above all: each of its letters might be the number of a job."""
    jobs = [await harness.add(), await harness.add()]
    wrong: list[Any] = ["12", b"12", 1, None, ["1"], [True], [1.0], [None]]
    for ids in wrong:
        with pytest.raises(InvalidJob, match="job_ids"):
            await harness.store.admin.complete_jobs(ids)
        with pytest.raises(InvalidJob, match="job_ids"):
            await harness.store.admin.permanently_fail_jobs(ids)
        with pytest.raises(InvalidJob, match="job_ids"):
            await harness.store.admin.reschedule_jobs(ids, POSTPONED)
    assert [await harness.job(job.id) for job in jobs] == jobs


async def test_an_id_that_no_job_can_have_names_none(harness: StoreHarness) -> None:
    job = await harness.add()
    ids = [2**63, -(2**70), 0, job.id, 2**63 - 1]
    assert [one.id for one in await harness.store.admin.permanently_fail_jobs(ids)] == [job.id]
    assert [one.id for one in await harness.store.admin.reschedule_jobs(ids, ATTEMPTED)] == [job.id]
    assert [one.id for one in await harness.store.admin.complete_jobs(ids)] == [job.id]


async def test_workers_that_are_no_list_of_names_are_refused(harness: StoreHarness) -> None:
    await harness.add()
    lease = await harness.take(worker="w")
    wrong: list[Any] = ["w1", b"w1", None, 1, [1], [None]]
    for workers in wrong:
        with pytest.raises(InvalidJob, match="workers"):
            await harness.store.admin.force_unlock_workers(workers)
    assert await harness.settle(lease) is Verdict.SETTLED


async def test_a_name_that_no_worker_has_unlocks_nothing(harness: StoreHarness) -> None:
    lease = await harness.start()
    for name in ("", "w\x00", "w\udc80", '{"w1"}', "W1", "w1 ", "%"):
        assert list(await harness.store.admin.force_unlock_workers([name])) == []
    assert await harness.settle(lease) is Verdict.SETTLED


async def test_a_reason_that_is_no_text_and_details_of_another_kind_are_refused(harness: StoreHarness) -> None:
    job = await harness.add()
    bad: Any = {"attempts": 0}
    with pytest.raises(InvalidJob, match="reason"):
        await harness.store.admin.permanently_fail_jobs([job.id], bad)
    with pytest.raises(InvalidJob, match="Reschedule"):
        await harness.store.admin.reschedule_jobs([job.id], bad)
    assert await harness.job(job.id) == job


# -- complete_jobs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [Q, E, F])
async def test_completed_by_hand_is_in_the_history_and_its_key_free(harness: StoreHarness, state: State) -> None:
    job = await harness.in_state(state, key="k", payload='{"n": 1}')
    await harness.pass_time(5)
    (done,) = await harness.store.admin.complete_jobs([job.id])
    assert (done.state, done.finished_at, done.worker) == (C, harness.now, None)
    assert (done.attempts, done.last_error, payload_of(done.payload_text)) == (job.attempts, job.last_error, {"n": 1})
    assert (await harness.store.inspect.counts())[C] == 1
    assert (await harness.add(key="k")).id != job.id


async def test_without_a_history_what_is_completed_by_hand_is_gone_and_given_back_all_the_same(
    forgetful_harness: StoreHarness,
) -> None:
    job = await forgetful_harness.in_state(F, key="k")
    (done,) = await forgetful_harness.store.admin.complete_jobs([job.id])
    assert (done.id, done.state, done.finished_at) == (job.id, C, forgetful_harness.now)
    assert await forgetful_harness.store.jobs.get(job.id) is None
    assert (await forgetful_harness.add(key="k")).id != job.id


async def test_a_repeated_settlement_is_known_after_the_job_was_completed_by_hand(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.settle(lease, FAILED)
    await harness.store.admin.complete_jobs([lease.job_id])
    reply = await harness.settle(lease, FAILED, repeat=True)
    assert isinstance(reply, Settlement), reply
    assert reply.state is C, "as it is recorded by now"


# -- permanently_fail_jobs ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [Q, E])
async def test_failed_by_hand_has_no_attempts_left_and_keeps_its_key(harness: StoreHarness, state: State) -> None:
    job = await harness.in_state(state, key="k", max_attempts=7)
    await harness.pass_time(5)
    (failed,) = await harness.store.admin.permanently_fail_jobs([job.id], "we moved")
    assert (failed.state, failed.attempts, failed.max_attempts, failed.last_error) == (F, 7, 7, "we moved")
    assert (failed.finished_at, failed.updated_at, failed.key) == (harness.now, harness.now, "k")
    assert await harness.store.next_due(None) is None


async def test_failing_by_hand_has_a_default_reason(harness: StoreHarness) -> None:
    job = await harness.in_state(E)
    (failed,) = await harness.store.admin.permanently_fail_jobs([job.id])
    assert failed.last_error == "Manually marked as failed"


async def test_what_had_failed_takes_the_new_reason_and_stays_finished_when_it_was(harness: StoreHarness) -> None:
    job = await harness.in_state(F)
    await harness.pass_time(5)
    (failed,) = await harness.store.admin.permanently_fail_jobs([job.id], "for good")
    assert (failed.attempts, failed.last_error, failed.finished_at) == (25, "for good", job.finished_at)


async def test_any_text_may_be_a_reason(harness: StoreHarness) -> None:
    job = await harness.add()
    (failed,) = await harness.store.admin.permanently_fail_jobs([job.id], "a\x00b \ud800 " + "é" * 50_000)
    assert failed.last_error is not None
    assert "\x00" not in failed.last_error
    assert len(failed.last_error.encode()) <= 16 * 1024
    assert await harness.job(job.id) == failed


# -- reschedule_jobs ------------------------------------------------------------------------------------

LATER = datetime(2030, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
GIVEN: dict[str, dict[str, Any]] = {
    "run_at": {"run_at": LATER},
    "priority": {"priority": 5},
    "priority nought": {"priority": 0},
    "attempts": {"attempts": 4},
    "attempts nought": {"attempts": 0},
    "max_attempts": {"max_attempts": 9},
    "queue": {"queue": "bulk"},
    "queue default": {"queue": "default"},
    "all": {"run_at": LATER, "priority": -5, "attempts": 2, "max_attempts": 3},
    "nothing": {},
}


@pytest.mark.parametrize("state", [Q, E])
@pytest.mark.parametrize("what", GIVEN)
async def test_what_is_given_is_set_and_what_is_not_is_kept(harness: StoreHarness, what: str, state: State) -> None:
    job = await harness.in_state(state, priority=7, max_attempts=20, key="k", serial="q", flags=("f",), queue="mail")
    await harness.pass_time(5)
    (changed,) = await harness.store.admin.reschedule_jobs([job.id], Reschedule(**GIVEN[what]))
    expected = {name: getattr(job, name) for name in Job.__struct_fields__} | GIVEN[what] | {"updated_at": harness.now}
    assert {name: getattr(changed, name) for name in Job.__struct_fields__} == expected
    assert await harness.job(job.id) == changed


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
    harness: StoreHarness, to: Reschedule, attempts: int, state: State
) -> None:
    job = await harness.add(max_attempts=5)
    await harness.pass_time(5)
    (changed,) = await harness.store.admin.reschedule_jobs([job.id], to)
    assert (changed.attempts, changed.state) == (attempts, state)
    assert changed.finished_at == (harness.now if state is F else None)


async def test_a_lower_maximum_fails_an_errored_job_that_has_used_it_up(harness: StoreHarness) -> None:
    job = await harness.in_state(E)
    await harness.pass_time(60)
    await harness.settle(await harness.take(), ERRORED)
    (changed,) = await harness.store.admin.reschedule_jobs([job.id], Reschedule(max_attempts=1))
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
    harness: StoreHarness, to: Reschedule, state: State, attempts: int
) -> None:
    job = await harness.in_state(E, task="t", max_attempts=2, key="k")
    await harness.pass_time(60)
    await harness.settle(await harness.take(), FAILED)
    failed = await harness.job(job.id)
    await harness.pass_time(5)
    (changed,) = await harness.store.admin.reschedule_jobs([job.id], to)
    assert (changed.state, changed.attempts, changed.key) == (state, attempts, "k")
    assert changed.finished_at == (failed.finished_at if state is F else None)
    assert changed.last_error == "it is broken"
    claimed = await harness.claim(tasks=("t",))
    assert [claim.attempts for claim in claimed] == ([attempts + 1] if state is Q else [])


async def test_what_was_failed_by_hand_can_be_rescheduled(harness: StoreHarness) -> None:
    job = await harness.add()
    await harness.store.admin.permanently_fail_jobs([job.id])
    (changed,) = await harness.store.admin.reschedule_jobs([job.id], Reschedule(attempts=0))
    assert (changed.state, changed.attempts) == (Q, 0)
    assert (await harness.take()).job_id == job.id


async def test_a_dead_killer_that_is_given_attempts_has_another_chance(harness: StoreHarness) -> None:
    job = await harness.add(max_resets=0)
    await harness.lose(await harness.take())
    (changed,) = await harness.store.admin.reschedule_jobs([job.id], Reschedule(attempts=0))
    assert (changed.state, changed.resets) == (Q, 0)
    assert (await harness.take()).job_id == job.id


async def test_a_waiting_suspect_stays_one(harness: StoreHarness) -> None:
    job = await harness.make_suspect()
    (changed,) = await harness.store.admin.reschedule_jobs([job.id], Reschedule(attempts=0))
    assert changed.resets == 2
    assert list(await harness.claim()) == []
    assert (await harness.take(suspects=True)).job_id == job.id


async def test_a_failed_job_that_had_lost_its_retries_has_those_that_it_is_given(harness: StoreHarness) -> None:
    lease = await harness.start(key="k")
    await harness.add("newer", key="k")
    await harness.settle(lease, ERRORED)
    assert (await harness.job(lease.job_id)).state is F
    await harness.store.admin.reschedule_jobs([lease.job_id], Reschedule(attempts=0))
    await harness.settle(await harness.take(tasks=("t",)), ERRORED)
    assert (await harness.job(lease.job_id)).state is E


@pytest.mark.parametrize(("to", "state"), [(Reschedule(attempts=0), E), (Reschedule(priority=1), F)])
async def test_a_waiting_job_that_had_lost_its_retries_has_those_that_it_is_given(
    harness: StoreHarness, to: Reschedule, state: State
) -> None:
    lease = await harness.start(key="k")
    await harness.add("newer", key="k")
    await harness.settle(lease, SNOOZED)
    await harness.store.admin.reschedule_jobs([lease.job_id], to)
    await harness.pass_time(60)
    await harness.settle(await harness.take(tasks=("t",)), ERRORED)
    assert (await harness.job(lease.job_id)).state is state


async def test_a_job_that_was_asked_to_cancel_and_failed_is_not_canceled_when_it_runs_again(
    harness: StoreHarness,
) -> None:
    lease = await harness.start()
    await harness.store.admin.cancel(lease.job_id)
    await harness.settle(lease, FAILED)
    (changed,) = await harness.store.admin.reschedule_jobs([lease.job_id], Reschedule(attempts=0))
    assert not changed.cancel_requested
    again = await harness.take()
    assert (await harness.heartbeats.beat([again], 30)).canceled == frozenset()
    await harness.settle(again, ERRORED)
    assert (await harness.job(lease.job_id)).state is E


async def test_a_job_that_is_moved_forward_is_claimed_and_one_that_is_moved_back_is_not(harness: StoreHarness) -> None:
    for serial in (None, "q"):
        later = await harness.add("a", delay=3600.0, serial=serial)
        now = await harness.add("b", serial=serial and f"{serial}2")
        await harness.store.admin.reschedule_jobs([later.id], Reschedule(run_at=harness.now))
        await harness.store.admin.reschedule_jobs([now.id], Reschedule(run_at=harness.now + timedelta(seconds=60)))
        assert [claim.lease.job_id for claim in await harness.claim(9)] == [later.id]
        await harness.pass_time(60)
        assert [claim.lease.job_id for claim in await harness.claim(9)] == [now.id]


@pytest.mark.parametrize("serial", [None, "q"])
async def test_a_new_priority_decides_who_is_first(harness: StoreHarness, serial: str | None) -> None:
    first, second = await harness.add(serial=serial), await harness.add(serial=serial)
    await harness.store.admin.reschedule_jobs([second.id], Reschedule(priority=-1))
    lease = await harness.take()
    assert lease.job_id == second.id
    await harness.settle(lease)
    assert (await harness.take()).job_id == first.id


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
        {"queue": ""},
        {"queue": "q" * 129},
        {"queue": 5},
    ],
)
async def test_what_no_job_may_have_is_refused_and_nothing_changed(
    harness: StoreHarness, asked: dict[str, Any]
) -> None:
    job = await harness.add()
    with pytest.raises(InvalidJob):
        await harness.store.admin.reschedule_jobs([job.id], Reschedule(**asked))
    assert await harness.job(job.id) == job


# -- leases that have expired ---------------------------------------------------------------------------


async def expired(harness: StoreHarness, **details: Any) -> Lease:
    """A running job whose worker let its lease end."""
    lease = await harness.start(serial="q", key="k", **details)
    await harness.pass_time(31)
    return lease


@pytest.mark.parametrize(
    ("name", "state", "attempts", "resets"),
    [("complete", C, 1, 0), ("fail", F, 25, 0), ("postpone", Q, 0, 1), ("use attempts", Q, 0, 1)],
)
async def test_an_expired_lease_is_acted_on_and_its_holder_fenced_out(
    harness: StoreHarness, name: str, state: State, attempts: int, resets: int
) -> None:
    lease = await expired(harness)
    (changed,) = await call(harness, name, lease.job_id)
    assert (changed.state, changed.worker) == (state, None)
    assert (changed.attempts, changed.resets) == (attempts, resets)
    assert await harness.job(lease.job_id) == changed
    epoch, token, settled, _ = (await asyncio.to_thread(harness.backend.secrets))[lease.job_id]
    assert (epoch, token, settled) == (lease.epoch + 1, None, None)
    assert await harness.settle(lease) is Verdict.LOST
    assert await harness.settle(lease, ERRORED, repeat=True) is Verdict.LOST
    assert (lease.job_id, lease.token) in (await harness.heartbeats.beat([lease], 30.0)).lost
    assert list(await harness.heartbeats.reset_lease(lease)) == []
    assert await harness.job(lease.job_id) == changed


@pytest.mark.parametrize("name", ["complete", "fail", "postpone"])
async def test_the_queue_of_an_expired_lease_is_free_at_once(harness: StoreHarness, name: str) -> None:
    lease = await expired(harness)
    following = await harness.add("next", serial="q")
    assert list(await harness.claim()) == []
    await call(harness, name, lease.job_id)
    assert (await harness.take()).job_id == following.id


@pytest.mark.parametrize("name", ["complete", "fail", "postpone", "use attempts"])
async def test_a_lease_is_live_until_its_very_end(harness: StoreHarness, name: str) -> None:
    lease = await harness.start()
    await harness.pass_time(30)
    assert list(await call(harness, name, lease.job_id)) == []
    await harness.pass_time(0.001)
    assert [job.id for job in await call(harness, name, lease.job_id)] == [lease.job_id]


@pytest.mark.parametrize("name", ["complete", "fail", "postpone", "use attempts"])
async def test_a_beat_keeps_the_hands_off(harness: StoreHarness, name: str) -> None:
    lease = await expired(harness)
    await harness.heartbeats.beat([lease], 30.0)
    assert list(await call(harness, name, lease.job_id)) == []
    assert await harness.settle(lease) is Verdict.SETTLED


async def test_an_expired_killer_is_failed_and_rescheduling_alone_does_not_revive_it(harness: StoreHarness) -> None:
    lease = await expired(harness, max_resets=0)
    (changed,) = await harness.store.admin.reschedule_jobs([lease.job_id], Reschedule(priority=4))
    assert (changed.state, changed.priority, changed.resets) == (F, 4, 1)
    assert changed.last_error == "its worker died 1 time while running it"
    (changed,) = await harness.store.admin.reschedule_jobs([lease.job_id], Reschedule(attempts=0))
    assert (changed.state, changed.resets) == (Q, 0)


async def test_an_expired_killer_that_is_given_attempts_waits_again(harness: StoreHarness) -> None:
    lease = await expired(harness, max_attempts=1)
    (changed,) = await harness.store.admin.reschedule_jobs([lease.job_id], Reschedule(attempts=0))
    assert (changed.state, changed.attempts, changed.resets, changed.finished_at) == (Q, 0, 0, None)


@pytest.mark.parametrize("ask", ["cancel", "remove_key"])
@pytest.mark.parametrize(("name", "state"), [("complete", C), ("fail", F), ("postpone", X), ("use attempts", X)])
async def test_what_was_asked_to_go_may_end_but_never_waits_again(
    harness: StoreHarness, name: str, state: State, ask: str
) -> None:
    lease = await expired(harness)
    await (harness.store.admin.cancel(lease.job_id) if ask == "cancel" else harness.store.admin.remove_key("k"))
    (changed,) = await call(harness, name, lease.job_id)
    assert changed.state is state
    assert await harness.job(lease.job_id) == changed
    assert await harness.settle(lease) is Verdict.LOST


# -- force_unlock_workers -------------------------------------------------------------------------------


async def test_unlocking_a_worker_resets_its_jobs_only(harness: StoreHarness) -> None:
    for _ in range(3):
        await harness.add(max_attempts=3)
    dead = await harness.claim(2, worker="dead")
    alive = await harness.take(worker="alive")
    await harness.pass_time(1)
    changed = await harness.store.admin.force_unlock_workers(["dead", "nobody", "dead"])
    assert [(job.id, job.state, job.attempts, job.resets, job.worker) for job in changed] == [
        (claim.lease.job_id, Q, 0, 1, None) for claim in dead
    ]
    assert [await harness.job(job.id) for job in changed] == list(changed)
    assert (await harness.job(alive.job_id)).state is P
    assert await harness.settle(alive) is Verdict.SETTLED
    assert list(await harness.store.admin.force_unlock_workers(["dead"])) == []
    assert list(await harness.store.admin.force_unlock_workers([])) == []


@pytest.mark.parametrize("how", SETTLEMENTS)
async def test_a_live_worker_that_is_unlocked_is_fenced_out(harness: StoreHarness, how: str) -> None:
    lease = await harness.start(serial="q")
    await harness.store.admin.force_unlock_workers(["w1"])
    before = await harness.image(lease.job_id)
    assert await harness.settle(lease, SETTLEMENTS[how]) is Verdict.LOST
    assert (lease.job_id, lease.token) in (await harness.heartbeats.beat([lease], 30.0)).lost
    await harness.heartbeats.release([lease])
    assert await harness.image(lease.job_id) == before
    again = await harness.take()
    assert (again.job_id, again.epoch) == (lease.job_id, lease.epoch + 2)
    assert await harness.settle(lease, repeat=True) is Verdict.LOST
    assert await harness.settle(again) is Verdict.SETTLED


@pytest.mark.parametrize("ask", ["cancel", "remove_key"])
async def test_what_was_asked_to_go_is_canceled_when_its_worker_is_unlocked(harness: StoreHarness, ask: str) -> None:
    lease = await harness.start(key="k")
    await (harness.store.admin.cancel(lease.job_id) if ask == "cancel" else harness.store.admin.remove_key("k"))
    (changed,) = await harness.store.admin.force_unlock_workers(["w1"])
    assert (changed.id, changed.state, changed.finished_at) == (lease.job_id, X, harness.now)
    assert await harness.job(lease.job_id) == changed


async def test_what_was_canceled_so_is_given_back_where_no_history_is_kept(forgetful_harness: StoreHarness) -> None:
    lease = await forgetful_harness.start()
    await forgetful_harness.store.admin.cancel(lease.job_id)
    (changed,) = await forgetful_harness.store.admin.force_unlock_workers(["w1"])
    assert (changed.id, changed.state) == (lease.job_id, X)
    assert await forgetful_harness.store.jobs.get(lease.job_id) is None


@pytest.mark.parametrize(("max_attempts", "max_resets", "fatal"), [(25, None, 6), (25, 0, 1), (1, None, 1), (1, 2, 3)])
async def test_a_worker_that_is_unlocked_too_often_fails_its_job(
    harness: StoreHarness, max_attempts: int, max_resets: int | None, fatal: int
) -> None:
    job = await harness.add(max_attempts=max_attempts, max_resets=max_resets)
    for death in range(1, fatal + 1):
        await harness.take(suspects=death > 2)
        (changed,) = await harness.store.admin.force_unlock_workers(["w1"])
        assert changed.state is (F if death == fatal else Q)
    times = "1 time" if fatal == 1 else f"{fatal} times"
    dead = await harness.job(job.id)
    assert (dead.attempts, dead.resets, dead.finished_at) == (1, fatal, harness.now)
    assert dead.last_error == f"its worker died {times} while running it"


async def test_what_a_worker_held_whose_lease_has_ended_is_taken_back_too(harness: StoreHarness) -> None:
    lease = await harness.start(serial="q")
    await harness.pass_time(31)
    (changed,) = await harness.store.admin.force_unlock_workers(["w1"])
    assert (changed.id, changed.state, changed.resets) == (lease.job_id, Q, 1)
    assert await harness.settle(lease) is Verdict.LOST
    assert (await harness.take()).job_id == lease.job_id


# -- together -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["postpone", "use attempts", "unlock", "complete"])
async def test_jobs_that_became_claimable_wake_a_worker(harness: StoreHarness, name: str) -> None:
    other = await harness.another()
    if name in ("unlock", "complete"):
        job = await harness.start(serial="q")
        await harness.add("next", serial="q")
        await harness.pass_time(31 if name == "complete" else 0)
        act = (
            other.admin.complete_jobs([job.job_id]) if name == "complete" else other.admin.force_unlock_workers(["w1"])
        )
    else:
        waiting = await harness.add(delay=3600.0) if name == "postpone" else await harness.in_state(F)
        to = Reschedule(run_at=harness.now) if name == "postpone" else Reschedule(attempts=0)
        act = other.admin.reschedule_jobs([waiting.id], to)
    while await harness.store.wait(0.05):
        pass  # what was said before
    sleeping = asyncio.create_task(harness.store.wait(20.0))
    await asyncio.sleep(0)
    await act
    assert await sleeping
    assert await harness.claim()


async def test_of_several_who_act_on_one_job_only_one_completes_it(harness: StoreHarness) -> None:
    stores = [await harness.another() for _ in range(3)]
    for _ in range(5):
        job = await harness.add()
        answers = await asyncio.gather(*(store.admin.complete_jobs([job.id]) for store in stores))
        assert sorted(len(answer) for answer in answers) == [0, 0, 1]


async def test_an_administrator_and_a_claim_exclude_each_other(harness: StoreHarness) -> None:
    other = await harness.another()
    for _ in range(10):
        job = await harness.add()
        changed, claimed = await asyncio.gather(other.admin.permanently_fail_jobs([job.id]), harness.claim())
        assert len(changed) + len(claimed) == 1
        assert (await harness.job(job.id)).state is (F if changed else P)
        await other.admin.force_unlock_workers(["w1"])
        await other.admin.complete_jobs([job.id])


async def test_an_administrator_and_the_holder_of_an_expired_lease_exclude_each_other(harness: StoreHarness) -> None:
    other = await harness.another()
    for _ in range(10):
        lease = await harness.start()
        await harness.pass_time(31)
        changed, verdict = await asyncio.gather(
            other.admin.permanently_fail_jobs([lease.job_id]), harness.settle(lease)
        )
        state = (await harness.job(lease.job_id)).state
        if verdict is Verdict.SETTLED:
            assert (list(changed), state) == ([], C)
        else:
            assert verdict in (Verdict.LOST, Verdict.BUSY)
            assert ([job.id for job in changed], state) == ([lease.job_id], F)


@pytest.mark.parametrize("state", STATES)
async def test_others_are_left_alone(harness: StoreHarness, state: State) -> None:
    bystander = await harness.in_state(state, key="other", serial="q")
    image = await harness.image(bystander.id)
    job = await harness.add("t", key="k", serial="r")
    for to in (POSTPONED, ATTEMPTED):
        await harness.store.admin.reschedule_jobs([job.id], to)
    await harness.store.admin.permanently_fail_jobs([job.id])
    await harness.store.admin.complete_jobs([job.id])
    await harness.store.admin.force_unlock_workers(["w2"])
    assert await harness.image(bystander.id) == image


async def test_what_is_left_of_a_batch_survives_being_rescheduled(harness: StoreHarness) -> None:
    lease = await harness.start(payload="[1, 2, 3]")
    left: Settlement = judged(Retry("some failed", 60.0, "[2]"))
    await harness.settle(lease, left)
    (changed,) = await harness.store.admin.reschedule_jobs([lease.job_id], Reschedule(run_at=harness.now))
    assert payload_of(changed.payload_text) == [2]


async def test_an_administrator_enqueues_what_is_built_in_and_that_way_nothing_else(harness: StoreHarness) -> None:
    first = await harness.store.admin.add_built_in(
        NewJob(task=PURGE_TASK, payload='{"a": 1}', key="k", serial="q", priority=3)
    )
    assert (first.task, payload_of(first.payload_text), first.key, first.serial, first.priority) == (
        PURGE_TASK,
        {"a": 1},
        "k",
        "q",
        3,
    )
    later = harness.now + timedelta(hours=1)
    again = await harness.store.admin.add_built_in(NewJob(task=PURGE_TASK, key="k", run_at=later))
    assert (again.id, again.run_at, again.revision) == (first.id, later, 1)
    assert (await harness.store.admin.add_built_in(NewJob(task=PURGE_TASK))).max_attempts == 25
    with pytest.raises(InvalidJob, match="is not a built-in task"):
        await harness.store.admin.add_built_in(NewJob(task="t"))
    (claim,) = await harness.claim(tasks=(PURGE_TASK,))
    assert claim.record.task == PURGE_TASK


async def test_a_step_of_a_flow_is_not_completed_by_hand(harness: StoreHarness) -> None:
    """Its settlement would have enqueued the next queue's; completed without it, the flow would be over in silence."""
    step, other = await harness.add("f/q", key="flow:f:1"), await harness.add("f/q", key="flowers")
    admin = harness.store.admin
    assert [job.id for job in await admin.complete_jobs([step.id, other.id])] == [other.id]
    assert (await harness.job(step.id)).state is State.QUEUED
    (answer,) = await answers_of(harness.store, [step.id], lambda store, ids: store.admin.complete_jobs(ids))
    assert (answer.result, answer.reason.partition(";")[0]) == (ActionResult.REFUSED, "it is a step of a flow")
    await admin.permanently_fail_jobs([step.id])
    assert list(await admin.complete_jobs([step.id])) == []
    assert (await harness.job(step.id)).state is State.FAILED
