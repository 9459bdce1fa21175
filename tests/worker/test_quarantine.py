"""Suspects run one at a time: in a child process, or in the worker's own, where nothing new is claimed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from stowhand.events import JobEnded, JobsReset, JobStarted
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import ChildCrashed, Isolate
from stowhand.protocols.store import Reply
from stowhand.testing import FakeClock
from tests.support.memory_rows import change
from tests.worker.worker_harness import FaultyStore, at_work, nothing, taking


async def with_suspect(clock: FakeClock, **details: object) -> FaultyStore:
    """A store with one job that was reset twice."""
    store = FaultyStore(clock)
    job = await store.jobs.enqueue(NewJob(task="suspect", **details))  # type: ignore[arg-type]
    change(store, job.id, resets=2)
    return store


async def with_suspects(clock: FakeClock, count: int) -> FaultyStore:
    """A store with jobs that were reset twice; the first has id 1."""
    store = FaultyStore(clock)
    for _ in range(count):
        job = await store.jobs.enqueue(NewJob(task="suspect"))
        change(store, job.id, resets=2)
    return store


def isolating(clock: FakeClock, seconds: float) -> Isolate:
    """A child process that takes so long for each job."""

    async def isolate(attempt: Attempt[Job]) -> object:
        await clock.sleep(seconds)
        return None

    return isolate


async def test_without_a_child_nothing_new_is_claimed_while_a_suspect_runs() -> None:
    clock = FakeClock()
    store = await with_suspect(clock)
    async with at_work({"act": nothing, "suspect": taking(clock, 10)}, clock=clock, store=store) as harness:
        await clock.advance(1)
        await harness.add("act", count=3)
        await clock.advance(8)
        assert [event.task for event in harness.events(JobStarted)] == ["suspect"]
        await clock.advance(2)
        assert [event.task for event in harness.events(JobEnded)] == ["suspect", "act", "act", "act"]


async def test_without_a_child_process_a_suspect_takes_the_next_free_slot() -> None:
    clock = FakeClock()
    store = await with_suspect(clock)
    jobs = [NewJob(task="act"), NewJob(task="act")]
    acts = {"act": taking(clock, 20), "suspect": nothing}
    async with at_work(acts, clock=clock, store=store, jobs=jobs, concurrency=3) as harness:
        await clock.advance(1)
        assert [event.task for event in harness.events(JobEnded)] == ["suspect"]
        assert harness.worker.running == 2


@pytest.mark.parametrize(("concurrency", "isolated"), [(1, False), (4, False), (1, True)])
async def test_suspects_and_other_jobs_take_turns(concurrency: int, isolated: bool) -> None:
    clock = FakeClock()
    store = await with_suspects(clock, 4)

    async def act(attempt: Attempt[Job]) -> None:
        await store.jobs.enqueue(NewJob(task="act"))
        await clock.sleep(0.5)

    jobs = [NewJob(task="act")] * 12
    acts = {"act": act, "suspect": taking(clock, 0.5)}
    isolate = isolating(clock, 0.5) if isolated else None
    async with at_work(acts, clock=clock, store=store, jobs=jobs, concurrency=concurrency, isolate=isolate) as harness:
        await clock.advance(5 + 4 * 1.5)
        tasks = [event.task for event in harness.events(JobStarted)]
        places = [place for place, task in enumerate(tasks) if task == "suspect"]
        assert len(places) == 4, "from the first on, which comes within five seconds, every other turn is theirs"
        assert all("act" in tasks[one:other] for one, other in pairwise(places)), tasks


async def test_with_a_child_one_slot_is_kept_for_suspects_while_any_is_due() -> None:
    clock = FakeClock()
    store = await with_suspects(clock, 40)

    async def act(attempt: Attempt[Job]) -> None:
        await store.jobs.enqueue(NewJob(task="act"))
        await clock.sleep(3)

    jobs = [NewJob(task="act")] * 20
    isolate = isolating(clock, 0.05)
    async with at_work({"act": act}, clock=clock, store=store, jobs=jobs, isolate=isolate) as harness:
        await clock.advance(5 + 3)
        assert [harness.row(job_id).state for job_id in (1, 2)] == [State.COMPLETED] * 2
        await clock.advance(4)
        assert all(harness.row(job_id).state is State.COMPLETED for job_id in range(1, 41))
        assert harness.worker.running == 4, "then the slot is for other jobs again"


async def test_without_a_child_process_jobs_claimed_ahead_are_returned_but_not_the_suspect() -> None:
    clock = FakeClock()
    store = await with_suspect(clock)

    async def act(attempt: Attempt[Job]) -> None:
        await store.jobs.enqueue(NewJob(task="act"))
        await clock.sleep(0.01)

    jobs = [NewJob(task="act")] * 200
    acts = {"act": act, "suspect": taking(clock, 20)}
    async with at_work(acts, clock=clock, store=store, jobs=jobs):
        await clock.advance(7)
        running = [row for row in store.rows() if row.state is State.PROCESSING]
        assert [row.task for row in running] == ["suspect"], "nothing else would be reset if it killed the process now"
        assert all(row.resets == 0 for row in store.rows() if row.task == "act")


async def test_an_idle_worker_runs_one_suspect_after_another() -> None:
    clock = FakeClock()

    class Slow(FaultyStore):
        async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
            await clock.sleep(0.1)  # meanwhile a claim is answered: the store has no other jobs
            return await super().settle(batch, repeat=repeat)

    store = Slow(clock)
    for _ in range(5):
        job = await store.jobs.enqueue(NewJob(task="suspect"))
        change(store, job.id, resets=2)
    async with at_work(nothing, clock=clock, store=store) as harness:
        await clock.advance(2)
        assert len(harness.events(JobEnded)) == 5
        claims = len(store.called("claim"))
        await clock.advance(5)
        assert len(store.called("claim")) <= claims + 4, "there is none left: it is not asked again and again"


async def test_once_does_not_end_before_a_suspect_has_had_its_turn() -> None:
    clock = FakeClock()
    store = await with_suspect(clock)
    acts = {"act": taking(clock, 15), "suspect": taking(clock, 30)}
    async with at_work(acts, clock=clock, store=store, jobs=[NewJob(task="act")], once=True) as harness:
        await harness.ended()
        assert [event.task for event in harness.events(JobEnded)] == ["act", "suspect"], "it ran beside the other"


async def test_with_a_child_a_suspect_runs_through_it_beside_the_others() -> None:
    clock = FakeClock()
    store = await with_suspect(clock)
    apart: list[str] = []

    async def isolate(attempt: Attempt[Job]) -> object:
        apart.append(attempt.record.task)
        await clock.sleep(5)
        return None

    acts = {"act": taking(clock, 20)}
    async with at_work(acts, clock=clock, store=store, jobs=[NewJob(task="act")], isolate=isolate) as harness:
        await clock.advance(6)
        assert apart == ["suspect"]
        assert (harness.row(1).state, harness.row(2).state) == (State.COMPLETED, State.PROCESSING)


async def test_with_a_child_a_suspect_does_not_starve_behind_endless_other_work() -> None:
    clock = FakeClock()
    store = await with_suspect(clock)

    async def isolate(attempt: Attempt[Job]) -> object:
        return None

    async def act(attempt: Attempt[Job]) -> None:
        await store.jobs.enqueue(NewJob(task="act"))
        await clock.sleep(0.5)

    jobs = [NewJob(task="act")] * 20
    async with at_work({"act": act}, clock=clock, store=store, jobs=jobs, isolate=isolate) as harness:
        await clock.advance(10)
        assert harness.row(1).state is State.COMPLETED


async def test_a_child_that_dies_counts_as_a_reset_until_the_job_fails_with_the_reason() -> None:
    clock = FakeClock()
    store = await with_suspect(clock, max_resets=4)
    runs = 0

    async def isolate(attempt: Attempt[Job]) -> object:
        nonlocal runs
        runs += 1
        await clock.sleep(1)
        raise ChildCrashed("killed by signal 9")

    async with at_work(nothing, clock=clock, store=store, isolate=isolate) as harness:
        await clock.advance(60)
        job = await harness.job(1)
        assert (runs, job.state, job.last_error) == (3, State.FAILED, "its worker died 5 times while running it")
        assert len(harness.events(JobsReset)) == 3
        assert harness.events(JobEnded) == []
        assert (await harness.does()).state is State.COMPLETED, "and the worker goes on"


async def test_a_child_that_we_stopped_ourselves_is_no_crash() -> None:
    clock = FakeClock()
    store = await with_suspect(clock)

    async def isolate(attempt: Attempt[Job]) -> object:
        try:
            await clock.sleep(100)
        except asyncio.CancelledError:
            raise ChildCrashed("it was killed, by us") from None
        return None

    async with at_work(nothing, clock=clock, store=store, isolate=isolate) as harness:
        await clock.advance(1)
        harness.worker.stop(now=True)
        await harness.ended()
        assert (harness.row(1).state, harness.row(1).attempts, harness.row(1).resets) == (State.QUEUED, 0, 2)


async def test_a_worker_continues_after_a_suspect_is_returned_unstarted() -> None:
    clock = FakeClock()
    store = await with_suspect(clock)

    class Hasty(FaultyStore):
        pass

    async with at_work({"act": nothing, "suspect": nothing}, clock=clock, store=store) as harness:
        leases = harness.worker._leases
        await clock.advance(30)
        change(store, (await store.jobs.enqueue(NewJob(task="suspect"))).id, resets=2)
        take = leases.take

        def take_and_give_back(*args: object, **kwargs: object) -> object:
            entered = take(*args, **kwargs)  # type: ignore[arg-type]
            if kwargs.get("suspects"):
                leases.take = take  # type: ignore[method-assign]
                harness.worker._heartbeater.return_jobs(leases.take_unstarted(float("inf")), "the loop was slow")
            return entered

        leases.take = take_and_give_back  # type: ignore[method-assign, assignment]
        await clock.advance(15)
        assert (await harness.does("act")).state is State.COMPLETED
        await clock.advance(15)
        assert harness.row(2).state is State.COMPLETED


async def test_an_idle_worker_claims_suspects_once_after_each_ordinary_claim() -> None:
    async def isolate(attempt: Attempt[Job]) -> object:
        return None

    async with at_work(nothing, isolate=isolate) as harness:
        await harness.clock.advance(100)
        calls = [request.suspects for request in harness.store.called("claim")]
        assert calls == [False, True] * (len(calls) // 2)
        assert len(calls) >= 20
