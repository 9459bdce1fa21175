"""The hooks around a handler: when each is called, in what company, and what its failure costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.events import HookFailed, HookFinished, JobLogged
from stowhand.jobs.conditions import Where, sql
from stowhand.jobs.job import Job, State
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import ClaimContext, ClaimDecision, handler_of
from stowhand.protocols.options import WorkerOptions
from stowhand.testing import FakeClock
from stowhand.worker.admission import read_answer
from stowhand.worker.worker import Worker
from tests.worker.worker_harness import ChoosyStore, FaultyStore, WorkerHarness, at_work, nothing, taking


class Recorder:
    """A handler with every hook; it notes what was called, and in which state the record then was."""

    def __init__(self, act: Callable[[Attempt[Job]], Any] = nothing) -> None:
        self.act = act
        self.calls: list[str] = []
        self.harness: WorkerHarness | None = None
        self.states: list[State] = []
        self.answers: list[Any] = []
        self.asked: list[ClaimContext] = []

    async def pre_claim(self, ctx: ClaimContext) -> Any:
        self.asked.append(ctx)
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def pre_handle(self, ctx: Attempt[Job], record: Job) -> None:
        self.calls.append(f"pre {record.id}")

    async def handle(self, ctx: Attempt[Job], record: Job) -> object:
        self.calls.append(f"handle {record.id}")
        return await self.act(ctx)

    async def post_handle(self, ctx: Attempt[Job], record: Job) -> None:
        self.calls.append(f"post {record.id}")
        if self.harness is not None:
            self.states.append(self.harness.row(record.id).state)


async def fails(ctx: Attempt[Job]) -> None:
    raise ValueError("no")


async def exits(ctx: Attempt[Job]) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(("act", "state"), [(nothing, State.COMPLETED), (fails, State.ERRORED), (exits, State.ERRORED)])
async def test_the_hooks_stand_around_the_handler_and_the_last_sees_the_record_marked(act: Any, state: State) -> None:
    recorder = Recorder(act)
    async with at_work(recorder, concurrency=1) as harness:
        recorder.harness = harness
        job = await harness.does()
        assert recorder.calls == [f"pre {job.id}", f"handle {job.id}", f"post {job.id}"]
        assert recorder.states == [state]


async def test_a_bare_async_function_is_a_handler() -> None:
    clock, seen = FakeClock(), []

    async def handle(ctx: Attempt[Job], record: Job) -> None:
        seen.append((ctx.lease.job_id, record.task))

    store = FaultyStore(clock)
    async with at_work(nothing, clock=clock, store=store) as harness:
        harness.worker.stop()
        await harness.ended()
        await harness.add("hello")
        await Worker(store, handle, WorkerOptions(once=True), clock=clock).run()
    assert seen == [(1, "hello")]


@pytest.mark.parametrize("wrong", [7, "handle", Recorder, None])
def test_what_is_no_handler_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="async function of"):
        handler_of(wrong)


async def test_a_pre_handle_that_raises_is_the_attempts_error_and_post_handle_follows() -> None:
    recorder = Recorder()

    async def raises(ctx: Attempt[Job], record: Job) -> None:
        recorder.calls.append("pre")
        raise ValueError("no room")

    recorder.pre_handle = raises  # type: ignore[method-assign]
    async with at_work(recorder) as harness:
        job = await harness.does()
        assert (job.state, recorder.calls) == (State.ERRORED, ["pre", f"post {job.id}"])
        assert "no room" in str(job.last_error)


async def test_a_post_handle_that_raises_is_reported_and_affects_no_other_job() -> None:
    recorder = Recorder()

    async def raises(ctx: Attempt[Job], record: Job) -> None:
        raise ValueError("too late")

    recorder.post_handle = raises  # type: ignore[method-assign]
    async with at_work(recorder, concurrency=1) as harness:
        assert (await harness.does()).state is State.COMPLETED
        assert (await harness.does()).state is State.COMPLETED
        message = harness.events(HookFailed)
        assert [(event.hook, event.job_id) for event in message] == [("post_handle", 1), ("post_handle", 2)]
        assert "too late" in message[0].error


async def test_post_handle_holds_the_slot_and_the_stop_waits_for_it() -> None:
    clock, running, most = FakeClock(), 0, 0
    recorder = Recorder(taking(clock, 1))

    async def before(ctx: Attempt[Job], record: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)

    async def after(ctx: Attempt[Job], record: Job) -> None:
        nonlocal running
        await clock.sleep(2)
        running -= 1

    recorder.pre_handle, recorder.post_handle = before, after  # type: ignore[method-assign]
    async with at_work(recorder, clock=clock, concurrency=2) as harness:
        await harness.add(count=6)
        await clock.advance(10)
        assert most == 2
        await harness.add()
        await clock.advance(1.5)
        harness.worker.stop()
        await harness.ended()
        assert running == 0, "the worker ended before its hooks had"


async def test_each_pre_claim_waits_until_the_last_pre_handle_has_returned() -> None:
    clock, order = FakeClock(), []
    recorder = Recorder(taking(clock, 100))

    async def before(ctx: Attempt[Job], record: Job) -> None:
        await clock.sleep(1)
        order.append(f"prepared {record.id}")

    async def asks(ctx: ClaimContext) -> bool:
        order.append(f"asked, {ctx.running} running, {ctx.free} free")
        return True

    recorder.pre_handle, recorder.pre_claim = before, asks  # type: ignore[method-assign]
    async with at_work(recorder, clock=clock, concurrency=3) as harness:
        order.clear()
        await harness.add(count=3)
        await clock.advance(5)
        assert order == [
            "asked, 0 running, 3 free", "prepared 1",
            "asked, 1 running, 2 free", "prepared 2",
            "asked, 2 running, 1 free", "prepared 3",
        ]  # fmt: skip
        assert {request.limit for request in harness.store.called("claim")} == {1}


async def test_pre_claim_may_take_several_at_once() -> None:
    recorder = Recorder(taking(clock := FakeClock(), 5))
    recorder.answers = [False] + [ClaimDecision(limit=2)] * 9
    async with at_work(recorder, clock=clock, concurrency=3, poll_interval=1.0) as harness:
        await harness.add(count=3)
        await clock.advance(2)
        assert [request.limit for request in harness.store.called("claim")][:2] == [2, 1]


async def test_a_no_of_pre_claim_claims_nothing_for_an_interval() -> None:
    recorder, clock = Recorder(), FakeClock()
    recorder.answers = [False, False]
    async with at_work(recorder, clock=clock, poll_interval=3.0) as harness:
        assert (len(recorder.asked), harness.store.called("claim")) == (1, [])
        await clock.advance(2.9)
        assert len(recorder.asked) == 1
        await clock.advance(0.2)
        assert (len(recorder.asked), harness.store.called("claim")) == (2, [])
        await clock.advance(3.1)
        assert harness.store.called("claim") != []


@pytest.mark.parametrize("answer", [ValueError("no"), None, "size < 10", 7, ClaimDecision(limit=0)])
async def test_a_pre_claim_that_raises_or_returns_none_is_reported_and_called_after_an_interval(
    answer: Any,
) -> None:
    recorder, clock = Recorder(), FakeClock()
    recorder.answers = [answer]
    async with at_work(recorder, clock=clock, poll_interval=3.0) as harness:
        await harness.add()
        await clock.advance(2.9)
        assert len(recorder.asked) == 1, "a wake-up must not shorten the interval"
        assert [event.hook for event in harness.events(HookFailed)] == ["pre_claim"]
        await clock.advance(0.2)
        assert (await harness.job(1)).state is State.COMPLETED


async def test_conditions_travel_with_the_claim_also_for_suspects() -> None:
    fits = Where("priority", "<=", 5)
    recorder = Recorder()
    recorder.answers = [fits]
    store = ChoosyStore(clock := FakeClock())
    async with at_work(recorder, store=store, clock=clock, poll_interval=60.0):
        assert store.conditions == [(fits,), (fits,)]
        assert [request.suspects for request in store.called("claim")] == [False, True]


@pytest.mark.parametrize(
    ("answer", "conditions"),
    [
        (True, ()),
        (Where("a", "=", 1), (Where("a", "=", 1),)),
        ([Where("a", "=", 1), sql("b = {}", 2)], (Where("a", "=", 1), sql("b = {}", 2))),
        (ClaimDecision((Where("a", "=", 1),), 3), (Where("a", "=", 1),)),
        ((), ()),
    ],
)
def test_an_answer_of_pre_claim_is_read_as_conditions(answer: Any, conditions: Any) -> None:
    claimable = read_answer(answer)
    assert claimable is not None
    assert claimable.conditions == conditions


def test_text_as_a_condition_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match=r"write Where\(column, operator, value\), or sql\("):
        read_answer("size < 10")


async def test_an_error_that_the_handler_calls_hopeless_fails_at_once() -> None:
    recorder = Recorder(fails)
    recorder.retryable = lambda error: not isinstance(error, ValueError)  # type: ignore[attr-defined]
    async with at_work(recorder) as harness:
        job = await harness.does()
        assert (job.state, job.attempts) == (State.FAILED, 1)
        assert "ValueError: no" in str(job.last_error)


async def test_the_handlers_logger_bears_the_job() -> None:
    async def says(ctx: Attempt[Job]) -> None:
        ctx.logger.warning("disk is nearly full", left=7)

    async with at_work(says) as harness:
        job = await harness.does("tidy")
        (said,) = harness.events(JobLogged)
        assert (said.job_id, said.task, said.level) == (job.id, "tidy", "warning")
        assert (said.message, said.fields) == ("disk is nearly full", {"left": 7})


async def test_hooks_are_timed_whether_they_end_well_or_not() -> None:
    clock = FakeClock()

    async def slow_failure(ctx: Attempt[Job]) -> None:
        await clock.sleep(2)
        raise ValueError("no")

    async with at_work(Recorder(slow_failure), clock=clock) as harness:
        await harness.does(seconds=3)
        messages = [event for event in harness.events(HookFinished) if event.hook != "pre_claim"]
        assert [(event.hook, event.failed) for event in messages] == [
            ("pre_handle", False), ("handle", True), ("post_handle", False),
        ]  # fmt: skip
        assert messages[1].seconds == pytest.approx(2)


async def test_a_handler_that_is_cancelled_by_the_stop_has_its_post_handle_too() -> None:
    clock = FakeClock()
    recorder = Recorder(taking(clock, 1000))
    async with at_work(recorder, clock=clock, grace=1.0) as harness:
        job_id = await harness.add()
        await clock.advance(1)
        harness.worker.stop()
        await harness.ended()
        assert recorder.calls == [f"pre {job_id}", f"handle {job_id}", f"post {job_id}"]
        assert harness.row(job_id).state is State.QUEUED


# -- how many, how long ----------------------------------------------------------------------------


async def test_a_worker_may_end_after_so_many_jobs() -> None:
    clock, most, running = FakeClock(), 0, 0

    async def act(ctx: Attempt[Job]) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await clock.sleep(1)
        running -= 1

    async with at_work(act, clock=clock, concurrency=2, max_jobs=5) as harness:
        await harness.add(count=20)
        took = await harness.ended()
        states = [row.state for row in harness.store.rows()]
        assert (states.count(State.COMPLETED), states.count(State.QUEUED)) == (5, 15)
        assert most == 2
        assert took <= 4


async def test_quick_jobs_are_counted_as_well() -> None:
    async with at_work(nothing, max_jobs=7, concurrency=3) as harness:
        await harness.add(count=100)
        await harness.ended()
        assert [row.state for row in harness.store.rows()].count(State.COMPLETED) == 7


async def test_after_its_active_time_a_worker_takes_nothing_new_and_lets_what_runs_end() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 10), clock=clock, concurrency=2, max_age=15.0, grace=1.0) as harness:
        await harness.add(count=6)
        took = await harness.ended()
        assert 20 <= took <= 21, "the second two had begun within the time, and ended"
        assert [row.state for row in harness.store.rows()].count(State.COMPLETED) == 4


async def test_an_idle_worker_ends_when_its_active_time_is_over() -> None:
    async with at_work(nothing, max_age=5.0) as harness:
        assert await harness.ended() <= 6


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5])
def test_a_number_of_jobs_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_jobs"):
        WorkerOptions(max_jobs=wrong)


async def test_stopping_while_pre_claim_thinks_is_prompt() -> None:
    clock = FakeClock()

    class Slow(Recorder):
        async def pre_claim(self, ctx: ClaimContext) -> bool:
            await asyncio.Event().wait()
            return True

    async with at_work(Slow(), clock=clock) as harness:
        harness.worker.stop()
        assert await harness.ended() <= 6
