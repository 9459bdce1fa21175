"""Hooks that are wrong, slow or deaf: what they cost is told, bounded, and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from stowhand.errors import ConfigurationError, LeaseLost, Poison
from stowhand.events import Events, HookFailed, HookFinished, JobEnded, JobLeft, JobLost, JobStarted
from stowhand.jobs.conditions import Where
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Unreadable
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.handler import ClaimContext, ClaimDecision, handler_of
from stowhand.protocols.options import WorkerOptions
from stowhand.testing import FakeClock
from stowhand.worker.worker import Worker
from tests.support.memory_rows import remove
from tests.worker.test_hooks import Recorder, fails
from tests.worker.worker_harness import FaultyStore, at_work, nothing, taking

LEAVE: list[asyncio.Event] = []
"""What deaf hooks listen to in the end."""


async def deaf() -> None:
    """Goes on, however often it is cancelled."""
    leave = asyncio.Event()
    LEAVE.append(leave)
    while not leave.is_set():
        try:
            await leave.wait()
        except asyncio.CancelledError:
            continue


async def gone() -> None:
    """After a test with deaf hooks: they end."""
    while LEAVE:
        LEAVE.pop().set()
    await asyncio.sleep(0)


async def test_a_slot_is_held_until_the_record_is_marked_though_the_store_is_slow() -> None:
    clock = FakeClock()
    recorder = Recorder(taking(clock, 1))
    store = FaultyStore(clock)
    async with at_work(recorder, store=store, clock=clock, concurrency=2) as harness:
        store.gates["settle"] = asyncio.Event()
        await harness.add(count=6)
        await clock.advance(5)
        assert len(harness.events(JobStarted)) == 2, "neither has had its post_handle"
        store.gates["settle"].set()
        await clock.advance(5)
        assert len(harness.events(JobStarted)) == 6


async def test_post_handle_has_what_is_left_of_the_grace() -> None:
    clock, ended = FakeClock(), []
    recorder = Recorder()

    async def after(ctx: Attempt[Job], record: Job) -> None:
        await clock.sleep(12)
        ended.append(record.id)

    recorder.post_handle = after  # type: ignore[method-assign]
    async with at_work(recorder, clock=clock, grace=20.0) as harness:
        await harness.add()
        await clock.advance(1)
        harness.worker.stop()
        assert 11 <= await harness.ended() < 13
        assert ended == [1]


async def test_a_deaf_post_handle_is_left_behind_when_the_worker_stops() -> None:
    recorder, ended = Recorder(), 99.0

    async def after(ctx: Attempt[Job], record: Job) -> None:
        await deaf()

    recorder.post_handle = after  # type: ignore[method-assign]
    async with at_work(recorder, grace=3.0) as harness:
        await harness.add()
        await harness.clock.advance(1)
        harness.worker.stop()
        for _ in range(40):  # the last second is a real one
            await harness.clock.advance(0.5)
            if harness.worker._state.supervisor.is_closed:
                break
        await asyncio.wait_for(asyncio.shield(harness.ending), 20)
        ended = harness.clock.monotonic()
        await gone()
    assert ended <= 10


async def test_a_deaf_pre_claim_is_left_behind_when_the_worker_stops() -> None:
    class Deaf(Recorder):
        async def pre_claim(self, ctx: ClaimContext) -> bool:
            await deaf()
            return True

    async with at_work(Deaf()) as harness:
        harness.worker.stop()
        await harness.clock.advance(6)
        await asyncio.wait_for(asyncio.shield(harness.ending), 20)
        await gone()


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
async def test_a_pre_claim_that_raises_a_base_exception_is_called_again(error: Any) -> None:
    recorder, clock = Recorder(), FakeClock()

    async def asks(ctx: ClaimContext) -> bool:
        recorder.asked.append(ctx)
        if len(recorder.asked) == 1:
            raise error
        return True

    recorder.pre_claim = asks  # type: ignore[method-assign]
    async with at_work(recorder, clock=clock, poll_interval=3.0) as harness:
        await harness.add()
        await clock.advance(2.9)
        assert [event.hook for event in harness.events(HookFailed)] == ["pre_claim"]
        await clock.advance(0.2)
        assert (await harness.job(1)).state is State.COMPLETED
        assert [event.failed for event in harness.events(HookFinished) if event.hook == "pre_claim"][:2] == [
            True,
            False,
        ]


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
async def test_a_post_handle_that_raises_a_base_exception_is_reported(error: Any) -> None:
    recorder = Recorder()

    async def raises(ctx: Attempt[Job], record: Job) -> None:
        raise error

    recorder.post_handle = raises  # type: ignore[method-assign]
    async with at_work(recorder, concurrency=1) as harness:
        assert (await harness.does()).state is State.COMPLETED
        assert (await harness.does()).state is State.COMPLETED
        assert [event.hook for event in harness.events(HookFailed)] == ["post_handle"] * 2


async def test_pre_claim_is_called_again_after_post_handle() -> None:
    clock, taken = FakeClock(), set[int]()

    class Counts(Recorder):
        async def pre_claim(self, ctx: ClaimContext) -> bool:
            return not taken

        async def pre_handle(self, ctx: Attempt[Job], record: Job) -> None:
            taken.add(record.id)

        async def post_handle(self, ctx: Attempt[Job], record: Job) -> None:
            await clock.sleep(3)
            taken.discard(record.id)

    async with at_work(Counts(), clock=clock, poll_interval=600.0) as harness:
        await harness.add(count=2)
        await clock.advance(4)
        assert len(harness.events(JobStarted)) == 2


async def test_forbidden_flags_count_beside_pre_claim() -> None:
    async with at_work(Recorder(), forbidden_flags=("slow",)) as harness:
        assert {request.forbidden_flags for request in harness.store.called("claim")} == {("slow",)}


async def test_nothing_is_claimed_ahead_for_hooks_that_hold_slots() -> None:
    class Prepared:
        async def pre_handle(self, ctx: Attempt[Job], record: Job) -> None: ...
        async def handle(self, ctx: Attempt[Job], record: Job) -> None: ...

    jobs = [NewJob(task="act")] * 60
    async with at_work(Prepared(), concurrency=3, jobs=jobs, once=True) as harness:
        await harness.ended()
        assert max(request.limit for request in harness.store.called("claim")) == 3


async def test_conditions_are_refused_by_a_store_that_takes_none() -> None:
    recorder = Recorder()
    recorder.answers = [Where("priority", "<=", 5)]
    async with at_work(recorder, jobs=[NewJob(task="act", priority=9)]) as harness:
        with pytest.raises(ConfigurationError, match="a queue supports no conditions"):
            await harness.ended()
        assert harness.row(1).state is State.QUEUED


async def test_the_number_of_jobs_holds_also_when_pre_claim_lets_many_in() -> None:
    clock = FakeClock()
    recorder = Recorder(taking(clock, 1))
    recorder.answers = [ClaimDecision(limit=10)] * 50
    jobs = [NewJob(task="act")] * 20
    async with at_work(recorder, clock=clock, concurrency=10, max_jobs=3, jobs=jobs) as harness:
        await harness.ended()
        assert [row.state for row in harness.store.rows()].count(State.COMPLETED) == 3


async def test_the_active_time_ends_also_while_the_store_is_away() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    store.down = {"claim", "abandon", "beat", "next_due", "wait"}
    async with at_work(nothing, clock=clock, store=store, max_age=10.0) as harness:
        assert 10 <= await harness.ended() <= 20


async def test_what_has_ended_is_recorded_before_the_active_time_ends_a_worker() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    async with at_work(nothing, clock=clock, store=store, max_age=10.0) as harness:
        store.down.add("settle")
        await harness.add()
        await clock.advance(30)
        assert not harness.ending.done()
        store.down.clear()
        await harness.ended()
        assert harness.row(1).state is State.COMPLETED


@pytest.mark.parametrize("how", ["timeout", "cancel", "lost", "stop", "unprepared"])
async def test_every_pre_handle_has_its_post_handle_and_that_one_may_wait(how: str) -> None:
    clock = FakeClock()
    recorder, pairs = Recorder(taking(clock, 1000)), list[str]()

    async def before(ctx: Attempt[Job], record: Job) -> None:
        pairs.append("pre")
        if how == "unprepared":
            await clock.sleep(1000)

    async def after(ctx: Attempt[Job], record: Job) -> None:
        await clock.sleep(1)
        pairs.append("post")

    recorder.pre_handle, recorder.post_handle = before, after  # type: ignore[method-assign]
    limit: dict[str, Any] = {"timeout": 5.0} if how in ("timeout", "unprepared") else {}
    async with at_work(recorder, clock=clock, grace=1.0, **limit) as harness:
        job_id = await harness.add()
        await clock.advance(2)
        if how == "cancel":
            await harness.store.admin.cancel(job_id)
        elif how == "lost":
            remove(harness.store, job_id)
        elif how == "stop":
            harness.worker.stop()
        await clock.advance(11)
        assert pairs[:2] == ["pre", "post"]
        assert not harness.events(HookFailed)


# -- how an attempt is over ------------------------------------------------------------------------


async def test_each_job_that_started_is_left_once_however_it_ends() -> None:
    async def lost(ctx: Attempt[Job]) -> None:
        await clock.sleep(1000)

    class Some(Recorder):
        async def pre_handle(self, ctx: Attempt[Job], record: Job) -> None:
            if record.task == "unprepared":
                raise ValueError("no room")

        async def handle(self, ctx: Attempt[Job], record: Job) -> object:
            acts: dict[str, Any] = {"fails": fails, "lost": lost}
            return await acts.get(record.task, nothing)(ctx)

    clock = FakeClock()
    async with at_work(Some(), clock=clock, grace=1.0, concurrency=9) as harness:
        for task in ("fine", "fails", "unprepared", "lost", "stopped"):
            await harness.add(task)
        await clock.advance(1)
        remove(harness.store, 4)
        await clock.advance(15)
        await harness.add("lost")
        await clock.advance(0.1)
        harness.worker.stop(now=True)
        await harness.ended()
        started = sorted(event.job_id for event in harness.events(JobStarted))
        assert set(started) == {1, 2, 3, 4, 5, 6}
        assert sorted(event.job_id for event in harness.events(JobLeft)) == started


async def test_an_attempt_that_raised_lease_lost_is_marked_as_lost() -> None:
    async def loses(ctx: Attempt[Job]) -> None:
        raise LeaseLost("somebody else has it")

    recorder, lost = Recorder(loses), list[bool]()

    async def after(ctx: Attempt[Job], record: Job) -> None:
        lost.append(control_of(ctx).lost)

    recorder.post_handle = after  # type: ignore[method-assign]
    async with at_work(recorder) as harness:
        assert (await harness.does()).state is State.PROCESSING, "its lease ends by itself"
        assert (lost, len(harness.events(JobLost))) == ([True], 1)


async def test_a_log_line_without_a_listener_is_not_created() -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("made all the same")

    async def says(ctx: Attempt[Job], record: Job) -> None:
        ctx.logger.info(Costly())

    store = FaultyStore(clock := FakeClock())
    await store.jobs.enqueue(NewJob(task="act"))
    await Worker(store, says, WorkerOptions(once=True), clock=clock, events=Events()).run()
    assert store.rows()[0].state is State.COMPLETED


async def test_a_hopeless_error_that_is_poison_is_counted_as_such() -> None:
    async def poisoned(ctx: Attempt[Job]) -> None:
        raise Poison("bad")

    recorder = Recorder(poisoned)
    recorder.retryable = lambda error: False  # type: ignore[attr-defined]
    async with at_work(recorder) as harness:
        await harness.does()
        assert [event.outcome for event in harness.events(JobEnded)] == [AttemptOutcome.POISON]


async def test_a_retryable_that_raises_is_the_attempts_error_with_both_texts() -> None:
    def broken(error: BaseException) -> bool:
        raise KeyError("oops")

    recorder = Recorder(fails)
    recorder.retryable = broken  # type: ignore[attr-defined]
    async with at_work(recorder) as harness:
        job = await harness.does()
        assert job.state is State.ERRORED
        assert "KeyError: 'oops'" in str(job.last_error)
        assert "ValueError: no" in str(job.last_error)


# -- what is not a hook -------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["handle", "pre_handle"])
async def test_a_hook_that_is_not_asynchronous_is_the_attempts_error_with_what_to_write(hook: str) -> None:
    recorder = Recorder()
    setattr(recorder, hook, lambda ctx, record: 7)
    async with at_work(recorder) as harness:
        job = await harness.does()
        assert job.state is State.ERRORED
        assert f"{hook} must be asynchronous, but returned an int; write `async def {hook}`" in str(job.last_error)


async def test_a_function_that_is_not_asynchronous_is_refused() -> None:
    store = FaultyStore(clock := FakeClock())
    await store.jobs.enqueue(NewJob(task="act"))
    plain: Any = cast("Any", lambda ctx, record: 7)
    await Worker(store, plain, WorkerOptions(once=True), clock=clock).run()
    assert "write `async def handle`" in str(store.rows()[0].last_error)


async def test_a_function_may_give_any_awaitable() -> None:
    store = FaultyStore(clock := FakeClock())
    await store.jobs.enqueue(NewJob(task="act"))

    def starts(ctx: Attempt[Job], record: Job) -> asyncio.Future[None]:
        return asyncio.ensure_future(asyncio.sleep(0))

    await Worker(store, starts, WorkerOptions(once=True), clock=clock).run()
    assert store.rows()[0].state is State.COMPLETED


async def one(record: Job) -> None: ...
async def three(ctx: Any, logger: Any, record: Job) -> None: ...
async def yields(ctx: Any, record: Job) -> AsyncIterator[int]:
    yield 1


async def judges(error: BaseException) -> bool:
    return True


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        ("handle", one, r"its handle takes other arguments; it is called as handle\(ctx, record\)"),
        ("handle", three, "takes other arguments"),
        ("handle", yields, "is a generator"),
        ("post_handle", one, r"its post_handle takes other arguments"),
        ("pre_claim", three, r"it is called as pre_claim\(ctx\)"),
        ("pre_handle", 7, "its pre_handle is an int"),
        ("retryable", judges, "asynchronous; make it a plain function"),
    ],
)
def test_a_hook_that_cannot_be_called_is_refused_before_a_record_is_touched(name: str, wrong: Any, says: str) -> None:
    recorder = Recorder()
    setattr(recorder, name, wrong)
    with pytest.raises(ConfigurationError, match=says):
        handler_of(recorder)


async def test_a_record_that_could_not_be_read_has_no_hooks() -> None:
    recorder = Recorder()
    clock = FakeClock()

    class Blind(FaultyStore):
        async def claim(self, request: Any) -> Any:
            import msgspec

            claims = await super().claim(request)
            return [msgspec.structs.replace(claim, record=Unreadable("no such type")) for claim in claims]

    async with at_work(recorder, clock=clock, store=Blind(clock)) as harness:
        job = await harness.does()
        assert (job.state, recorder.calls, len(harness.events(JobLeft))) == (State.ERRORED, [], 1)
        assert harness.worker._state.supervisor.crash is None, "the settler has counted it without an error"
