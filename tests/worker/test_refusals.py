"""An application that refuses how a job ends: told as recorded, tried by the rules, let go; never at others' cost."""

from __future__ import annotations

from stowhand.errors import NonRetryable
from stowhand.events import ChangeRefused, JobEnded, JobLost, JobsReset, StoreCallFailed
from stowhand.jobs.job import Job, State
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.protocols.attempt import Attempt
from stowhand.testing import FakeClock
from tests.support.memory_rows import allow, refuse
from tests.worker.worker_harness import FaultyStore, WorkerHarness, at_work, nothing, taking


def refusing(clock: FakeClock, *states: State) -> FaultyStore:
    """A store where a trigger keeps job 1, once it runs, from these states; none: from every change."""
    store = FaultyStore(clock)
    refuse(store, 1, *states)
    return store


def ends(harness: WorkerHarness) -> list[tuple[int, AttemptOutcome]]:
    return [(told.job_id, told.outcome) for told in harness.events(JobEnded)]


async def test_a_refused_end_is_an_error_of_the_attempt_and_tried_again_by_the_rules() -> None:
    store = refusing(clock := FakeClock(), State.COMPLETED)
    async with at_work(nothing, clock=clock, store=store) as harness:
        job = await harness.does()
        assert (job.state, job.attempts) == (State.ERRORED, 1)
        assert job.last_error == "its settlement could not be written: the store cannot write it: a trigger says no"
        assert ends(harness) == [(1, AttemptOutcome.RETRY)]
        assert harness.events(JobEnded)[0].error == job.last_error
        allow(store)
        await clock.advance(5)
        assert harness.row(1).state is State.COMPLETED


async def test_without_attempts_left_it_is_failed() -> None:
    store = refusing(clock := FakeClock(), State.COMPLETED)
    async with at_work(nothing, clock=clock, store=store) as harness:
        job = await harness.does(max_attempts=1)
        assert (job.state, ends(harness)) == (State.FAILED, [(1, AttemptOutcome.FAILED)])


async def test_if_the_retry_is_refused_too_the_job_fails_with_the_tasks_own_error_first() -> None:
    async def act(attempt: Attempt[Job]) -> None:
        raise NonRetryable("broken")

    store = refusing(clock := FakeClock(), State.FAILED)
    async with at_work(act, clock=clock, store=store) as harness:
        job = await harness.does()
        assert job.state is State.ERRORED
        assert job.last_error is not None
        assert job.last_error.startswith("stowhand.errors.NonRetryable: broken\n(its settlement could not be written")
    store = refusing(clock := FakeClock(), State.COMPLETED, State.ERRORED)
    async with at_work(nothing, clock=clock, store=store) as harness:
        assert (await harness.does()).state is State.FAILED
        assert ends(harness) == [(1, AttemptOutcome.FAILED)]


async def test_a_job_that_cannot_be_settled_is_left_to_its_lease_and_reported_once() -> None:
    store = refusing(clock := FakeClock())
    async with at_work(nothing, clock=clock, store=store, concurrency=6) as harness:
        await harness.add(count=6)
        await clock.advance(1)
        assert ends(harness) == [(number, AttemptOutcome.OK) for number in range(2, 7)]
        (lost,) = harness.events(JobLost)
        assert (lost.job_id, "refuses every settlement" in lost.reason) == (1, True)
        await clock.advance(120)
        assert harness.events(StoreCallFailed) == []
        assert [(told.job_id, told.operation) for told in harness.events(ChangeRefused)] == [(1, "reset")]
        await harness.does()
        assert ends(harness)[-1] == (7, AttemptOutcome.OK)
        allow(store)
        await clock.advance(120)
        assert [one.job_id for told in harness.events(JobsReset) for one in told.jobs] == [1]


async def test_a_beat_refused_for_one_job_renews_the_others() -> None:
    store = refusing(clock := FakeClock())
    async with at_work(taking(clock, 100), clock=clock, store=store, concurrency=3) as harness:
        await harness.add(count=3)
        await clock.advance(110)
        assert harness.events(StoreCallFailed) == []
        assert sorted(ends(harness)) == [(2, AttemptOutcome.OK), (3, AttemptOutcome.OK)]
        first = harness.events(ChangeRefused)[0]
        assert (first.job_id, first.operation) == (1, "beat")


async def test_a_refused_release_is_not_reported_as_returned_and_does_not_delay_the_stop() -> None:
    store = refusing(clock := FakeClock())
    async with at_work(taking(clock, 1000), clock=clock, store=store, concurrency=2, grace=1.0) as harness:
        await harness.add(count=2)
        await clock.advance(1)
        harness.worker.stop()
        assert await harness.ended() < 4
        assert (harness.row(1).state, harness.row(2).state) == (State.PROCESSING, State.QUEUED)
        assert [(told.job_id, told.operation) for told in harness.events(ChangeRefused)] == [(1, "release")]


async def test_a_job_that_lost_its_key_while_running_is_reported_as_failed() -> None:
    async def act(attempt: Attempt[Job]) -> None:
        await clock.sleep(5)
        raise ValueError("no")

    store = FaultyStore(clock := FakeClock())
    async with at_work(act, clock=clock, store=store) as harness:
        await harness.add(key="k")
        await clock.advance(1)
        await harness.add(key="k", delay=1000.0)
        await clock.advance(5)
        assert (harness.row(1).state, ends(harness)) == (State.FAILED, [(1, AttemptOutcome.FAILED)])
