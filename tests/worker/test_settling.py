"""Settlements go out in one call at a time, are repeated until they are answered, and never counted twice."""

from __future__ import annotations

import asyncio

from stowhand.events import Events, JobEnded, JobLost, JobUnknown, StoreCallFailed, StoreRecovered
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import Retry
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import StoreOptions
from stowhand.testing import FakeClock
from stowhand.worker.worker import Worker
from tests.worker.worker_harness import FaultyStore, WorkerHarness, at_work, handler_of, nothing, taking


def batches(harness: WorkerHarness) -> list[list[int]]:
    """The job ids of each call."""
    return [ids for ids, _ in harness.store.called("settle")]


async def test_alone_a_job_is_settled_at_once() -> None:
    async with at_work(nothing) as harness:
        job_id = await harness.add()
        await harness.clock.settle()
        assert (await harness.job(job_id)).state is State.COMPLETED
        assert batches(harness) == [[job_id]]


async def test_settlements_during_a_call_are_sent_with_the_next() -> None:
    async with at_work(nothing, concurrency=4) as harness:
        harness.store.gates["settle"] = asyncio.Event()
        await harness.add(count=20)
        await harness.clock.settle()
        (first,) = batches(harness)
        harness.store.gates.pop("settle").set()
        await harness.clock.settle()
        assert len(batches(harness)) == 2
        assert sorted(first + batches(harness)[1]) == list(range(1, 21))


async def test_a_batch_is_bounded() -> None:
    async with at_work(nothing, concurrency=4) as harness:
        harness.store.gates["settle"] = asyncio.Event()
        await harness.add(count=900)
        await harness.clock.settle()
        harness.store.gates.pop("settle").set()
        await harness.clock.settle()
        assert max(len(batch) for batch in batches(harness)) == 500
        assert len(harness.events(JobEnded)) == 900


async def test_a_settlement_without_answer_is_repeated_as_it_is_until_there_is_one() -> None:
    async with at_work(nothing) as harness:
        harness.store.down.add("settle")
        job_id = await harness.add()
        await harness.clock.advance(12)
        assert (await harness.job(job_id)).state is State.PROCESSING
        harness.store.down.clear()
        await harness.clock.advance(5)
        assert (await harness.job(job_id)).state is State.COMPLETED
        calls = harness.store.called("settle")
        assert [repeat for _, repeat in calls] == [False] + [True] * (len(calls) - 1)
        assert len(calls) < 12, "with growing pauses"
        assert len(harness.events(StoreCallFailed)) == len(calls) - 1
        assert [event.failures for event in harness.events(StoreRecovered)] == [len(calls) - 1]


async def test_a_settlement_whose_reply_was_lost_counts_as_the_success_it_was() -> None:
    async with at_work(nothing) as harness:
        harness.store.mute.append("settle")
        job = await harness.does(seconds=1)
        assert (job.state, len(harness.events(JobEnded))) == (State.COMPLETED, 1)
        assert harness.events(JobLost) == []


async def test_a_repeat_without_a_trace_is_unknown_and_not_a_success() -> None:
    clock = FakeClock()

    class Forgetful(FaultyStore):
        def __init__(self) -> None:
            super().__init__(clock, StoreOptions(history=None))

    async with at_work(nothing, clock=clock, store=Forgetful()) as harness:
        harness.store.mute.append("settle")
        job_id = await harness.add()
        await clock.advance(1)
        assert [event.job_id for event in harness.events(JobUnknown)] == [job_id]
        assert harness.events(JobEnded) == []
        assert harness.events(JobLost) == []


async def test_a_lost_lease_is_reported_as_lost_and_not_as_ended() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 5), clock=clock) as harness:
        job_id = await harness.add()
        await clock.advance(4.9)
        await harness.store.heartbeats().reset_worker("w")
        harness.store.gates["claim"] = asyncio.Event()
        await clock.advance(0.2)
        assert [event.job_id for event in harness.events(JobLost)] == [job_id]
        assert harness.events(JobEnded) == []
        harness.store.gates.pop("claim").set()


async def test_a_locked_row_is_settled_later_and_the_others_at_once() -> None:
    async with at_work(nothing, concurrency=1) as harness:
        locked = await harness.add()
        harness.store.locked.add(locked)
        await harness.clock.advance(1)
        calls = len(batches(harness))
        assert calls >= 4, "a few times a second"
        others = [await harness.add() for _ in range(3)]
        await harness.clock.settle()
        assert [event.job_id for event in harness.events(JobEnded)] == others
        harness.store.locked.clear()
        await harness.clock.advance(0.5)
        assert (await harness.job(locked)).state is State.COMPLETED
        assert [repeat for _, repeat in harness.store.called("settle")].count(True) == 0, "a busy row gave an answer"


async def test_a_busy_row_is_kept_alive_as_long_as_it_is_locked() -> None:
    async with at_work(nothing, lease=6.0) as harness:
        locked = await harness.add()
        harness.store.locked.add(locked)
        await harness.clock.advance(120)
        assert harness.events(JobLost) == []
        harness.store.locked.clear()
        await harness.clock.advance(0.6)
        assert [event.job_id for event in harness.events(JobEnded)] == [locked]


async def test_a_queue_that_falls_free_and_a_retry_are_looked_at_without_a_wake_up() -> None:
    async def act(attempt: Attempt[Job]) -> object:
        return Retry("again", delay=0.5) if attempt.claim.attempts == 1 else None

    clock = FakeClock()
    store = FaultyStore(clock)
    store.is_listening = False
    async with at_work(act, clock=clock, store=store) as harness:
        store.down.add("wait")
        await clock.advance(30)
        await store.jobs.enqueue(NewJob(task="act", serial="q"))
        await store.jobs.enqueue(NewJob(task="act", serial="q"))
        await clock.advance(2)
        ended = len(harness.events(JobEnded))
        assert ended == 2, "one after the other, although nothing woke us"
        await clock.advance(0.6)
        assert len(harness.events(JobEnded)) == 4


async def test_jobs_enqueued_with_a_settlement_are_looked_at_without_a_wake_up() -> None:
    async def first(attempt: Attempt[Job]) -> None:
        attempt.then.append(NewJob(task="second"))

    clock = FakeClock()
    store = FaultyStore(clock)
    store.is_listening = False
    store.down.add("wait")
    async with at_work(
        {"first": first, "second": nothing}, clock=clock, store=store, jobs=[NewJob(task="first")]
    ) as harness:
        assert [event.task for event in harness.events(JobEnded)] == ["first", "second"]


async def test_a_success_is_emitted_only_to_listeners_for_successes() -> None:
    async def act(attempt: Attempt[Job]) -> Retry | None:
        return Retry("no") if attempt.record.task == "bad" else None

    heard: list[tuple[str, str]] = []
    clock, events = FakeClock(), Events()
    events.on(JobEnded, lambda event: heard.append((event.task, event.outcome.value)), success=False)
    store = FaultyStore(clock)

    async def work() -> None:
        await store.jobs.enqueue_many([NewJob(task="good"), NewJob(task="bad", max_attempts=1)])
        await Worker(store, handler_of(act), WorkerOptions(once=True), clock=clock, events=events).run()

    await work()
    assert heard == [("bad", "failed")]
    wanted: list[JobEnded] = []
    events.on(JobEnded, wanted.append)
    await work()
    assert sorted(event.task for event in wanted) == ["bad", "good"]
