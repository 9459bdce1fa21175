"""Jobs that a worker leaves alone: by a list, by a function, by one that fails; and what that costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stowhand.app.app import App
from stowhand.errors import ConfigurationError, StowhandError
from stowhand.events import ClaimFinished, ClaimStarted, JobEnded, StoreCallFailed, StoreRecovered
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import ClaimContext
from stowhand.protocols.options import WorkerOptions
from stowhand.testing import FakeClock, MemoryStore
from stowhand.worker.admission import FLAGS_TIMEOUT_SECONDS
from stowhand.worker.claimer import RECHECK_DELAYS_SECONDS
from stowhand.worker.worker import Worker
from tests.worker.worker_harness import FaultyStore, WorkerHarness, at_work, handler_of, nothing, taking


def ordinary(harness: WorkerHarness) -> list[Any]:
    """The claims that were not for suspects."""
    return [asked for asked in harness.store.called("claim") if not asked.suspects]


def flagged(*flags: str) -> list[NewJob]:
    return [NewJob(task="act", flags=(flag,) if flag else ()) for flag in flags]


def worked_off(harness: WorkerHarness) -> list[int]:
    return sorted(event.job_id for event in harness.events(JobEnded))


# -- a list ----------------------------------------------------------------------------------------


async def test_jobs_with_a_forbidden_flag_wait_untouched_and_the_others_run() -> None:
    async with at_work(nothing, jobs=flagged("slow", "", "other", "slow"), forbidden_flags=["slow"]) as harness:
        await harness.clock.advance(1)
        assert worked_off(harness) == [2, 3]
        left = await harness.job(1)
        assert (left.state, left.attempts) == (State.QUEUED, 0)


async def test_a_list_leaves_claims_plural() -> None:
    async with at_work(nothing, concurrency=7, forbidden_flags=("slow",)) as harness:
        await harness.clock.advance(1)
        assert ordinary(harness)[0].limit == 7


@pytest.mark.parametrize(
    "nonsense", ["slow", [1], [None], [""], ["x" * 129], ["a\x00"], 5, [str(n) for n in range(10_001)]]
)
def test_a_list_that_is_none_is_refused_when_the_options_are_made(nonsense: Any) -> None:
    with pytest.raises(ConfigurationError, match="forbidden flags"):
        WorkerOptions(forbidden_flags=nonsense)


def test_no_flags_may_be_written_as_none() -> None:
    assert WorkerOptions(forbidden_flags=None).forbidden_flags == ()  # type: ignore[arg-type]


# -- a function ------------------------------------------------------------------------------------


def answering(flags: list[str] | None) -> list[Callable[[], Any]]:
    """The same answer from a function, an asynchronous one, and one that hands on an awaitable."""

    async def later() -> list[str] | None:
        await asyncio.sleep(0)
        return flags

    def hands_on() -> Awaitable[list[str] | None]:
        return later()

    return [lambda: flags, later, hands_on]


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("flags", [None, [], ["slow"], ("slow", "other")])
async def test_a_function_returns_the_forbidden_flags(kind: int, flags: Any) -> None:
    async with at_work(nothing, jobs=flagged("slow", "", "other"), forbidden_flags=answering(flags)[kind]) as harness:
        await harness.clock.advance(1)
        assert worked_off(harness) == [
            n for n, flag in ((1, "slow"), (2, ""), (3, "other")) if flag not in (flags or ())
        ]


async def test_a_function_is_called_before_each_claim_of_one_job() -> None:
    asked = 0

    def forbidden() -> list[str]:
        nonlocal asked
        asked += 1
        return []

    async with at_work(nothing, concurrency=5, forbidden_flags=forbidden) as harness:
        await harness.add(count=40)
        await harness.clock.advance(1)
        assert len(worked_off(harness)) == 40
        assert {request.limit for request in harness.store.called("claim")} == {1}
        ordinary = [request for request in harness.store.called("claim") if not request.suspects]
        assert asked == len(ordinary), "nothing has changed when suspects are asked for right after them"


async def test_with_a_function_as_many_jobs_run_at_once_as_may() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 10), clock=clock, concurrency=5, forbidden_flags=lambda: None) as harness:
        await harness.add(count=12)
        await clock.advance(5)
        assert harness.worker.running == 5
        assert sum(row.state is State.PROCESSING for row in harness.store.rows()) == 5, "nothing is taken ahead"
        await clock.advance(30)
        assert len(worked_off(harness)) == 12


async def test_what_a_job_counts_before_it_first_waits_is_seen_by_the_next_answer() -> None:
    clock, started = FakeClock(), Counter[str]()

    async def act(attempt: Attempt[Job]) -> None:
        started[attempt.record.flags[0]] += 1
        await clock.sleep(1)

    def forbidden() -> list[str]:
        return [flag for flag, count in started.items() if count >= 2]

    async with at_work(
        act, clock=clock, jobs=flagged(*"aaaabbbb"), concurrency=8, forbidden_flags=forbidden
    ) as harness:
        await clock.advance(20)
        assert started == {"a": 2, "b": 2}
        assert worked_off(harness) == [1, 2, 5, 6]


async def test_a_job_whose_flag_is_allowed_again_is_found_at_the_next_poll() -> None:
    forbidden = ["slow"]
    async with at_work(nothing, jobs=flagged("slow"), forbidden_flags=lambda: forbidden) as harness:
        await harness.clock.advance(3.9)
        request = len(ordinary(harness)) - len(RECHECK_DELAYS_SECONDS)
        assert request <= 3, "a forbidden job that is due must not keep an idle worker busy"
        forbidden.clear()
        await harness.clock.advance(2.1)
        assert worked_off(harness) == [1]


async def test_wake_finds_it_at_once() -> None:
    forbidden = ["slow"]
    async with at_work(nothing, jobs=flagged("slow"), forbidden_flags=lambda: forbidden) as harness:
        await harness.clock.advance(0.1)
        forbidden.clear()
        harness.worker.wake()
        await harness.clock.advance()
        assert worked_off(harness) == [1]


async def test_once_ends_although_forbidden_jobs_wait() -> None:
    async with at_work(nothing, jobs=flagged("slow", ""), once=True, forbidden_flags=lambda: ["slow"]) as harness:
        assert await harness.ended() < 5
        assert worked_off(harness) == [2]


async def test_several_workers_obey_each_its_own_function() -> None:
    clock, ran = FakeClock(), list[tuple[str, int]]()
    store = FaultyStore(clock)
    forbids: dict[str, Any] = {"first": lambda: ["a"], "second": answering(["b"])[1], "third": ("a", "b")}

    def worker(name: str) -> Worker:
        async def act(attempt: Attempt[Job]) -> None:
            ran.append((name, attempt.record.id))

        options = WorkerOptions(name=name, forbidden_flags=forbids[name])
        return Worker(store, handler_of(act), options, clock=clock)

    workers = [worker(name) for name in forbids]
    async with asyncio.TaskGroup() as group:
        for one in workers:
            group.create_task(one.run())
        for job in flagged(*"ababab", ""):
            await store.jobs.enqueue(job)
        await clock.advance(3)
        for one in workers:
            one.stop()
        await clock.advance(1)
    by = {name: {job_id for who, job_id in ran if who == name} for name in forbids}
    assert not by["first"] & {1, 3, 5}, "odd ones bear a"
    assert not by["second"] & {2, 4, 6}, "even ones bear b"
    assert by["third"] <= {7}
    assert sorted(job_id for _, job_id in ran) == [1, 2, 3, 4, 5, 6, 7]


# -- a function that fails -------------------------------------------------------------------------


def failing(how: str) -> Callable[[], Any]:
    def plain() -> Any:
        if how == "raises":
            raise LookupError("no such table")
        if how.startswith("cancelled"):
            raise asyncio.CancelledError  # as a task does that somebody else has cancelled
        return {"numbers": [7], "nul": ["a\x00"]}[how]

    async def later() -> Any:
        return plain()

    return later if how in ("numbers", "cancelled later") else plain


@pytest.mark.parametrize("how", ["raises", "cancelled", "cancelled later", "numbers", "nul"])
async def test_a_failing_function_prevents_claims_and_is_called_with_backoff(how: str) -> None:
    fails = True

    def forbidden() -> Any:
        return failing(how)() if fails else None

    async with at_work(nothing, jobs=flagged(""), forbidden_flags=forbidden) as harness:
        await harness.clock.advance(60)
        assert not harness.store.called("claim")
        message = harness.events(StoreCallFailed)
        assert {event.operation for event in message} == {"forbidden flags"}
        assert "no such table" in message[0].error if how == "raises" else "forbidden flags: " in message[0].error
        pauses = [event.retry_in for event in message]
        assert pauses == sorted(pauses)
        assert pauses[-1] == 5.0
        assert len(message) < 25
        fails = False
        await harness.clock.advance(5)
        assert worked_off(harness) == [1]
        assert [(event.operation, event.failures) for event in harness.events(StoreRecovered)] == [
            ("forbidden flags", len(message))
        ]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("answer", ["slow", b"slow", 7, True])
async def test_a_function_that_returns_no_list_ends_the_worker(answer: object, once: bool) -> None:
    async with at_work(nothing, jobs=flagged(""), forbidden_flags=lambda: answer, once=once) as harness:
        with pytest.raises(
            ConfigurationError, match=f"forbidden_flags: the function returned .*{type(answer).__name__}"
        ):
            await harness.ended(timeout=1)
        assert not harness.store.called("claim")


@pytest.mark.parametrize("code", ["flags", "pre_claim"])
async def test_once_ends_when_the_code_before_a_claim_keeps_failing(code: str) -> None:
    def fails(*args: object) -> Any:
        raise LookupError("no such table")

    class Handler:
        async def handle(self, attempt: Attempt[Job], record: Job) -> None: ...

        async def pre_claim(self, asking: ClaimContext) -> bool:
            return True if code == "flags" else fails()

    flags = fails if code == "flags" else ()
    async with at_work(Handler(), jobs=flagged(""), forbidden_flags=flags, once=True) as harness:
        with pytest.raises(StowhandError, match="no such table"):
            await harness.ended(timeout=60)
        assert not harness.store.called("claim")
        assert harness.clock.monotonic() > 10, "not at the first failure, which may pass"


async def test_a_function_that_never_returns_is_cancelled_and_called_again() -> None:
    ended = []

    async def forbidden() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with at_work(nothing, jobs=flagged(""), forbidden_flags=forbidden) as harness:
        await harness.clock.advance(FLAGS_TIMEOUT_SECONDS + 0.05)
        assert "no answer within 10 s" in harness.events(StoreCallFailed)[0].error
        await harness.clock.advance(FLAGS_TIMEOUT_SECONDS * 2)
        assert len(ended) >= 2


async def test_a_worker_stops_while_it_waits_for_an_answer() -> None:
    async def forbidden() -> None:
        await asyncio.Event().wait()

    async with at_work(nothing, forbidden_flags=forbidden) as harness:
        await harness.clock.advance(1)
        harness.worker.stop()
        assert await harness.ended() < 6


# -- what is told ----------------------------------------------------------------------------------


async def test_each_claim_emits_an_event_before_and_after() -> None:
    async with at_work(nothing, concurrency=3) as harness:
        await harness.add(count=2)
        await harness.clock.advance(1)
        calls = [request.limit for request in harness.store.called("claim")]
        assert [event.limit for event in harness.events(ClaimStarted)] == calls
        assert len(harness.events(ClaimFinished)) == len(calls)
        assert sum(event.jobs for event in harness.events(ClaimFinished)) == 2
        assert harness.events(ClaimFinished)[-1].jobs == 0


async def test_a_failed_claim_emits_its_start_and_its_error() -> None:
    async with at_work(nothing) as harness:
        harness.store.down.add("claim")
        await harness.add()
        await harness.clock.advance(0.05)
        assert len(harness.events(ClaimStarted)) == len(harness.events(ClaimFinished)) + 1
        assert harness.events(StoreCallFailed)[0].operation == "claim"


async def test_tasks_may_change_while_a_worker_runs() -> None:
    async with at_work(nothing, tasks=("a",)) as harness:
        for task in ("a", "b", "c"):
            await harness.add(task)
        await harness.clock.advance()
        assert worked_off(harness) == [1]
        harness.worker.controls.set_tasks(("c",))
        await harness.clock.advance()
        assert worked_off(harness) == [1, 3]
        await harness.add("a")
        await harness.clock.advance(30)
        assert worked_off(harness) == [1, 3]


# -- in an application -----------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [None, ["slow"], ("slow",), answering(["slow"])[0], answering(["slow"])[1]])
def test_an_app_passes_lists_and_functions_on(flags: Any) -> None:
    ran = []
    app = App(store=MemoryStore())

    @app.task
    async def act(number: int) -> None:
        ran.append(number)

    async def story() -> None:
        async with app:
            await act.options(flags=["slow"]).enqueue(1)
            await act.enqueue(2)
            await app.worker(once=True, forbidden_flags=flags).run()

    asyncio.run(asyncio.wait_for(story(), 30))
    assert ran == ([1, 2] if flags is None else [2])
