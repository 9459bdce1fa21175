"""Stopping is graceful, gives everything back unspent that has not ended, and is bounded, always."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from stowhand.clock import SystemClock
from stowhand.errors import StoreUnreachable
from stowhand.events import (
    JobEnded,
    JobLeft,
    JobsReturned,
    JobUnknown,
    LoopBlocked,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.options import WorkerOptions
from stowhand.testing import FakeClock
from stowhand.worker.host import DEFAULT_TIMINGS
from stowhand.worker.resetter import Resetter
from stowhand.worker.worker import Worker
from tests.worker.worker_harness import FaultyStore, WorkerHarness, at_work, handler_of, nothing, taking


def states(harness: WorkerHarness) -> list[tuple[State, int, int]]:
    """State, attempts and resets of every job."""
    return [(row.state, row.attempts, row.resets) for row in sorted(harness.store.rows(), key=lambda row: row.id)]


async def test_running_jobs_have_their_grace_and_nothing_new_begins() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 10), clock=clock, concurrency=2, grace=25.0) as harness:
        await harness.add(count=5)
        await clock.advance(1)
        harness.worker.stop()
        assert 8 <= await harness.ended() <= 10
        assert states(harness) == [(State.COMPLETED, 1, 0)] * 2 + [(State.QUEUED, 0, 0)] * 3
        assert len(harness.events(WorkerStopped)) == 1


async def test_after_the_grace_running_jobs_are_cancelled_and_returned_without_using_an_attempt() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock, grace=12.0) as harness:
        await harness.add(count=3)
        await clock.advance(1)
        harness.worker.stop()
        assert 12 <= await harness.ended() <= 13
        assert states(harness) == [(State.QUEUED, 0, 0)] * 3
        assert harness.worker.unfinished == []
        assert sorted(one for event in harness.events(JobsReturned) for one in event.job_ids) == [1, 2, 3]
        assert harness.events(JobEnded) == []


async def test_leases_are_kept_during_the_grace() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 60), clock=clock, lease=9.0, grace=100.0) as harness:
        await harness.add()
        await clock.advance(1)
        harness.worker.stop()
        await harness.ended(timeout=70)
        assert states(harness) == [(State.COMPLETED, 1, 0)]


async def test_stop_now_returns_jobs_at_once() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock) as harness:
        await harness.add(count=3)
        await clock.advance(1)
        harness.worker.stop(now=True)
        assert await harness.ended() <= 0.25
        assert states(harness) == [(State.QUEUED, 0, 0)] * 3


async def test_stop_now_cuts_a_grace_short() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock) as harness:
        await harness.add()
        await clock.advance(1)
        harness.worker.stop()
        await clock.advance(5)
        assert not harness.ending.done()
        harness.worker.stop(now=True)
        assert await harness.ended() <= 0.25
        assert [event.is_immediate for event in harness.events(WorkerStopping)] == [False, True]


async def test_stopping_again_and_again_is_harmless() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 10), clock=clock) as harness:
        await harness.add()
        await clock.advance(1)
        for _ in range(5):
            harness.worker.stop()
        await harness.ended()
        for _ in range(3):
            harness.worker.stop(now=True)
            harness.worker.stop()
        assert states(harness) == [(State.COMPLETED, 1, 0)]
        assert [event.is_immediate for event in harness.events(WorkerStopping)][:1] == [False]


async def test_a_worker_stopped_before_it_runs_takes_nothing() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    await store.jobs.enqueue(NewJob(task="act"))
    worker = Worker(store, handler_of(nothing), WorkerOptions(), clock=clock)
    worker.stop()
    await worker.run()
    assert store.called("claim") == []


async def test_a_handler_that_ignores_its_cancellation_cannot_hold_up_the_end() -> None:
    clock = FakeClock()

    async def stubborn(attempt: Attempt[Job]) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()
        control_of(attempt).abandoned_thread = threading.Event()  # reported by a worker that still runs

    released = asyncio.Event()
    async with at_work({"act": taking(clock, 1000), "stubborn": stubborn}, clock=clock, grace=20.0) as harness:
        stubborn_id, act_id = await harness.add("stubborn"), await harness.add("act")
        await clock.advance(1)
        before = asyncio.all_tasks()
        harness.worker.stop()
        assert await harness.ended() <= 20 + 10
        assert [lease.job_id for lease in harness.worker.unfinished] == [stubborn_id]
        assert (harness.row(stubborn_id).state, harness.row(act_id).state) == (State.PROCESSING, State.QUEUED)
        assert [event.unfinished for event in harness.events(WorkerStopped)] == [1]
        left = [task for task in before if not task.done() and task is not asyncio.current_task()]
        assert sum(task.get_name() == "stowhand slot" for task in left) == 1
        seen, calls = len(harness.emitted), len(harness.store.calls)
        released.set()
        await clock.advance(5)
        assert harness.emitted[seen:] == [JobLeft("w", stubborn_id, "stubborn")], "no handler is at work for ever"
        assert len(harness.store.calls) == calls, "else its late end concerns nobody"
        await harness.store.heartbeats().release(harness.worker.unfinished)
        assert harness.row(stubborn_id).attempts == 0


async def test_the_lease_of_a_thread_that_continues_is_kept_and_listed() -> None:
    clock = FakeClock()

    async def threaded(attempt: Attempt[Job]) -> None:
        try:
            await clock.sleep(1000)
        except asyncio.CancelledError:
            control_of(attempt).abandoned_thread = threading.Event()
            raise

    async with at_work(threaded, clock=clock, grace=3.0) as harness:
        job_id = await harness.add()
        await clock.advance(1)
        harness.worker.stop()
        await harness.ended()
        assert [lease.job_id for lease in harness.worker.unfinished] == [job_id]
        assert harness.row(job_id).state is State.PROCESSING
        assert harness.store.called("release") == []


async def test_jobs_claimed_ahead_go_back_at_once_and_not_after_the_grace() -> None:
    clock = FakeClock()
    slow = False

    async def act(attempt: Attempt[Job]) -> None:
        if slow:
            await clock.sleep(20)

    async with at_work(act, clock=clock, concurrency=2) as harness:
        await harness.add(count=500)
        await clock.settle()
        slow = True
        await harness.add(count=500)
        await clock.settle()
        assert sum(row.state is State.PROCESSING for row in harness.store.rows()) > 50
        harness.worker.stop()
        await clock.settle()
        assert sum(row.state is State.PROCESSING for row in harness.store.rows()) == 2
        await harness.ended()
        assert states(harness)[500:] == [(State.COMPLETED, 1, 0)] * 2 + [(State.QUEUED, 0, 0)] * 498


async def test_jobs_claimed_ahead_go_back_at_once_even_while_a_claim_is_on_its_way() -> None:
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> None:
        if attempt.record.id > 500:
            await clock.sleep(3)

    async with at_work(act, clock=clock, concurrency=2) as harness:
        await harness.add(count=500)
        await clock.settle()
        await harness.add(count=20)
        await clock.settle()
        assert sum(row.state is State.PROCESSING for row in harness.store.rows()) == 20
        harness.store.gates["claim"] = asyncio.Event()
        await harness.add()
        await clock.settle()
        harness.worker.stop()
        await clock.settle()
        assert sum(row.state is State.PROCESSING for row in harness.store.rows()) == 2 + 1
        await clock.advance(3.5)
        assert len(harness.events(JobEnded)) == 502, "nothing began after the stop"
        harness.store.gates.pop("claim").set()
        await harness.ended()


async def test_the_grace_counts_from_the_stop_and_not_from_the_last_claims_reply() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock, grace=10.0) as harness:
        await harness.add()
        await clock.advance(1)
        harness.store.gates["claim"] = asyncio.Event()
        await harness.add()
        await clock.settle()
        harness.worker.stop()
        await clock.advance(4)
        harness.store.gates.pop("claim").set()
        assert await harness.ended() <= 6.25


async def test_a_release_is_repeated_until_the_store_accepts_it() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock) as harness:
        await harness.add()
        await clock.advance(1)
        harness.store.down.add("release")
        harness.worker.stop(now=True)
        await clock.advance(2)
        assert not harness.ending.done()
        harness.store.down.clear()
        assert await harness.ended() <= 2.5
        assert states(harness) == [(State.QUEUED, 0, 0)]


async def test_a_job_with_a_locked_row_is_returned_once_it_is_unlocked() -> None:
    async with at_work(lambda attempt: asyncio.Event().wait()) as harness:
        held, other = await harness.add(max_attempts=1), await harness.add()
        await harness.clock.settle()
        harness.store.locked = {held}
        harness.worker.stop(now=True)
        await harness.clock.advance(2)
        assert (await harness.job(other)).state is State.QUEUED
        assert (await harness.job(held)).state is State.PROCESSING
        harness.store.locked = set()
        assert await harness.ended() < 1
        job = await harness.job(held)
        assert (job.state, job.attempts, job.resets) == (State.QUEUED, 0, 0), "it was not counted as a death"
        assert [event.job_ids for event in harness.events(JobsReturned)] == [(other,), (held,)]


async def test_an_idle_worker_stops_at_once() -> None:
    async with at_work(nothing) as harness:
        await harness.clock.advance(5)
        harness.worker.stop()
        assert await harness.ended() <= 0.25


async def test_jobs_claimed_after_the_stop_are_returned_without_using_an_attempt() -> None:
    async with at_work(nothing) as harness:
        harness.store.gates["claim"] = asyncio.Event()
        await harness.add(count=3)
        await harness.clock.settle()
        harness.worker.stop()
        await harness.clock.advance(2)
        harness.store.gates.pop("claim").set()
        assert await harness.ended() <= 0.25
        assert states(harness) == [(State.QUEUED, 0, 0)] * 3
        assert harness.events(JobEnded) == []


async def test_a_claim_that_is_never_answered_holds_up_the_end_for_seconds_only() -> None:
    async with at_work(nothing) as harness:
        harness.store.gates["claim"] = asyncio.Event()
        await harness.add(count=3)
        await harness.clock.settle()
        harness.worker.stop()
        assert await harness.ended() <= 5.5
        assert len(harness.store.called("abandon")) == 1
        assert states(harness) == [(State.QUEUED, 0, 0)] * 3


async def test_a_store_that_is_down_holds_up_the_end_for_seconds_only() -> None:
    clock = FakeClock()
    async with at_work({"long": taking(clock, 1000), "act": taking(clock, 1)}, clock=clock, grace=10.0) as harness:
        await harness.add("long")
        await harness.add("act")
        await clock.settle()
        harness.store.down |= {"claim", "settle", "next_due", "wait", "beat", "release", "foreign", "abandon"}
        await clock.advance(5)
        harness.worker.stop()
        assert await harness.ended() <= 10 + 10


async def test_a_long_pause_after_a_failed_claim_does_not_hold_up_the_end() -> None:
    async with at_work(nothing) as harness:
        harness.store.down |= {"claim", "beat", "foreign"}
        await harness.add()
        await harness.clock.advance(60)
        failures = len(harness.store.called("claim"))
        while len(harness.store.called("claim")) == failures:
            await harness.clock.advance(0.1)
        harness.store.down.clear()
        harness.worker.stop()
        assert await harness.ended() <= 0.25


async def test_settlements_on_their_way_are_awaited() -> None:
    async with at_work(nothing) as harness:
        harness.store.gates["settle"] = asyncio.Event()
        await harness.add(count=10)
        await harness.clock.settle()
        harness.worker.stop()
        await harness.clock.advance(3)
        assert not harness.ending.done()
        harness.store.gates.pop("settle").set()
        assert await harness.ended() <= 0.25
        assert set(states(harness)) == {(State.COMPLETED, 1, 0)}


@pytest.mark.parametrize("trouble", ["locked", "down"])
async def test_unrecorded_outcomes_are_reported_at_the_stop(trouble: str) -> None:
    async with at_work(nothing) as harness:
        job_id = 1
        if trouble == "locked":  # somebody's transaction holds the row, for longer than the worker may wait
            harness.store.locked.add(job_id)
        else:
            harness.store.down.add("settle")
        assert await harness.add() == job_id
        await harness.clock.advance(1)
        harness.worker.stop()
        await harness.ended()
        (told,) = harness.events(JobUnknown)
        assert (told.job_id, told.outcome) == (job_id, AttemptOutcome.OK)
        assert harness.row(job_id).state is State.PROCESSING


async def test_settlements_still_have_their_time_after_a_stubborn_handler_had_its_own() -> None:
    clock = FakeClock()
    released = asyncio.Event()

    async def stubborn(attempt: Attempt[Job]) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    async with at_work({"act": nothing, "stubborn": stubborn}, clock=clock, grace=5.0) as harness:
        await harness.add("stubborn")
        await clock.settle()
        harness.store.gates["settle"] = asyncio.Event()
        act_id = await harness.add("act")
        await clock.settle()
        harness.worker.stop()
        await clock.advance(5 + DEFAULT_TIMINGS.final_timeout - DEFAULT_TIMINGS.final_calls_time / 2)
        assert not harness.ending.done()
        harness.store.gates.pop("settle").set()
        await harness.ended()
        assert harness.row(act_id).state is State.COMPLETED
        released.set()


async def test_cancelling_run_first_returns_all_jobs_at_once() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock) as harness:
        await harness.add(count=3)
        await clock.advance(1)
        harness.ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await harness.ended(timeout=0.25)
        assert states(harness) == [(State.QUEUED, 0, 0)] * 3


# -- the end of the event loop -----------------------------------------------------------------------


def tasks_of(harness: WorkerHarness) -> set[asyncio.Task[Any]]:
    """All tasks of the worker's loop. The heartbeats run in another loop in production, and in these tasks here."""
    of_heartbeats = {"Rounds.run", "Rounds._repeat", "Event.wait"}
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return {task for task in tasks if getattr(task.get_coro(), "__qualname__", "") not in of_heartbeats}


def cancel_all_tasks(harness: WorkerHarness) -> None:
    """Do as ``asyncio.run`` does when its main coroutine has ended."""
    for task in tasks_of(harness):
        task.cancel()


async def test_the_end_of_the_event_loop_returns_running_jobs_and_reports_no_blocked_loop() -> None:
    clock = FakeClock()
    async with at_work({"act": taking(clock, 1000), "brief": nothing}, clock=clock, concurrency=4) as harness:
        await harness.add("brief", count=2)
        await harness.add(count=3)
        await clock.advance(1)
        cancel_all_tasks(harness)
        with pytest.raises(asyncio.CancelledError):
            await harness.ended(timeout=0.25)
        assert states(harness)[2:] == [(State.QUEUED, 0, 0)] * 3
        assert harness.events(LoopBlocked) == []
        assert harness.worker.unfinished == []


async def test_the_end_of_the_event_loop_lets_handlers_clean_up_and_watches_the_loop() -> None:
    clock = FakeClock()
    cleaned: list[int] = []

    async def act(attempt: Attempt[Job]) -> None:
        try:
            await clock.sleep(1000)
        finally:
            await clock.sleep(3)
            cleaned.append(attempt.lease.job_id)

    async with at_work(act, clock=clock) as harness:
        await harness.add(count=2)
        await clock.advance(1)
        cancel_all_tasks(harness)
        with pytest.raises(asyncio.CancelledError):
            await harness.ended()
        assert sorted(cleaned) == [1, 2]
        assert states(harness) == [(State.QUEUED, 0, 0)] * 2
        assert harness.events(LoopBlocked) == []


@pytest.mark.parametrize("reply", ["lost", "on its way"])
async def test_the_end_of_the_event_loop_does_not_lose_an_end_that_is_being_recorded(reply: str) -> None:
    async with at_work(nothing) as harness:
        harness.store.gates["settle" if reply == "on its way" else "after settle"] = asyncio.Event()
        await harness.add(count=2)
        await harness.clock.settle()
        cancel_all_tasks(harness)
        harness.store.gates.clear()
        with pytest.raises(asyncio.CancelledError):
            await harness.ended(timeout=0.25)
        assert states(harness) == [(State.COMPLETED, 1, 0)] * 2
        assert harness.store.called("settle")[-1] == ([1, 2], True), "repeated, because the first reply was lost"
        assert len(harness.events(JobEnded)) == 2
        assert harness.events(JobUnknown) == []


async def test_a_worker_continues_if_other_code_cancels_its_loops() -> None:
    async with at_work(nothing) as harness:
        for task in tasks_of(harness) - {harness.ending}:
            task.cancel()
        await harness.clock.settle()
        assert (await harness.does(seconds=1)).state is State.COMPLETED
        harness.worker.stop()
        await harness.ended()


# -- bugs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["claim", "settle", "wait", "next_due", "beat", "foreign"])
async def test_a_bug_in_one_of_the_loops_ends_the_worker_in_order_with_the_plain_error(call: str) -> None:
    clock = FakeClock()
    async with at_work({"act": nothing, "long": taking(clock, 1000)}, clock=clock) as harness:
        long = await harness.add("long")
        await clock.advance(1)
        harness.store.broken[call] = ZeroDivisionError("a bug in a store")
        await harness.add("act")
        with pytest.raises(ZeroDivisionError, match="a bug in a store"):
            await harness.ended()
        assert isinstance(harness.ending.exception(), ZeroDivisionError)
        assert clock.monotonic() < 50
        if call not in ("beat", "foreign"):
            assert (harness.row(long).state, harness.row(long).attempts) == (State.QUEUED, 0), "in order all the same"


async def test_a_bug_in_a_slot_ends_the_worker_in_order_with_the_plain_error(monkeypatch: Any) -> None:
    clock = FakeClock()
    async with at_work({"act": nothing, "long": taking(clock, 1000)}, clock=clock) as harness:
        long = await harness.add("long")
        await clock.advance(1)

        def broken(*args: Any) -> None:
            raise ZeroDivisionError("a bug of ours")

        monkeypatch.setattr(harness.worker._executor._policies, "settle", broken)
        await harness.add("act")
        with pytest.raises(ZeroDivisionError, match="a bug of ours"):
            await harness.ended()
        assert (harness.row(long).state, harness.row(long).attempts) == (State.QUEUED, 0)


async def test_when_run_returns_no_task_is_left_from_that_very_moment_on() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    await store.jobs.enqueue_many([NewJob(task="act")] * 9)

    async def act(attempt: Attempt[Job]) -> None:
        await asyncio.sleep(0)

    before = asyncio.all_tasks()
    await Worker(store, handler_of(act), WorkerOptions(once=True), clock=clock).run()
    assert asyncio.all_tasks() == before


# -- real time and threads ---------------------------------------------------------------------------


def hearts() -> set[threading.Thread]:
    """Those of workers of other tests too."""
    return {thread for thread in threading.enumerate() if thread.name == "stowhand heartbeat"}


@pytest.mark.parametrize("routine", [Worker, Resetter])
@pytest.mark.parametrize("error", [ZeroDivisionError("a bug in a store"), StoreUnreachable("away")])
async def test_a_connection_that_fails_to_close_is_a_bug_unless_the_store_is_away(
    routine: type[object], error: Exception
) -> None:
    store = FaultyStore(SystemClock())
    store.broken["close"] = error
    runs: Worker | Resetter = Worker(store, handler_of(nothing)) if routine is Worker else Resetter(store)
    running = asyncio.ensure_future(runs.run())
    await asyncio.sleep(0.05)
    runs.stop()
    if isinstance(error, StoreUnreachable):
        await asyncio.wait_for(running, 20)
    else:
        with pytest.raises(ZeroDivisionError, match="a bug in a store"):
            await asyncio.wait_for(running, 20)


async def test_cancelled_again_and_again_it_leaves_no_thread_and_no_guardian(monkeypatch: pytest.MonkeyPatch) -> None:
    others, dismissed = hearts(), list[bool]()
    monkeypatch.setattr("stowhand.worker.program_groups.PROGRAM_GROUPS.dismiss", lambda: dismissed.append(True))
    store = FaultyStore(SystemClock())
    started, closing = asyncio.Event(), asyncio.Event()

    async def act(attempt: Attempt[Job]) -> None:
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    await store.jobs.enqueue(NewJob(task="act"))
    worker = Worker(store, handler_of(act))

    async def hangs() -> None:
        closing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(worker._state.supervisor, "close", hangs)
    running = asyncio.ensure_future(worker.run())
    await started.wait()
    running.cancel()
    await asyncio.wait_for(closing.wait(), 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    assert hearts() <= others
    assert dismissed
    assert store.called("close") == [None]


async def test_with_real_threads_nothing_is_left_after_the_end() -> None:
    others = hearts()
    clock = SystemClock()
    store = FaultyStore(clock)
    started = asyncio.Event()

    async def act(attempt: Attempt[Job]) -> None:
        started.set()
        await asyncio.Event().wait()

    job = await store.jobs.enqueue(NewJob(task="act"))
    worker = Worker(store, handler_of(act), WorkerOptions(grace=0.05))
    worker.events.on(WorkerStarted, lambda event: None)
    before = asyncio.all_tasks()
    running = asyncio.ensure_future(worker.run())
    await started.wait()
    assert len(hearts() - others) == 1
    worker.stop()
    await asyncio.wait_for(running, 20)
    assert hearts() <= others
    assert asyncio.all_tasks() <= before
    (row,) = store.rows()
    assert (row.id, row.state, row.attempts) == (job.id, State.QUEUED, 0)
    assert store.called("close") == [None]


def test_a_last_tick_after_the_loop_is_closed_does_nothing() -> None:
    """As one does that the store has kept waiting until the worker had ended."""
    worker = Worker(FaultyStore(SystemClock()), handler_of(nothing), WorkerOptions(once=True))
    asyncio.run(worker.run())
    assert asyncio.run(worker._heartbeater.tick()) > 0


async def test_a_quiet_worker_takes_nothing_new_and_stays() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 10), clock=clock, concurrency=2) as harness:
        first = await harness.add()
        await clock.advance(1)
        harness.worker.controls.pause_claims(True)
        harness.worker.controls.pause_claims(True)
        second = await harness.add()
        await clock.advance(3600)
        assert [(await harness.job(one)).state for one in (first, second)] == [State.COMPLETED, State.QUEUED]
        (row,) = await harness.store.inspect.workers()
        assert row.is_alive
        assert row.description.stopping, "it takes nothing new"
        harness.worker.controls.pause_claims(False)
        await clock.advance(11)
        assert (await harness.job(second)).state is State.COMPLETED


async def test_a_quiet_worker_stops_like_any_other() -> None:
    async with at_work(nothing) as harness:
        harness.worker.controls.pause_claims(True)
        harness.worker.stop()
        await harness.ended()
