"""A handler runs inside its slot, and nothing of it reaches the next job: no cancellation, context or timer."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stowhand.clock import Cancelable
from stowhand.errors import StowhandError
from stowhand.events import JobEnded, ThreadAbandoned
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import Complete
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.store import Claim
from stowhand.testing import FakeClock
from stowhand.worker.policy import Policy
from tests.worker.worker_harness import FaultyStore, WorkerHarness, at_work, handler_of, nothing, taking

name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


async def probe(attempt: Attempt[Job]) -> str:
    """What a clean slot looks like: not cancelled, before and after a wait, with the context of the worker."""
    task = asyncio.current_task()
    assert task is not None
    result = (task.cancelling(), name.get())
    await asyncio.sleep(0)
    attempt.then.append(NewJob(task="verdict", payload=json.dumps([*result, task.cancelling(), name.get()])))
    return ""


async def test_jobs_one_after_another_in_one_slot_share_its_task() -> None:
    seen: list[object] = []

    async def act(attempt: Attempt[Job]) -> None:
        seen.append(asyncio.current_task())

    async with at_work(act, concurrency=1) as harness:
        await harness.add(count=5)
        await harness.clock.settle()
        assert len(seen) == 5
        assert len(set(seen)) == 1


# -- timeouts --------------------------------------------------------------------------------------


async def test_an_attempt_that_takes_too_long_is_cancelled_and_retried() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 100), clock=clock, timeout=7.5) as harness:
        job = await harness.does(seconds=7.4)
        assert job.state is State.PROCESSING
        await harness.clock.advance(0.2)
        job = await harness.job(job.id)
        assert (job.state, job.last_error) == (State.ERRORED, "timed out: the attempt took longer than 7.5 s")


async def test_time_spent_before_the_first_wait_counts() -> None:
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> None:
        clock._elapsed += 4  # works, without letting go of the loop
        await clock.sleep(100)

    async with at_work(act, clock=clock, timeout=5.0) as harness:
        job_id = await harness.add()
        await clock.settle()
        await clock.advance(1.1)
        assert (await harness.job(job_id)).state is State.ERRORED


async def test_the_handlers_own_policy_comes_before_the_workers_timeout() -> None:
    clock = FakeClock()

    class Timed:
        async def handle(self, attempt: Attempt[Job], job: Job) -> None:
            await clock.sleep(100)

        def policy(self, claim: Claim[Job]) -> Policy:
            return Policy(timeout=2.0 if claim.task == "short" else None)

    async with at_work(Timed(), clock=clock, timeout=20.0) as harness:
        short, long = await harness.add("short"), await harness.add("long")
        await harness.clock.advance(2.1)
        assert (await harness.job(short)).state is State.ERRORED
        assert (await harness.job(long)).state is State.PROCESSING
        await harness.clock.advance(18)
        assert (await harness.job(long)).state is State.ERRORED


async def test_a_handler_that_finishes_although_cancelled_keeps_its_result() -> None:
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> object:
        try:
            await clock.sleep(100)
        except asyncio.CancelledError:
            await clock.sleep(3)
        return Complete()

    async with at_work({"act": act, "probe": probe}, clock=clock, timeout=5.0, concurrency=1) as harness:
        job = await harness.does(seconds=8.1)
        assert job.state is State.COMPLETED
        await assert_slot_is_clean(harness)


async def test_a_handler_that_never_waits_costs_no_timer_and_no_task() -> None:
    class CountingClock(FakeClock):
        timers = 0

        def call_later(self, seconds: float, call: Any) -> Any:
            self.timers += seconds == 1234.5
            return super().call_later(seconds, call)

    clock = CountingClock()
    acts = {"act": nothing, "waits": taking(clock, 1)}
    async with at_work(acts, clock=clock, timeout=1234.5, concurrency=1) as harness:
        await harness.does()
        before = asyncio.all_tasks()
        await harness.add(count=50)
        await harness.clock.settle()
        assert len(harness.events(JobEnded)) == 51
        assert (clock.timers, asyncio.all_tasks()) == (0, before)
        await harness.does("waits")
        assert clock.timers == 1


async def test_the_timer_of_an_ended_attempt_is_cancelled() -> None:
    class Timer:
        def __init__(self, timer: Cancelable) -> None:
            self.timer, self.cancelled = timer, False

        def cancel(self) -> None:
            self.cancelled = True
            self.timer.cancel()

    class WatchedClock(FakeClock):
        def __init__(self) -> None:
            super().__init__()
            self.watched: list[Timer] = []

        def call_later(self, seconds: float, call: Any) -> Any:
            timer = Timer(super().call_later(seconds, call))
            if seconds == 1234.5:
                self.watched.append(timer)
            return timer

    clock = WatchedClock()
    async with at_work(taking(clock, 1), clock=clock, timeout=1234.5) as harness:
        await harness.does(seconds=1.1)
        assert [timer.cancelled for timer in clock.watched] == [True]


async def test_a_thread_that_outlives_its_timeout_has_its_own_message() -> None:
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> None:
        try:
            await clock.sleep(100)
        except asyncio.CancelledError:
            control_of(attempt).abandoned_thread = threading.Event()
            raise

    async with at_work(act, clock=clock, timeout=5.0) as harness:
        job = await harness.does(seconds=5.1)
        assert "its thread cannot be stopped and its result will be ignored" in str(job.last_error)
        assert [event.job_id for event in harness.events(ThreadAbandoned)] == [job.id]
        harness.worker.stop(now=True)
        await harness.ended()
        assert harness.worker.unfinished == [], "its outcome is recorded: its lease is nobody's any more"


async def test_an_attempt_has_the_reason_of_its_stop() -> None:
    clock = FakeClock()
    heard: list[str] = []

    async def act(attempt: Attempt[Job]) -> None:
        assert not attempt.canceled
        waiting = asyncio.ensure_future(attempt.until_canceled())
        try:
            await clock.sleep(100)
        finally:
            heard.append(f"{attempt.canceled} {await waiting} {await attempt.until_canceled()}")

    async with at_work(act, clock=clock, timeout=5.0) as harness:
        await harness.does(seconds=5.1)
        assert heard == ["True timeout timeout"]


# -- nothing leaks ---------------------------------------------------------------------------------


async def own_timeout(attempt: Attempt[Job]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.sleep(30)


async def own_timeout_that_escapes(attempt: Attempt[Job]) -> None:
    async with asyncio.timeout(0.001):
        await asyncio.sleep(30)


async def own_group_that_fails(attempt: Attempt[Job]) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("in a child")

    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        await asyncio.sleep(30)


async def cancels_itself_and_waits(attempt: Attempt[Job]) -> None:
    this_task().cancel()
    await asyncio.sleep(30)


async def cancels_itself_and_returns(attempt: Attempt[Job]) -> None:
    this_task().cancel()


async def cancels_itself_thrice(attempt: Attempt[Job]) -> None:
    for _ in range(3):
        this_task().cancel()
    await asyncio.sleep(30)


async def cancels_itself_and_swallows_it(attempt: Attempt[Job]) -> None:
    this_task().cancel()
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        name.set("swallowed")


async def sets_a_variable(attempt: Attempt[Job]) -> None:
    name.set("somebody")
    await asyncio.sleep(0)
    assert name.get() == "somebody", "its own context lasts over a wait"


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def assert_slot_is_clean(harness: WorkerHarness) -> None:
    """The next job in the same slot finds no trace."""
    done = len(harness.events(JobEnded))
    await harness.add("probe")
    await harness.clock.settle()
    assert len(harness.events(JobEnded)) > done, "the slot does not work any more"
    verdict = next(row for row in harness.store.rows() if row.task == "verdict")
    assert verdict.payload == '[0, "nobody", 0, "nobody"]'


@pytest.mark.parametrize(
    ("act", "state"),
    [
        (own_timeout, State.COMPLETED),
        (own_timeout_that_escapes, State.ERRORED),
        (own_group_that_fails, State.ERRORED),
        (cancels_itself_and_waits, State.ERRORED),
        (cancels_itself_and_returns, State.COMPLETED),
        (cancels_itself_thrice, State.ERRORED),
        (cancels_itself_and_swallows_it, State.COMPLETED),
        (sets_a_variable, State.COMPLETED),
    ],
)
async def test_what_a_handler_does_to_its_task_does_not_reach_the_next_job(act: Any, state: State) -> None:
    acts = {"act": act, "probe": probe}
    async with at_work(acts, concurrency=1, tasks=("act", "probe")) as harness:
        job_id = await harness.add("act")
        while not harness.events(JobEnded):
            await asyncio.sleep(0.002)
            await harness.clock.settle()
        assert (await harness.job(job_id)).state is state
        await assert_slot_is_clean(harness)


@pytest.mark.parametrize("scope", [lambda: asyncio.timeout(60), asyncio.TaskGroup])
async def test_our_timeout_goes_through_a_handlers_own_scopes(scope: Callable[[], Any]) -> None:
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> None:
        async with scope():
            await clock.sleep(100)

    acts = {"act": act, "probe": probe}
    async with at_work(acts, clock=clock, concurrency=1, timeout=5.0, tasks=("act", "probe")) as harness:
        job = await harness.does(seconds=5.1)
        assert str(job.last_error).startswith("timed out")
        await assert_slot_is_clean(harness)


async def test_a_synchronous_part_of_the_handler_sets_no_variable_of_the_slot_either() -> None:
    class Middleware:
        def handle(self, attempt: Attempt[Job], job: Job) -> Coroutine[Any, Any, object]:
            if attempt.record.task == "act":
                name.set("middleware")
                return nothing(attempt)
            return probe(attempt)

    async with at_work(Middleware(), concurrency=1, tasks=("act", "probe")) as harness:
        await harness.does()
        await assert_slot_is_clean(harness)


async def test_a_stop_at_the_end_of_its_handler_affects_no_other_job() -> None:
    """The timer fires in the very turn of the loop in which the handler's wait ends."""
    clock = FakeClock()
    async with at_work({"act": taking(clock, 5), "probe": probe}, clock=clock, concurrency=1, timeout=5.0) as harness:
        job = await harness.does(seconds=5)
        assert job.state in (State.COMPLETED, State.ERRORED)
        await assert_slot_is_clean(harness)


async def test_a_cancelled_attempt_leaves_no_cycle_that_keeps_it_alive() -> None:
    clock = FakeClock()
    alive: list[object] = []

    class Witness:
        def __del__(self) -> None:
            alive.remove(id(self))

    async def act(attempt: Attempt[Job]) -> None:
        witness = Witness()
        alive.append(id(witness))
        await clock.sleep(100)

    gc.collect()
    gc.disable()
    try:
        async with at_work(act, clock=clock, timeout=5.0) as harness:
            await harness.does(seconds=5.1)
            assert alive == []
    finally:
        gc.enable()


async def test_a_handler_that_is_no_coroutine_fails_its_own_attempt_only() -> None:
    class Wrong:
        def handle(self, attempt: Attempt[Job], job: Job) -> Coroutine[Any, Any, object]:
            value: Any = 7
            return value if attempt.record.task == "bad" else nothing(attempt)

    async with at_work(Wrong()) as harness:
        assert (await harness.does("bad")).state is State.ERRORED
        assert (await harness.does("good")).state is State.COMPLETED


async def test_a_slot_cancelled_by_code_outside_the_worker_ends_the_worker_loudly_and_in_order() -> None:
    clock = FakeClock()

    async def cancels_the_idle_slot(attempt: Attempt[Job]) -> None:
        for task in asyncio.all_tasks() - others - {this_task()}:
            if task.get_name() == "stowhand slot":
                task.cancel()

    acts = {"brief": taking(clock, 1), "long": taking(clock, 100), "cancels": cancels_the_idle_slot}
    async with at_work(acts, clock=clock, concurrency=3) as harness:
        kept = await harness.add("long")
        await harness.clock.settle()
        others = asyncio.all_tasks()
        await harness.add("brief", count=2)
        await harness.clock.advance(2)
        await harness.add("cancels")
        with pytest.raises(StowhandError, match="code outside the worker cancelled a task"):
            await harness.ended()
        assert (await harness.job(kept)).state is State.QUEUED


async def test_a_handler_that_waits_lets_the_next_job_start_in_another_slot() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    async with at_work(taking(clock, 10), clock=clock, store=store, concurrency=4) as harness:
        await harness.add(count=10)
        await harness.clock.settle()
        assert harness.worker.running == 4
        await harness.clock.advance(10.1)
        assert harness.worker.running == 4
        assert len(harness.events(JobEnded)) == 4


def test_handlers_are_made_from_functions() -> None:
    assert hasattr(handler_of(nothing), "handle")
