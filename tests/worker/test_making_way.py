"""A suspect that no child can be made for waits ten seconds at most behind other work: then a worker makes way."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from itertools import pairwise

import pytest

from stowhand.events import DrainEnded, DrainStarted, JobEnded, JobStarted
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import may_make_way
from stowhand.protocols.handler import Attempt
from stowhand.protocols.store import ClaimRequest
from stowhand.testing import FakeClock
from tests.worker.worker_harness import Act, FaultyStore, WorkerHarness, at_work, nothing, taking


async def with_suspects(clock: FakeClock, count: int = 1) -> FaultyStore:
    """A store with jobs that were reset twice; the first has id 1."""
    store = FaultyStore(clock)
    for _ in range(count):
        job = await store.jobs.enqueue(NewJob(task="suspect"))
        store._rows.live[job.id].resets = 2
    return store


def endless(store: FaultyStore, clock: FakeClock, seconds: float) -> Act:
    """A handler that leaves another job behind. Some take longer, so that they do not all end at one moment."""

    async def act(attempt: Attempt[Job]) -> None:
        await store.jobs.enqueue(NewJob(task="act"))
        await clock.sleep(seconds * (1 + attempt.record.id % 4 / 10))

    return act


def started(harness: WorkerHarness, task: str) -> int:
    return sum(event.task == task for event in harness.events(JobStarted))


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("seconds", [0.3, 3.0])
async def test_behind_steady_work_it_runs_alone_ten_seconds_after_it_could_at_the_latest(
    concurrency: int, seconds: float
) -> None:
    clock = FakeClock()
    store = await with_suspects(clock)
    together: list[int] = []

    async def suspect(attempt: Attempt[Job]) -> None:
        for _ in range(4):
            together.append(harness.worker.running)
            await clock.sleep(0.5)

    acts = {"act": endless(store, clock, seconds), "suspect": suspect}
    jobs = [NewJob(task="act")] * (concurrency + 3)
    async with at_work(acts, clock=clock, store=store, jobs=jobs, concurrency=concurrency) as harness:
        await clock.advance(10 + 1.5 * seconds)
        assert set(together) == {1}
        (begun,), (over,) = harness.events(DrainStarted), harness.events(DrainEnded)
        assert (begun.job_id, begun.task, begun.resets, begun.patience) == (1, "suspect", 2, 30.0)
        assert begun.running <= concurrency - 1, "it was claimed for a slot that had fallen free"
        assert (over.job_id, over.beside) == (1, 0)
        assert over.seconds <= 1.5 * seconds
        await clock.advance(6)
        assert (await harness.job(1)).state is State.COMPLETED
        before = started(harness, "act")
        await clock.advance(3 * seconds)
        assert started(harness, "act") > before, "and then the others go on"
        assert harness.row(1).attempts == 1


async def test_behind_a_job_that_takes_longer_than_a_lease_it_waits_for_one_lease_and_runs_beside_it() -> None:
    clock = FakeClock()
    store = await with_suspects(clock)
    acts = {"act": taking(clock, 1000), "suspect": nothing}
    async with at_work(acts, clock=clock, store=store, jobs=[NewJob(task="act")], lease=12.0) as harness:
        await clock.advance(10)
        assert (started(harness, "suspect"), harness.row(1).state) == (0, State.PROCESSING)
        await harness.add("act")
        await clock.advance(7)
        assert started(harness, "act") == 1, "nothing is taken meanwhile"
        await clock.advance(4)
        assert harness.row(1).resets == 0, "it was renewed while it waited, and has settled"
        assert (await harness.job(1)).state is State.COMPLETED
        (over,) = harness.events(DrainEnded)
        assert over.seconds == pytest.approx(12.0)
        assert over.beside == 1
        assert started(harness, "act") == 2


async def test_it_is_never_given_a_slot_beyond_those_there_are() -> None:
    clock = FakeClock()
    store = await with_suspects(clock)
    acts = {"act": taking(clock, 40), "suspect": nothing}
    jobs = [NewJob(task="act")] * 2
    async with at_work(acts, clock=clock, store=store, jobs=jobs, concurrency=2) as harness:
        await clock.advance(39)
        assert harness.row(1).attempts == 0, "no slot is free: it stays for whoever has one"
        await clock.advance(3)
        assert started(harness, "suspect") == 1


async def test_where_nothing_suspect_waits_a_busy_worker_asks_every_five_seconds_and_loses_nothing() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    jobs = [NewJob(task="act")] * 6
    async with at_work({"act": endless(store, clock, 0.2)}, clock=clock, store=store, jobs=jobs) as harness:
        await clock.advance(60)
        asked = [moment for name, moment, request in store.calls if name == "claim" and request.suspects]
        assert 9 <= len(asked) <= 13
        assert all(later - earlier >= 5 for earlier, later in pairwise(asked))
        assert len(harness.events(JobEnded)) >= 0.95 * 60 / 0.23 * 4


async def test_between_two_others_get_at_least_as_long() -> None:
    clock = FakeClock()
    store = await with_suspects(clock, 3)
    acts = {"act": endless(store, clock, 0.5), "suspect": taking(clock, 8)}
    jobs = [NewJob(task="act")] * 8
    async with at_work(acts, clock=clock, store=store, jobs=jobs) as harness:
        await clock.advance(70)
        begun = [event for event in harness.events(JobStarted) if event.task == "suspect"]
        assert len(begun) == 3
        assert started(harness, "act") >= 0.45 * 70 / 0.5 * 4, "half of the time at least"


async def test_what_was_claimed_ahead_goes_back_and_not_the_suspect() -> None:
    clock = FakeClock()
    store = await with_suspects(clock)
    store._rows.live[1].run_at = clock.now().replace(year=2031)
    quick = [NewJob(task="quick")] * 400

    async def quickly(attempt: Attempt[Job]) -> None:
        await clock.sleep(0.05)

    acts = {"quick": quickly, "slow": taking(clock, 9), "suspect": nothing}
    async with at_work(acts, clock=clock, store=store, jobs=quick, look_ahead=50) as harness:
        await clock.advance(4)
        store._rows.live[1].run_at = clock.now().replace(year=2029)
        await harness.add("slow", priority=-1, count=3)
        await clock.advance(7)
        (begun,) = harness.events(DrainStarted)
        assert harness.worker.running <= 3
        held = [one for one in harness.worker.internals.held() if one.job_id != 1]
        assert len(held) <= 3, "of what was ahead nothing is held"
        assert harness.row(1).state is State.PROCESSING
        await clock.advance(9)
        assert (await harness.job(1)).state is State.COMPLETED
        assert begun.running == 3


async def test_a_worker_that_is_stopped_while_it_makes_way_hands_it_back_unspent() -> None:
    clock = FakeClock()
    store = await with_suspects(clock)
    acts = {"act": taking(clock, 1000), "suspect": nothing}
    async with at_work(acts, clock=clock, store=store, jobs=[NewJob(task="act")], grace=5.0) as harness:
        await clock.advance(9)
        assert harness.row(1).state is State.PROCESSING
        harness.worker.stop()
        assert await harness.ended() < 10
        assert (harness.row(1).state, harness.row(1).attempts, harness.row(1).resets) == (State.QUEUED, 0, 2)
        assert started(harness, "suspect") == 0


async def test_a_suspect_that_is_taken_away_meanwhile_is_waited_for_no_longer() -> None:
    clock = FakeClock()
    store = await with_suspects(clock)
    acts = {"act": taking(clock, 1000), "suspect": nothing}
    async with at_work(acts, clock=clock, store=store, jobs=[NewJob(task="act")], concurrency=2) as harness:
        await clock.advance(9)
        (lease,) = (one for one in harness.worker.internals.held() if one.job_id == 1)
        await store.heartbeats().reset_lease(lease)
        store._rows.live[1].run_at = clock.now().replace(year=2031)
        await harness.add("act")
        await clock.advance(12)
        assert started(harness, "suspect") == 0
        assert started(harness, "act") == 2, "the next beat has said that it is lost"


async def test_one_worker_in_four_makes_way_at_once() -> None:
    clock = FakeClock()
    store = await with_suspects(clock, 2)
    await store.claim(ClaimRequest(worker="other", token=str(uuid.uuid4()), limit=1, lease=60.0, suspects=True))
    acts = {"act": taking(clock, 1000), "suspect": nothing}
    async with at_work(acts, clock=clock, store=store, jobs=[NewJob(task="act")], tasks=("act", "suspect")) as harness:
        await clock.advance(30)
        assert started(harness, "suspect") == 0, "of two workers one has a suspect already"
        for n in range(6):
            await store.jobs.enqueue(NewJob(task="elsewhere"))
            request = ClaimRequest(worker=f"w{n}", token=str(uuid.uuid4()), limit=1, lease=900.0, tasks=("elsewhere",))
            assert await store.claim(request)
        await clock.advance(10)
        assert harness.events(DrainStarted), "of eight two may"


def test_the_rule_of_one_in_four() -> None:
    assert [may_make_way(0, workers) for workers in (1, 4, 60)] == [True] * 3
    assert [may_make_way(1, workers) for workers in (1, 7, 8, 60)] == [False, False, True, True]
    assert not may_make_way(15, 60)


async def test_with_a_child_it_takes_the_next_slot_although_others_are_ready() -> None:
    clock = FakeClock()
    store = await with_suspects(clock)
    apart: list[float] = []

    async def isolate(attempt: Attempt[Job]) -> object:
        apart.append(clock.monotonic())
        await clock.sleep(2)
        return None

    jobs = [NewJob(task="act")] * 3000
    acts = {"act": taking(clock, 0.02)}
    began = clock.monotonic()
    async with at_work(acts, clock=clock, store=store, jobs=jobs, isolate=isolate, tasks=("act", "suspect")) as harness:
        await clock.advance(6)
        assert apart
        assert apart[0] - began < 6
        assert harness.events(DrainStarted) == []
        assert harness.worker.running == 4, "and the others go on beside it"
        with suppress(asyncio.CancelledError):
            harness.worker.stop(now=True)
