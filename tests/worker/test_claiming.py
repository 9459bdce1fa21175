"""How many jobs a worker takes, when, and how long it sleeps when there are none."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stowhand.errors import StoreUnreachable
from stowhand.events import JobEnded, JobsReturned, StoreCallFailed, StoreRecovered
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import Retry, Snooze
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import ClaimRequest
from stowhand.testing import FakeClock
from stowhand.worker.claimer import RECHECK_DELAYS_SECONDS
from stowhand.worker.worker import Worker
from tests.worker.worker_harness import FaultyStore, WorkerHarness, at_work, handler_of, nothing, taking


def held(harness: WorkerHarness) -> int:
    """Jobs that the worker holds just now."""
    return sum(row.state is State.PROCESSING for row in harness.store.rows())


def limits(harness: WorkerHarness) -> list[int]:
    """How many each ordinary claim asked for."""
    return [asked.limit for asked in harness.store.called("claim") if not asked.suspects]


# -- how many --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(
    concurrency=st.integers(1, 49),
    durations=st.lists(st.sampled_from([0, 0.001, 0.05, 0.4, 1.7, 9.0]), min_size=1, max_size=80),
)
def test_never_more_handlers_run_than_may(concurrency: int, durations: list[float]) -> None:
    most = now = 0

    async def story() -> None:
        clock = FakeClock()

        async def act(attempt: Attempt[Job]) -> None:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await clock.sleep(durations[attempt.record.id - 1])
            now -= 1

        async with at_work(act, clock=clock, concurrency=concurrency) as harness:
            await harness.add(count=len(durations))
            await clock.advance(9.0 * math.ceil(len(durations) / concurrency) + 2)
            assert len(harness.events(JobEnded)) == len(durations)

    asyncio.run(asyncio.wait_for(story(), 60))
    assert most <= concurrency


async def test_before_a_rate_is_measured_nothing_is_taken_ahead() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock, concurrency=3) as harness:
        await harness.add(count=50)
        await clock.advance(900)
        assert held(harness) == 3
        assert max(limits(harness)) == 3


async def test_a_slow_handler_hoards_nothing() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 5), clock=clock, concurrency=4) as harness:
        await harness.add(count=200)
        for _ in range(60):
            await clock.advance(1)
            assert held(harness) <= 5


async def test_slow_handlers_that_end_together_do_not_raise_the_rate() -> None:
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> None:
        await clock.sleep(10 + attempt.record.id % 2 / 1000)

    async with at_work(act, clock=clock, concurrency=49) as harness:
        await harness.add(count=400)
        await clock.advance(25)
        assert max(limits(harness)) <= 49 + 49 * 0.25 / 10


async def test_handlers_that_share_one_processor_are_counted_by_the_clock() -> None:
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> None:
        clock._elapsed += 0.01  # ten milliseconds without letting go of the loop

    async with at_work(act, clock=clock, concurrency=49) as harness:
        await harness.add(count=600)
        await clock.advance(10)
        assert len(harness.events(JobEnded)) == 600
        assert max(limits(harness)) <= 49 + 25


async def test_a_fast_handler_has_a_quarter_of_a_second_of_work_ahead_at_most() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 0.1), clock=clock, concurrency=4) as harness:
        await harness.add(count=600)
        await clock.advance(8)
        assert 4 < max(limits(harness)) <= 4 + 40 * 0.25, "forty a second: ten of them ahead, no more"


async def test_never_more_than_five_hundred_are_ahead() -> None:
    async with at_work(nothing, concurrency=4) as harness:
        await harness.add(count=3000)
        await harness.clock.advance(1)
        assert len(harness.events(JobEnded)) == 3000
        assert 500 <= max(limits(harness)) <= 4 + 500, "asked for when half of them are left"


async def test_the_next_are_claimed_while_half_of_those_ahead_are_still_there() -> None:
    async with at_work(nothing, concurrency=4) as harness:
        await harness.add(count=6_000)
        await harness.clock.advance(1)
        request = sorted(limits(harness))
        assert request[len(request) // 2] <= 4 + 500 + 1, (
            "handlers that never wait would keep the loop until all are gone"
        )


async def test_nothing_is_ahead_when_the_options_say_so() -> None:
    async with at_work(nothing, concurrency=4, look_ahead=0) as harness:
        await harness.add(count=500)
        await harness.clock.advance(1)
        assert max(limits(harness)) == 4


async def test_jobs_not_started_within_a_second_are_returned_without_using_an_attempt() -> None:
    clock = FakeClock()
    slow = False

    async def act(attempt: Attempt[Job]) -> None:
        if slow:
            await clock.sleep(100)

    async with at_work(act, clock=clock, concurrency=2) as harness:
        await harness.add(count=500)
        await clock.settle()
        slow = True
        await harness.add(count=500)
        await clock.settle()
        assert held(harness) > 50, "it had reason to look ahead"
        await clock.advance(1.05)
        assert held(harness) == 2
        assert {event.reason for event in harness.events(JobsReturned)} == {
            "claimed ahead and not started within a second"
        }
        waiting = [row for row in harness.store.rows() if row.state is State.QUEUED]
        assert {(row.attempts, row.resets) for row in waiting} == {(0, 0)}
        await clock.advance(20)
        assert len(harness.events(JobsReturned)) == 1, "and it does not take them again meanwhile"


async def test_of_a_serial_queue_one_job_at_most_is_held_and_the_next_follows_at_once() -> None:
    clock = FakeClock()
    order: list[int] = []

    async def act(attempt: Attempt[Job]) -> None:
        order.append(attempt.record.id)
        await clock.sleep(1)

    async with at_work(act, clock=clock, concurrency=4) as harness:
        await harness.add(count=5, serial="q")
        for second in range(5):
            await clock.advance(0.5)
            assert (held(harness), len(order)) == (1, second + 1)
            await clock.advance(0.5)
        assert order == [1, 2, 3, 4, 5]


async def test_a_thousand_unrecorded_jobs_are_enough() -> None:
    async with at_work(nothing, concurrency=4) as harness:
        await harness.add(count=3000)
        harness.store.down.add("settle")
        await harness.clock.advance(60)
        assert held(harness) <= 1000 + 504
        harness.store.down.clear()
        await harness.clock.advance(10)
        assert len(harness.events(JobEnded)) == 3000


async def test_one_locked_row_does_not_stop_the_taking_after_a_full_backlog() -> None:
    async with at_work(nothing, concurrency=4) as harness:
        harness.store.locked.add(1)
        await harness.add(count=3000)
        harness.store.down.add("settle")
        await harness.clock.advance(60)
        harness.store.down.clear()
        await harness.clock.advance(10)
        assert len(harness.events(JobEnded)) == 2999


# -- when ------------------------------------------------------------------------------------------


async def test_a_store_without_wake_ups_is_polled_and_reported_once() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    store.is_listening = False
    async with at_work(nothing, store=store, clock=clock) as harness:
        await clock.advance(60)
        assert [trouble.operation for trouble in harness.events(StoreCallFailed)] == ["listen"]
        assert "polling" in harness.events(StoreCallFailed)[0].error
        store.is_listening = True
        await clock.advance(60)
        assert [recovered.operation for recovered in harness.events(StoreRecovered)] == ["listen"]


async def test_an_idle_worker_without_wake_ups_polls_every_two_seconds() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    store.is_listening = False
    store.down.add("wait")
    async with at_work(nothing, clock=clock, store=store) as harness:
        store.calls.clear()
        await clock.advance(20)
        assert len(limits(harness)) == 10


async def test_polls_are_rarer_while_wake_ups_arrive_but_keep_the_set_interval() -> None:
    for given_interval, polls in ((None, 2), (4.0, 5)):
        async with at_work(nothing, poll_interval=given_interval) as harness:
            harness.store.calls.clear()
            await harness.clock.advance(20)
            assert len(limits(harness)) == polls


async def test_an_enqueued_job_is_started_at_once_by_a_sleeping_worker() -> None:
    async with at_work(nothing) as harness:
        await harness.clock.advance(3)
        assert (await harness.does()).state is State.COMPLETED


async def test_a_woken_worker_claims_before_it_waits_again() -> None:
    async with at_work(nothing) as harness:
        await harness.clock.advance(3)
        harness.store.calls.clear()
        await harness.does()
        called = [name for name, _, _ in harness.store.calls if name in ("claim", "wait")]
        assert called[:2] == ["claim", "wait"], "what the next wait costs is not on the way of the job"


async def test_what_waits_when_a_worker_starts_is_taken_without_a_moments_wait() -> None:
    async with at_work(nothing, jobs=[NewJob(task="act")]) as harness:
        assert (await harness.job(1)).state is State.COMPLETED
        assert harness.clock.monotonic() == harness.store.moments("claim")[0]


async def test_wake_ups_while_every_slot_is_busy_are_not_lost() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1), clock=clock, concurrency=4, look_ahead=0) as harness:
        await harness.add(count=4)
        await clock.settle()
        for _ in range(100):
            await harness.add()
        assert held(harness) == 4
        await clock.advance(104 / 4 + 0.5)
        assert len(harness.events(JobEnded)) == 104


async def test_a_retry_that_falls_due_before_the_poll_is_taken_in_time() -> None:
    async def act(attempt: Attempt[Job]) -> object:
        return Retry("again", delay=3.3)

    async with at_work(act) as harness:
        job = await harness.does(seconds=3.2)
        assert job.attempts == 1
        await harness.clock.advance(0.11)
        assert (await harness.job(job.id)).attempts == 2


async def test_a_job_enqueued_for_later_is_taken_in_time() -> None:
    async with at_work(nothing) as harness:
        job = await harness.does(seconds=4.9, delay=5.0)
        assert job.state is State.QUEUED
        await harness.clock.advance(0.11)
        assert (await harness.job(job.id)).state is State.COMPLETED


async def test_what_is_due_but_was_refused_is_polled_without_stretch_and_without_haste() -> None:
    async with at_work(nothing, forbidden_flags=("gpu",)) as harness:
        await harness.add(flags=("gpu",))
        await harness.clock.advance(sum(RECHECK_DELAYS_SECONDS))
        harness.store.calls.clear()
        await harness.clock.advance(20)
        assert 9 <= len(limits(harness)) <= 11


@pytest.mark.parametrize("rechecks", [1, 2, 3])
async def test_a_woken_worker_rechecks_for_a_due_job_whose_row_is_locked(rechecks: int) -> None:
    async with at_work(nothing) as harness:
        await harness.clock.advance(3)
        harness.store.passed_over.add(1)
        await harness.add()
        await harness.clock.advance(sum(RECHECK_DELAYS_SECONDS[: rechecks - 1]))
        harness.store.passed_over.clear()
        assert (await harness.job(1)).state is State.QUEUED
        await harness.clock.advance(RECHECK_DELAYS_SECONDS[rechecks - 1])
        assert (await harness.job(1)).state is State.COMPLETED


async def test_a_job_whose_row_is_locked_when_it_falls_due_is_rechecked() -> None:
    async with at_work(nothing) as harness:
        harness.store.passed_over.add(1)
        await harness.add(delay=5.0)
        await harness.clock.advance(5.005)
        harness.store.passed_over.clear()
        await harness.clock.advance(RECHECK_DELAYS_SECONDS[0])
        assert (await harness.job(1)).state is State.COMPLETED


async def test_a_job_whose_row_is_locked_is_rechecked_after_its_neighbour_was_claimed() -> None:
    async with at_work(nothing) as harness:
        await harness.clock.advance(3)
        harness.store.passed_over.add(2)
        await harness.store.jobs.enqueue_many([NewJob(task="act"), NewJob(task="act")])
        await harness.clock.settle()
        harness.store.passed_over.clear()
        assert (await harness.job(1)).state is State.COMPLETED
        assert (await harness.job(2)).state is State.QUEUED
        await harness.clock.advance(RECHECK_DELAYS_SECONDS[0])
        assert (await harness.job(2)).state is State.COMPLETED


async def test_rechecks_end_until_the_next_wake_up() -> None:
    async with at_work(nothing) as harness:
        harness.store.passed_over.add(1)
        await harness.add()
        await harness.clock.advance(3)
        harness.store.calls.clear()
        await harness.clock.advance(20)
        assert len(limits(harness)) == 10, "one for each poll"
        harness.worker.wake()
        await harness.clock.advance(1)
        assert len(limits(harness)) == 10 + 1 + len(RECHECK_DELAYS_SECONDS)


async def test_a_woken_worker_for_which_nothing_is_due_does_not_recheck() -> None:
    async with at_work(nothing) as harness:
        await harness.add(delay=60.0)
        await harness.clock.advance(3)
        harness.store.calls.clear()
        harness.worker.wake()
        await harness.clock.advance(1)
        assert (len(limits(harness)), len(harness.store.called("next_due"))) == (1, 1)


async def test_once_rechecks_before_it_leaves_a_due_job() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    store.passed_over.add(1)
    async with at_work(nothing, clock=clock, store=store, jobs=[NewJob(task="act")], once=True) as harness:
        assert not harness.ending.done()
        store.passed_over.clear()
        await harness.ended()
        assert [row.state for row in store.rows()] == [State.COMPLETED]


async def test_a_wake_up_during_a_claim_is_not_slept_through() -> None:
    async with at_work(nothing) as harness:
        harness.store.gates["claim"] = asyncio.Event()
        await harness.clock.advance(10)
        job_id = await harness.add()  # the claim on its way has already looked
        await harness.clock.settle()
        harness.store.gates.pop("claim").set()
        await harness.clock.settle()
        assert (await harness.job(job_id)).state is State.COMPLETED


async def test_a_wake_up_while_the_next_due_time_is_asked_is_not_slept_through() -> None:
    async with at_work(nothing) as harness:
        harness.store.gates["next_due"] = asyncio.Event()
        await harness.clock.advance(10)
        job_id = await harness.add()
        harness.store.gates.pop("next_due").set()
        await harness.clock.settle()
        assert (await harness.job(job_id)).state is State.COMPLETED


async def test_handlers_that_end_do_not_make_an_idle_worker_ask_again() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 3), clock=clock, concurrency=10) as harness:
        await harness.add(count=5)
        await clock.advance(1)
        harness.store.calls.clear()
        await clock.advance(3)
        assert len(harness.events(JobEnded)) == 5
        assert (limits(harness), harness.store.called("next_due")) == ([], [])


async def test_a_fast_handler_with_a_hundred_ahead_gives_the_loop_its_turn() -> None:
    """Each job takes a millisecond of processor time; the clock moves under the handler's feet."""
    clock = FakeClock()
    longest = 0
    since = 0

    async def act(attempt: Attempt[Job]) -> None:
        nonlocal longest, since
        since += 1
        longest = max(longest, since)
        clock._elapsed += 0.001

    async def others() -> None:
        nonlocal since
        while True:
            since = 0
            await asyncio.sleep(0)

    async with at_work(act, clock=clock, concurrency=4) as harness:
        turning = asyncio.ensure_future(others())
        await harness.store.jobs.enqueue_many([NewJob(task="act")] * 1000)
        while len(harness.events(JobEnded)) < 1000:  # noqa: ASYNC110 - the turns of the loop are the point
            await asyncio.sleep(0)
        turning.cancel()
        assert max(limits(harness)) > 50
        assert longest <= 6
        harness.worker.stop()
        await harness.ended()


# -- trouble ---------------------------------------------------------------------------------------


async def test_a_claim_without_a_reply_is_abandoned_and_its_jobs_use_no_attempt() -> None:
    async with at_work(nothing) as harness:
        harness.store.mute.append("claim")
        job = await harness.does(seconds=1)
        first = next(asked.token for asked in harness.store.called("claim")[::-1][1:])
        assert harness.store.called("abandon")
        assert first is not None
        assert (job.state, job.attempts) == (State.COMPLETED, 1)
        assert [event.operation for event in harness.events(StoreCallFailed)] == ["claim"]
        assert [event.operation for event in harness.events(StoreRecovered)] == ["claim"]


async def test_after_a_lost_claim_the_worker_beats_before_it_claims_again() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 100), clock=clock, lease=300.0) as harness:
        await harness.add()
        await clock.advance(1)
        harness.store.mute.append("claim")
        harness.store.down.add("beat")
        await harness.add()
        await clock.settle()
        assert limits(harness)[-1] > 0
        harness.store.calls.clear()
        await clock.advance(6)
        assert limits(harness) == []
        harness.store.down.clear()
        await clock.advance(3)
        assert harness.worker.running == 2
        beats = len(harness.store.called("beat"))
        await clock.advance(20)
        assert len(harness.store.called("beat")) == beats, "one good beat was enough"


async def test_an_outage_of_days_ends_with_a_claim_within_seconds() -> None:
    async with at_work(nothing) as harness:
        everything = {"claim", "settle", "next_due", "wait", "beat", "release", "foreign", "abandon"}
        harness.store.down |= everything
        job_id = await harness.add()
        await harness.clock.advance(2 * 3600)  # more than 1024 failures: their power of two is not a float any more
        assert len(limits(harness)) > 1030
        harness.store.down.clear()
        await harness.clock.advance(6)
        assert (await harness.job(job_id)).state is State.COMPLETED
        assert {event.operation for event in harness.events(StoreRecovered)} >= {"claim", "listen", "beat"}


async def test_dead_tokens_do_not_pile_up_without_bound_in_an_outage() -> None:
    async with at_work(nothing) as harness:
        harness.store.down |= {"claim", "abandon"}
        await harness.add()
        await harness.clock.advance(3600)
        assert len(harness.store.called("claim")) > 200
        assert harness.worker._state.pending_calls <= 100
        harness.store.down.clear()
        await harness.clock.advance(10)
        assert harness.worker._state.pending_calls == 0


# -- once ------------------------------------------------------------------------------------------


async def test_once_ends_when_nothing_can_be_claimed_for_some_twenty_seconds() -> None:
    """A standby, or a server that is gone, is not a reason to go on for ever; a short outage is none to end."""
    clock = FakeClock()
    for outage, ends in ((10, False), (40, True)):
        store = FaultyStore(clock)
        await store.jobs.enqueue(NewJob(task="act"))
        store.down.add("claim")
        worker = Worker(store, handler_of(nothing), WorkerOptions(name="w", once=True), clock=clock)
        running = asyncio.create_task(worker.run())
        await clock.advance(outage)
        store.down.clear()
        await clock.advance(60)
        assert running.done()
        if ends:
            with pytest.raises(StoreUnreachable):
                await running
        else:
            await running
        assert (await store.inspect.counts())[State.QUEUED] == int(ends)


async def test_once_ends_when_everything_is_drained_and_leaves_what_waits() -> None:
    async def parent(attempt: Attempt[Job]) -> None:
        for _ in range(3):
            await store.jobs.enqueue(NewJob(task="child"))

    async def child(attempt: Attempt[Job]) -> None:
        attempt.then.append(NewJob(task="grandchild"))
        await clock.sleep(2)

    async def errs(attempt: Attempt[Job]) -> None:
        raise ValueError("no")

    async def snoozes(attempt: Attempt[Job]) -> object:
        return Snooze(60)

    acts: dict[str, Any] = {"parent": parent, "child": child, "grandchild": nothing, "errs": errs, "snoozes": snoozes}
    clock = FakeClock()
    store = FaultyStore(clock)
    jobs = [NewJob(task=name) for name in ("parent", "errs", "snoozes")]
    jobs += [NewJob(task="parent", serial="q"), NewJob(task="parent", serial="q"), NewJob(task="errs", delay=900.0)]
    async with at_work(acts, clock=clock, store=store, jobs=jobs, once=True, concurrency=2) as harness:
        await harness.ended()
        states = {row.id: (row.task, row.state) for row in store.rows()}
        done = [task for task, state in states.values() if state is State.COMPLETED]
        assert sorted(done) == ["child"] * 9 + ["grandchild"] * 9 + ["parent"] * 3
        left = [(task, state) for task, state in states.values() if state is not State.COMPLETED]
        assert sorted(left) == [("errs", State.ERRORED), ("errs", State.QUEUED), ("snoozes", State.QUEUED)]


async def test_once_on_an_empty_store_ends_at_once() -> None:
    async with at_work(nothing, once=True) as harness:
        await harness.ended(timeout=0.5)


async def test_once_does_not_wait_for_jobs_of_other_workers() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    await store.jobs.enqueue(NewJob(task="act", serial="q"))
    await store.claim(ClaimRequest(worker="other", token="t", limit=1, lease=1000.0))
    async with at_work(nothing, clock=clock, store=store, jobs=[NewJob(task="act", serial="q")], once=True) as harness:
        await harness.ended(timeout=5)
        assert sorted(row.state for row in store.rows()) == [State.PROCESSING, State.QUEUED]


async def test_once_claims_again_if_jobs_were_returned_meanwhile() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    slow = 450
    """Those before it are quick, and a reason to look ahead."""

    async def hears_nothing(timeout: float) -> bool:
        await clock.sleep(timeout)
        return False

    store.wait = hears_nothing  # type: ignore[method-assign]

    async def act(attempt: Attempt[Job]) -> None:
        if attempt.lease.job_id == slow:
            store.down.add("release")
            await clock.sleep(5)

    jobs = [NewJob(task="act")] * 500
    async with at_work(act, clock=clock, store=store, jobs=jobs, once=True, concurrency=1) as harness:
        await clock.advance(3)
        store.gates["claim"] = asyncio.Event()
        harness.worker.wake()
        await clock.advance(3)
        assert harness.worker._state.pending_calls
        assert not harness.worker.running, "it looks, and has found nothing: what is left it holds itself"
        store.down.clear()
        await clock.advance(6)
        assert harness.events(JobsReturned)
        assert not harness.worker._state.pending_calls
        store.gates.pop("claim").set()
        await harness.ended()
        assert {row.state for row in store.rows()} == {State.COMPLETED}


async def test_once_looks_again_when_a_job_ended_while_it_looked() -> None:
    """What the end has enqueued, the look that began before it has not seen."""
    clock = FakeClock()
    store = FaultyStore(clock)

    async def hears_nothing(timeout: float) -> bool:
        await clock.sleep(timeout)
        return False

    store.wait = hears_nothing  # type: ignore[method-assign]

    async def fails(attempt: Attempt[Job]) -> None:
        await clock.sleep(5)
        raise ValueError("no")

    jobs = [NewJob(task="fails", max_attempts=1, on_failure=NewJob(task="told"))]
    acts = {"fails": fails, "told": nothing}
    async with at_work(acts, clock=clock, store=store, jobs=jobs, once=True, concurrency=2) as harness:
        await clock.advance(3)
        store.gates["claim"] = asyncio.Event()
        harness.worker.wake()
        await clock.advance(3)
        store.gates.pop("claim").set()
        await harness.ended()
        assert {row.task: row.state for row in store.rows()} == {"fails": State.FAILED, "told": State.COMPLETED}


async def test_once_waits_for_a_settlement_that_is_busy() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    store.locked.add(1)
    async with at_work(nothing, clock=clock, store=store, jobs=[NewJob(task="act")], once=True) as harness:
        await clock.advance(5)
        assert not harness.ending.done()
        store.locked.clear()
        await harness.ended(timeout=5)
        assert [row.state for row in store.rows()] == [State.COMPLETED]


@pytest.mark.parametrize("beat", [1.1, 10.0])
def test_a_beat_of_a_third_of_the_lease_is_allowed(beat: float) -> None:
    from stowhand.protocols.options import WorkerOptions

    assert WorkerOptions(heartbeat_interval=beat, lease=3.3 if beat == 1.1 else 30.0).every_beat == beat
