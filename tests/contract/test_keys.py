"""Job keys: one live job per key, and what each mode does with the job that holds it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import Job, KeyMode, NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, Settlement, with_state
from stowhand.protocols.queue_store import QueueStore, Reschedule
from stowhand.protocols.store import Verdict
from tests.contract.backends import payload_of
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, FAILED, SNOOZED, StoreHarness

pytestmark = needs("jobs")

REPLACE, PRESERVE, DEDUPE, UNIQUE = KeyMode
UPDATING = (REPLACE, PRESERVE)
WAITING = (State.QUEUED, State.ERRORED)


async def test_a_key_update_keeps_the_id_and_replaces_every_detail(harness: StoreHarness) -> None:
    old = await harness.add(
        "old", key="k", payload='{"n": 1}', serial="q", priority=5, max_attempts=3, max_resets=1, flags=("a",)
    )
    await harness.pass_time(5)
    run_at = harness.now + timedelta(hours=1)
    new = await harness.add(
        "new",
        key="k",
        payload='{"n": 2}',
        serial="r",
        priority=6,
        max_attempts=4,
        max_resets=2,
        flags=("b",),
        run_at=run_at,
    )
    assert (new.id, new.task, payload_of(new.payload_text), new.serial) == (old.id, "new", {"n": 2}, "r")
    assert (new.priority, new.max_attempts, new.max_resets, new.flags, new.run_at) == (6, 4, 2, ("b",), run_at)
    assert (new.revision, new.created_at, new.updated_at) == (1, old.created_at, harness.now)
    assert await harness.job(old.id) == new


@pytest.mark.parametrize("mode", UPDATING)
async def test_a_key_update_merges_nothing(harness: StoreHarness, mode: KeyMode) -> None:
    old = await harness.add(
        key="k", payload='{"n": 1}', serial="q", priority=5, max_attempts=3, max_resets=1, flags=("a",)
    )
    new = await harness.add("t", key="k", key_mode=mode)
    assert (new.id, payload_of(new.payload_text), new.serial, new.priority) == (old.id, {}, None, 0)
    assert (new.max_attempts, new.max_resets, new.flags) == (25, None, ())


async def test_preserve_run_at_keeps_the_time_of_a_job_that_was_never_tried(harness: StoreHarness) -> None:
    old = await harness.add(key="k", run_at=harness.now + timedelta(hours=1), payload='{"n": 1}')
    new = await harness.add(key="k", key_mode=PRESERVE, run_at=harness.now + timedelta(hours=2), payload='{"n": 2}')
    assert (new.id, new.run_at, payload_of(new.payload_text), new.revision) == (old.id, old.run_at, {"n": 2}, 1)


@pytest.mark.parametrize("mode", UPDATING)
async def test_a_key_update_of_a_job_waiting_for_its_retry_starts_over(harness: StoreHarness, mode: KeyMode) -> None:
    old = await harness.in_state(State.ERRORED, key="k")
    await harness.pass_time(5)
    new = await harness.add(key="k", key_mode=mode)
    assert (new.id, new.attempts, new.last_error, new.run_at) == (old.id, 0, None, harness.now)
    assert new.state in WAITING
    (claim,) = await harness.claim()
    assert (claim.lease.job_id, claim.attempts) == (old.id, 1)


async def test_preserve_run_at_of_a_tried_job_takes_the_new_time(harness: StoreHarness) -> None:
    await harness.in_state(State.ERRORED, key="k")
    run_at = harness.now + timedelta(hours=2)
    assert (await harness.add(key="k", key_mode=PRESERVE, run_at=run_at)).run_at == run_at


async def test_preserve_run_at_of_a_tried_job_that_was_handed_back_takes_the_new_time(harness: StoreHarness) -> None:
    job = await harness.in_state(State.ERRORED, key="k")
    await harness.pass_time(60)
    await harness.heartbeats.release([await harness.take()])
    back = await harness.job(job.id)
    assert (back.state, back.attempts) == (State.QUEUED, 1)
    await harness.pass_time(5)
    new = await harness.add(key="k", key_mode=PRESERVE)
    assert (new.id, new.run_at, new.attempts, new.last_error) == (job.id, harness.now, 0, None)


@pytest.mark.parametrize("mode", UPDATING)
async def test_a_failed_job_is_revived_by_its_key(harness: StoreHarness, mode: KeyMode) -> None:
    old = await harness.in_state(State.FAILED, key="k", payload='{"n": 1}', serial="q")
    await harness.pass_time(5)
    new = await harness.add(key="k", key_mode=mode, payload='{"n": 2}')
    assert (new.id, new.state, new.attempts, new.resets) == (old.id, State.QUEUED, 0, 0)
    assert (new.last_error, new.run_at, payload_of(new.payload_text)) == (None, harness.now, {"n": 2})
    assert (new.serial, new.finished_at, new.revision) == (None, None, 1)
    assert (await harness.take()).job_id == old.id


async def test_a_dead_killer_is_revived_by_its_key_without_its_resets(harness: StoreHarness) -> None:
    job = await harness.add(key="k", max_resets=0)
    await harness.lose(await harness.take())
    assert (await harness.job(job.id)).state is State.FAILED
    assert (await harness.add(key="k")).resets == 0
    assert (await harness.take()).job_id == job.id


@pytest.mark.parametrize("mode", UPDATING)
async def test_the_key_of_a_running_job_goes_to_a_second_job(harness: StoreHarness, mode: KeyMode) -> None:
    lease = await harness.start(key="k", payload='{"n": 1}')
    new = await harness.add("newer", key="k", key_mode=mode, payload='{"n": 2}')
    assert new.id != lease.job_id
    assert (new.key, new.state, new.revision) == ("k", State.QUEUED, 0)
    running = await harness.job(lease.job_id)
    assert (running.state, running.key, payload_of(running.payload_text)) == (State.PROCESSING, None, {"n": 1})
    assert await harness.settle(lease) is Verdict.SETTLED
    assert (await harness.job(lease.job_id)).state is State.COMPLETED


@pytest.mark.parametrize(
    ("settlement", "state"), [(ERRORED, State.FAILED), (FAILED, State.FAILED), (SNOOZED, State.QUEUED)]
)
async def test_a_running_job_that_lost_its_key_has_no_retries(
    harness: StoreHarness, settlement: object, state: State
) -> None:
    lease = await harness.start(key="k")
    await harness.add("newer", key="k")
    chosen = next(each for each in (ERRORED, FAILED, SNOOZED) if each is settlement)
    message = Verdict.SETTLED if chosen.state is state else with_state(chosen, state)
    assert await harness.settle(lease, chosen) == message
    job = await harness.job(lease.job_id)
    assert (job.state, job.last_error) == (state, chosen.error)
    assert (job.finished_at is not None) == (state is State.FAILED)


async def test_a_third_job_takes_the_key_from_the_second_while_both_run(harness: StoreHarness) -> None:
    leases = [await harness.start(task, key="k") for task in "abc"]
    keys = [(await harness.job(lease.job_id)).key for lease in leases]
    assert keys == [None, None, "k"]


@pytest.mark.parametrize("state", [State.COMPLETED, State.CANCELED])
@pytest.mark.parametrize("mode", KeyMode)
async def test_the_key_of_what_is_history_makes_a_new_job(harness: StoreHarness, state: State, mode: KeyMode) -> None:
    old = await harness.in_state(state, key="k")
    new = await harness.add(key="k", key_mode=mode)
    assert new.id != old.id
    assert (new.revision, new.state) == (0, State.QUEUED)
    assert (await harness.job(old.id)).state is state


@pytest.mark.parametrize("state", [State.QUEUED, State.ERRORED, State.PROCESSING, State.FAILED])
async def test_unsafe_dedupe_moves_only_the_revision_and_its_time(harness: StoreHarness, state: State) -> None:
    old = await harness.in_state(state, key="k", payload='{"n": 1}', run_at=harness.now)
    before = await harness.job(old.id)
    await harness.pass_time(5)
    got = await harness.add("other", key="k", key_mode=DEDUPE, payload='{"n": 2}', priority=9)
    assert (got.revision, got.updated_at) == (1, harness.now)
    assert same_but_touched(got, before)
    assert await harness.job(old.id) == got
    assert len(await harness.everything()) == 1


@pytest.mark.parametrize("state", [State.QUEUED, State.ERRORED, State.PROCESSING])
async def test_unique_gives_the_job_that_waits_or_runs_unchanged(harness: StoreHarness, state: State) -> None:
    old = await harness.in_state(state, key="k", payload='{"n": 1}', run_at=harness.now)
    before, image = await harness.job(old.id), await harness.image(old.id)
    await harness.pass_time(5)
    assert await harness.add("other", key="k", key_mode=UNIQUE, payload='{"n": 2}', priority=9) == before
    assert await harness.image(old.id) == image
    assert len(await harness.everything()) == 1


async def test_unique_revives_a_failed_job_once(harness: StoreHarness) -> None:
    old = await harness.in_state(State.FAILED, key="k", payload='{"n": 1}')
    await harness.pass_time(5)
    new = await harness.add(key="k", key_mode=UNIQUE, payload='{"n": 2}')
    assert (new.id, new.state, new.attempts, new.last_error) == (old.id, State.QUEUED, 0, None)
    assert (new.run_at, payload_of(new.payload_text), new.revision) == (harness.now, {"n": 2}, 1)
    assert await harness.add(key="k", key_mode=UNIQUE, payload='{"n": 3}') == new
    assert (await harness.take()).job_id == old.id


async def test_a_unique_key_may_come_twice_in_one_call(harness: StoreHarness) -> None:
    one, other = (NewJob(task="t", key=key, key_mode=UNIQUE) for key in "kl")
    plain = NewJob(task="t")
    first, _, again, last, _ = ids = await harness.store.jobs.enqueue_many([one, other, one, plain, one])
    assert ids == [first, ids[1], first, last, first]
    assert len(set(ids)) == 3
    jobs = await harness.store.jobs.add_jobs([one, one, plain])
    assert [job.id for job in jobs[:2]] == [again, again]
    with pytest.raises(InvalidJob, match="duplicate key 'k' in one call"):
        await harness.store.jobs.enqueue_many([one, NewJob(task="t", key="k")])


async def test_a_unique_key_names_one_live_job_while_it_is_run_and_fails(harness: StoreHarness) -> None:
    """I14: many producers, and workers that take the job from under them."""
    stores = [await harness.another() for _ in range(3)]
    wanted = NewJob(task="t", key="k", key_mode=UNIQUE, max_attempts=1)
    value: set[int] = set()

    async def produce(store: QueueStore) -> None:
        for _ in range(25):
            job = await store.jobs.enqueue(wanted)
            assert job.key == "k"
            value.add(job.id)

    producing = [asyncio.create_task(produce(store)) for store in stores]
    ran: list[int] = []
    while not all(task.done() for task in producing) or await harness.store.next_due(None) is not None:
        claims = await harness.claim(5)
        assert len(claims) <= 1, "at most one waits or runs"
        for claim in claims:
            ran.append(claim.lease.job_id)
            how = FAILED if len(ran) % 3 == 0 else COMPLETED
            while await harness.settle(claim.lease, how) is Verdict.BUSY:
                pass  # a producer looks at it just now
        await asyncio.sleep(0)
    await asyncio.gather(*producing)
    assert value == set(ran), "each job that was given has run"


def same_but_touched(one: Job, other: Job) -> bool:
    skipped = {"revision", "updated_at"}
    return all(getattr(one, name) == getattr(other, name) for name in Job.__struct_fields__ if name not in skipped)


async def test_revisions_count_every_mode(harness: StoreHarness) -> None:
    seen = []
    for mode, hours in ((REPLACE, 1), (PRESERVE, 2), (DEDUPE, 3), (REPLACE, 4)):
        start = harness.clock.pinned().replace(hour=0, minute=0)
        job = await harness.add(key="k", key_mode=mode, run_at=start + timedelta(hours=hours))
        seen.append((job.revision, job.run_at.hour))
    assert seen == [(0, 1), (1, 1), (2, 1), (3, 4)]


@pytest.mark.parametrize("mode", UPDATING)
async def test_arrays_are_appended_in_the_order_of_arrival(harness: StoreHarness, mode: KeyMode) -> None:
    first = await harness.add(key="k", payload="[1]")
    await harness.add(key="k", key_mode=mode, payload='[2, {"a": [3]}]')
    last = await harness.add(key="k", key_mode=mode, payload="[]")
    assert (last.id, payload_of(last.payload_text)) == (first.id, [1, 2, {"a": [3]}])


async def test_an_array_is_appended_to_a_job_that_waits_for_its_retry(harness: StoreHarness) -> None:
    await harness.in_state(State.ERRORED, key="k", payload="[1]")
    assert payload_of((await harness.add(key="k", payload="[2]")).payload_text) == [1, 2]


@pytest.mark.parametrize(("old", "new"), [("[1]", '{"n": 2}'), ('{"n": 1}', "[2]"), ("[1]", "2"), ('"[1]"', "[2]")])
async def test_anything_but_two_arrays_is_replaced(harness: StoreHarness, old: str, new: str) -> None:
    await harness.add(key="k", payload=old)
    assert payload_of((await harness.add(key="k", payload=new)).payload_text) == payload_of(new)


async def test_arrays_are_not_appended_to_what_runs_or_has_failed(harness: StoreHarness) -> None:
    await harness.in_state(State.PROCESSING, key="k", payload="[1]")
    assert payload_of((await harness.add("a", key="k", payload="[2]")).payload_text) == [2]
    await harness.settle(await harness.take(tasks=("a",)), FAILED)
    assert payload_of((await harness.add("a", key="k", payload="[3]")).payload_text) == [3]


async def test_arrays_that_grow_past_the_limit_are_refused_and_the_row_is_unchanged(harness: StoreHarness) -> None:
    half = '["' + "x" * 600_000 + '"]'
    job = await harness.add(key="k", payload=half)
    before = await harness.image(job.id)
    with pytest.raises(InvalidJob):
        await harness.add(key="k", payload=half, priority=3)
    assert await harness.image(job.id) == before


async def test_a_key_has_one_live_job_despite_simultaneous_enqueues(harness: StoreHarness) -> None:
    stores = [harness.store, await harness.another(), await harness.another()]
    jobs = await asyncio.gather(
        *(stores[n % 3].jobs.enqueue(element(n)) for n in range(24)),
    )
    assert len({job.id for job in jobs}) == 1
    assert sorted(job.revision for job in jobs) == list(range(24))
    (final,) = await harness.everything()
    assert final.revision == 23
    assert sorted(elements(final.payload_text)) == list(range(24))


def element(number: int) -> NewJob:
    return NewJob(task="t", key="k", payload=f"[{number}]")


def elements(payload: str) -> list[int]:
    numbers = payload_of(payload)
    assert isinstance(numbers, list)
    return numbers


async def test_no_payload_is_lost_while_the_keys_job_is_claimed_again_and_again(harness: StoreHarness) -> None:
    other = await harness.another()
    done: list[int] = []

    async def produce() -> None:
        for number in range(40):
            assert (await other.jobs.enqueue(element(number))).key == "k"

    producing = asyncio.create_task(produce())
    while not producing.done() or await harness.store.next_due(None) is not None:
        for claim in await harness.claim(5):
            done.extend(elements(claim.record.payload_text))
            while (verdict := await harness.settle(claim.lease)) is Verdict.BUSY:
                pass  # whose key is taken from it just now
            assert verdict is Verdict.SETTLED
        await asyncio.sleep(0)
    await producing
    assert sorted(done) == list(range(40))


async def test_keys_differ_by_case_and_space(harness: StoreHarness) -> None:
    ids = {(await harness.add(key=key)).id for key in ("k", "K", "k ", " k", "ķ", "k\u0327")}
    assert len(ids) == 6


@pytest.mark.parametrize("mode", UPDATING)
async def test_a_suspect_stays_one_when_its_key_comes_again(harness: StoreHarness, mode: KeyMode) -> None:
    """Else whoever adds a killer again and again takes every worker with it."""
    job = await harness.make_suspect(key="k")
    again = await harness.add(key="k", key_mode=mode)
    assert (again.id, again.resets) == (job.id, 2)
    assert list(await harness.claim()) == []
    assert (await harness.take(suspects=True)).job_id == job.id


@needs("admin")
@pytest.mark.parametrize("how", [ERRORED, FAILED])
async def test_a_replaced_job_that_fails_has_used_up_its_attempts(harness: StoreHarness, how: Settlement) -> None:
    """Its payload is old: a call that gives all jobs more attempts must not run it."""
    job = await harness.add(key="k")
    lease = await harness.take()
    await harness.add(key="k", delay=3600.0)
    assert (await harness.job(job.id)).attempts == 1, "what is shown is what is stored"
    await harness.settle(lease, how)
    failed = await harness.job(job.id)
    assert (failed.state, failed.attempts) == (State.FAILED, failed.max_attempts)
    await harness.store.admin.reschedule_jobs([job.id], Reschedule(max_attempts=failed.max_attempts))
    assert (await harness.job(job.id)).state is State.FAILED


async def test_a_replaced_job_whose_worker_died_too_often_has_used_up_its_attempts(harness: StoreHarness) -> None:
    job = await harness.add(key="k", max_resets=0)
    lease = await harness.take()
    await harness.add(key="k", delay=3600.0)
    await harness.lose(lease)
    failed = await harness.job(job.id)
    assert (failed.state, failed.attempts) == (State.FAILED, failed.max_attempts)
