"""Workflows as their authors write them: steps, waits, events and children, in virtual time, on each engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec
import pytest

from stowhand import App, Context, Job, NonRetryable, Snooze, SyncContext
from stowhand.errors import ConfigurationError
from stowhand.jobs.job import State
from stowhand.steps import ChildFailed, ChildrenFailed
from stowhand.testing import Jobs
from stowhand.testing.stores import ServerSchema
from tests.support.databases import Databases

pytestmark = pytest.mark.stowhand(store=["memory", "sqlite", "postgres"])

app = App("postgresql://nobody@127.0.0.1:1/never")
calls: Counter[str] = Counter()
failing: set[str] = set()
"""Names of functions that raise."""
seen: list[object] = []


class Payment(msgspec.Struct):
    """A value that a step returns."""

    amount: int
    currency: str = "EUR"


@pytest.fixture
def stowhand_app() -> App:
    calls.clear()
    failing.clear()
    seen.clear()
    return app


@pytest.fixture(scope="session")
def stowhand_server(postgres_server: Databases) -> Iterator[ServerSchema]:
    with postgres_server.lend(None) as url:
        server = ServerSchema(url)
        yield server
        server.drop()


async def charge(order: int) -> Payment:
    calls["charge"] += 1
    if "charge" in failing:
        raise OSError("no answer")
    return Payment(order * 10)


def mail(to: str) -> str:
    calls["mail"] += 1
    if "mail" in failing:
        raise OSError("no answer")
    return f"mailed {to}"


def state_of(job_id: int) -> State:
    return job_of(job_id).state


def job_of(job_id: int) -> Job:
    job = app.sync.get(job_id)
    assert job is not None
    return job


# -- steps --------------------------------------------------------------------------------------------------


@app.task(backoff=lambda attempt: 60.0)
async def order(ctx: Context, number: int) -> str:
    calls["order"] += 1
    payment = await ctx.step("charge", charge, number)
    seen.append(payment)
    return await ctx.step("mail", mail, f"customer {payment.amount}")


@app.task(backoff=lambda attempt: 60.0)
def sync_order(ctx: SyncContext, number: int) -> str:
    calls["order"] += 1
    amount = ctx.step("charge", lambda: number * 10)
    return ctx.step("mail", mail, f"customer {amount}")


@pytest.mark.parametrize("task", [order, sync_order])
def test_a_recorded_step_is_not_run_again(jobs: Jobs, task: object) -> None:
    failing.add("mail")
    job_id = app.sync.enqueue(task, 7).id  # type: ignore[call-overload]
    jobs.drain(raises=False)
    assert state_of(job_id) is State.ERRORED
    failing.clear()
    jobs.advance("1m")
    assert job_of(job_id).result == "mailed customer 70"
    assert calls["order"] == calls["mail"] == 2
    if task is order:
        assert calls["charge"] == 1
        assert seen == [Payment(70), Payment(70)], "the type is the same in the first attempt and in later ones"


@app.task
async def repeating(ctx: Context) -> list[int]:
    numbers = [await ctx.step("roll", roll) for _ in range(3)]
    if calls["repeating"] == 0:
        calls["repeating"] += 1
        raise OSError("again")
    return numbers


def roll() -> int:
    calls["roll"] += 1
    return calls["roll"]


def test_a_repeated_name_is_another_step(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(repeating).id
    jobs.drain(raises=False)
    jobs.advance("1h")
    assert job_of(job_id).result == [1, 2, 3]
    assert calls["roll"] == 3


@app.task
async def patient(ctx: Context) -> int:
    return await ctx.step("fragile", fragile, attempts=3, backoff=lambda attempt: 0.0)


def fragile() -> int:
    calls["fragile"] += 1
    if calls["fragile"] < 3 or "fragile" in failing:
        raise OSError("no answer")
    return calls["fragile"]


def test_a_step_is_repeated_within_the_attempt(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(patient).id
    jobs.drain()
    job = job_of(job_id)
    assert (job.result, job.attempts) == (3, 1)


def test_a_step_raises_its_last_error(jobs: Jobs) -> None:
    failing.add("fragile")
    job_id = app.sync.enqueue(patient).id
    with pytest.raises(OSError, match="no answer"):
        jobs.drain()
    assert calls["fragile"] == 3
    assert state_of(job_id) is State.ERRORED


@app.task
async def hopeless(ctx: Context) -> None:
    await ctx.step("refused", refused, attempts=5)


def refused() -> None:
    calls["refused"] += 1
    raise NonRetryable("the card is blocked")


def test_a_final_error_is_not_repeated(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(hopeless).id
    jobs.drain(raises=False)
    assert calls["refused"] == 1
    assert state_of(job_id) is State.FAILED


@app.task
async def unwritable(ctx: Context) -> None:
    await ctx.step("bad", lambda: object())


def test_a_value_that_cannot_be_recorded_fails_the_job_at_once(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(unwritable).id
    jobs.drain(raises=False)
    job = job_of(job_id)
    assert job.state is State.FAILED, "a retry would run the function again"
    assert "the value of step 'bad'" in (job.last_error or "")


@app.task
async def concurrent(ctx: Context) -> list[int]:
    async def add(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    return list(await asyncio.gather(*(ctx.step(f"add {number}", add, number) for number in range(20))))


def test_steps_may_run_at_the_same_time(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(concurrent).id
    jobs.drain()
    assert job_of(job_id).result == list(range(1, 21))


# -- waits --------------------------------------------------------------------------------------------------


@app.task(max_attempts=2)
async def sleeper(ctx: Context) -> str:
    calls["sleeper"] += 1
    await ctx.step("first", mail, "a")
    await ctx.sleep("1d")
    await ctx.step("second", mail, "b")
    await ctx.sleep("7d")
    if "sleeper" in failing:
        raise OSError("no")
    return "slept"


@app.task
def sync_sleeper(ctx: SyncContext) -> str:
    calls["sleeper"] += 1
    ctx.step("first", mail, "a")
    ctx.sleep("1d")
    ctx.step("second", mail, "b")
    ctx.sleep("7d")
    return "slept"


@pytest.mark.parametrize("task", [sleeper, sync_sleeper])
def test_a_week_passes_at_once_in_a_test(jobs: Jobs, task: object) -> None:
    start = jobs.now
    job_id = app.sync.enqueue(task).id  # type: ignore[call-overload]
    jobs.drain()
    job = job_of(job_id)
    assert (job.state, job.run_at, job.attempts) == (State.QUEUED, start + timedelta(days=1), 0)
    assert job.waits_for == "time:sleep"
    jobs.advance("1d")
    assert job_of(job_id).run_at == start + timedelta(days=8)
    assert job_of(job_id).waits_for == "time:sleep#2"
    jobs.advance("7d")
    assert job_of(job_id).result == "slept"
    assert calls["mail"] == 2
    assert calls["sleeper"] == 3


@app.task
async def until(ctx: Context, time: datetime) -> str:
    await ctx.sleep_until(time)
    return "awake"


def test_a_workflow_sleeps_until_a_time(jobs: Jobs) -> None:
    time = jobs.now + timedelta(hours=5)
    job_id = app.sync.enqueue(until, time).id
    jobs.advance("4h")
    assert state_of(job_id) is State.QUEUED
    jobs.advance("1h")
    assert job_of(job_id).result == "awake"


def test_attempts_are_counted_since_the_last_wait(jobs: Jobs) -> None:
    failing.add("mail")
    job_id = app.sync.enqueue(sleeper).id
    jobs.drain(raises=False)
    failing.clear()
    jobs.advance("1h")
    failing.add("sleeper")
    jobs.advance("8d", raises=False)
    jobs.advance("1h", raises=False)
    job = job_of(job_id)
    assert job.state is State.FAILED
    assert (job.attempts, job.max_attempts) == (2, 2), "one failure before the first wait is forgotten"


@app.task
async def catching(ctx: Context, everything: bool) -> str:
    if everything:
        with suppress(BaseException):
            await ctx.sleep("1d")
    else:
        with suppress(Exception):
            await ctx.sleep("1d")
    return "awake"


def test_except_exception_does_not_catch_a_wait(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(catching, False).id
    jobs.drain()
    assert state_of(job_id) is State.QUEUED
    jobs.advance("1d")
    assert job_of(job_id).result == "awake"


def test_a_wait_that_was_caught_is_an_error(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(catching, True).id
    jobs.drain(raises=False)
    job = job_of(job_id)
    assert job.state is State.FAILED
    assert "the wait for 'sleep' was caught" in (job.last_error or "")


@app.task
async def entangled(ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.step("slow", asyncio.sleep, 30))
        await asyncio.sleep(0.01)
        await ctx.sleep("1d")


def test_a_wait_while_a_step_runs_is_an_error(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(entangled).id
    jobs.drain(raises=False)
    assert "step 'slow' still runs" in (job_of(job_id).last_error or "")
    assert state_of(job_id) is State.FAILED


@app.task
async def two_waits(ctx: Context) -> None:
    await asyncio.gather(ctx.sleep("1d"), ctx.event("e"), return_exceptions=True)


def test_two_waits_at_the_same_time_are_an_error(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(two_waits).id
    jobs.drain(raises=False)
    assert state_of(job_id) is State.FAILED


@app.task
async def snoozing(ctx: Context) -> str:
    calls["snoozing"] += 1
    number = await ctx.step("roll", roll)
    if calls["snoozing"] < 3:
        raise Snooze("1h")
    return f"rolled {number}"


def test_outcomes_may_be_raised_between_steps(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(snoozing).id
    jobs.advance("2h")
    assert job_of(job_id).result == "rolled 1"


# -- events -------------------------------------------------------------------------------------------------


@app.task
async def paid(ctx: Context, number: int) -> int:
    payment = await ctx.event(f"paid:{number}", Payment, timeout="7d")
    return payment.amount


@app.task
def sync_paid(ctx: SyncContext, number: int) -> int:
    return ctx.event(f"paid:{number}", Payment, timeout="7d").amount


@pytest.mark.parametrize("task", [paid, sync_paid])
def test_an_event_continues_the_workflow(jobs: Jobs, task: object) -> None:
    job_id = app.sync.enqueue(task, 7).id  # type: ignore[call-overload]
    jobs.advance("3d")
    assert (state_of(job_id), job_of(job_id).waits_for) == (State.QUEUED, "event:paid:7")
    assert app.sync.emit("paid:7", {"amount": 30})
    assert not app.sync.emit("paid:7", {"amount": 40})
    jobs.drain()
    assert job_of(job_id).result == 30


def test_an_event_may_be_emitted_first(jobs: Jobs) -> None:
    app.sync.emit("paid:8", Payment(5))
    job_id = app.sync.enqueue(paid, 8).id
    jobs.drain()
    assert job_of(job_id).result == 5


@app.task(backoff=lambda attempt: 60.0)
async def impatient(ctx: Context) -> str:
    try:
        await ctx.event("never", timeout="1h")
    except TimeoutError as error:
        calls["timeout"] += 1
        if calls["timeout"] == 1:
            raise OSError("again") from None
        return str(error)
    return "emitted"


def test_a_timeout_is_recorded(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(impatient).id
    jobs.advance("1h", raises=False)
    app.sync.emit("never", 1)
    jobs.advance("1h")
    assert job_of(job_id).result == "event 'never' was not emitted within 1h"
    assert calls["timeout"] == 2


@app.task
async def approved(ctx: Context) -> str:
    answer: str = await ctx.event("approved")
    return answer


def test_a_handle_sends_an_event_to_one_job(jobs: Jobs) -> None:
    first, second = (app.sync.enqueue(approved) for _ in range(2))
    jobs.drain()
    assert first.send("approved", "yes")
    jobs.drain()
    assert job_of(first.id).result == "yes"
    assert state_of(second.id) is State.QUEUED


# -- children -----------------------------------------------------------------------------------------------


@app.task(backoff=lambda attempt: 1.0, max_attempts=1)
async def pack(item: int) -> str:
    calls[f"pack {item}"] += 1
    if f"pack {item}" in failing:
        raise OSError(f"no box for {item}")
    return f"box {item}"


@app.task(backoff=lambda attempt: 60.0, max_attempts=3)
async def shipping(ctx: Context, count: int) -> list[str]:
    calls["shipping"] += 1
    parts = await ctx.map("pack", pack, range(count))
    label = await ctx.call("label", pack, 99)
    return [*parts, label]


@app.task
def sync_shipping(ctx: SyncContext, count: int) -> list[str]:
    calls["shipping"] += 1
    parts = ctx.map("pack", pack, range(count))
    return [*parts, ctx.call("label", pack, 99)]


@pytest.mark.parametrize("task", [shipping, sync_shipping])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_workflow_waits_for_its_children(jobs: Jobs, task: object, count: int) -> None:
    job_id = app.sync.enqueue(task, count).id  # type: ignore[call-overload]
    jobs.drain()
    assert job_of(job_id).result == [*(f"box {item}" for item in range(count)), "box 99"]
    assert calls["shipping"] == 3
    assert all(calls[f"pack {item}"] == 1 for item in range(count))


def test_a_failed_child_fails_the_parent_when_all_have_ended_and_is_run_again_by_its_retry(jobs: Jobs) -> None:
    failing.add("pack 1")
    job_id = app.sync.enqueue(shipping, 3).id
    ran = jobs.drain(raises=False)
    error = ran.ran[-1].error
    assert isinstance(error, ChildrenFailed)
    assert [failure.place for failure in error.failures] == [1]
    assert "no box for 1" in str(error)
    assert state_of(job_id) is State.ERRORED
    failing.clear()
    jobs.advance("2m")
    assert job_of(job_id).result == ["box 0", "box 1", "box 2", "box 99"]
    assert (calls["pack 0"], calls["pack 1"], calls["pack 2"]) == (1, 2, 1)


def test_children_that_always_fail_use_up_the_attempts_of_the_parent(jobs: Jobs) -> None:
    failing.add("pack 1")
    job_id = app.sync.enqueue(shipping, 2).id
    for _ in range(10):
        jobs.advance("2m", raises=False)
    job = job_of(job_id)
    assert (job.state, job.attempts) == (State.FAILED, 3)
    assert (calls["pack 0"], calls["pack 1"]) == (1, 3)
    failing.clear()
    app.sync.retry(job_id)
    jobs.drain()
    assert job_of(job_id).result == ["box 0", "box 1", "box 99"]


@app.task
async def collecting(ctx: Context) -> list[str]:
    results = await ctx.map("pack", pack, range(3), failures="collect")
    return [result.error.splitlines()[0] if isinstance(result, ChildFailed) else result for result in results]


def test_failures_can_be_collected(jobs: Jobs) -> None:
    failing.add("pack 1")
    job_id = app.sync.enqueue(collecting).id
    jobs.drain(raises=False)
    result = job_of(job_id).result
    assert (result[0], result[2]) == ("box 0", "box 2")
    assert "no box for 1" in result[1]


@app.task
async def mixed(ctx: Context) -> list[object]:
    return await ctx.map("both", [pack.new_job(1), order.new_job(2)])


def test_children_may_be_jobs_of_several_tasks(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(mixed).id
    jobs.drain()
    assert job_of(job_id).result == ["box 1", "mailed customer 20"]


def test_canceling_a_workflow_cancels_its_children(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(shipping, 3).id
    with pytest.raises(RuntimeError, match="more are due"):
        jobs.drain(limit=1)
    assert job_of(job_id).waits_for == "children:pack"
    app.sync.cancel(job_id)
    jobs.drain()
    assert state_of(job_id) is State.CANCELED
    assert calls == {"shipping": 1}


@app.task
async def keyed(ctx: Context) -> None:
    await ctx.map("pack", [pack.options(key="one").new_job(1)])


def test_a_child_has_no_key(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(keyed).id
    jobs.drain(raises=False)
    assert "a child has no key" in (job_of(job_id).last_error or "")


@app.task
async def growing(ctx: Context) -> list[str]:
    calls["growing"] += 1
    return await ctx.map("pack", pack, range(calls["growing"]))


def test_another_number_of_children_is_refused(jobs: Jobs) -> None:
    job_id = app.sync.enqueue(growing).id
    jobs.drain(raises=False)
    assert "rename the step" in (job_of(job_id).last_error or "")


# -- declarations -------------------------------------------------------------------------------------------


def test_an_async_task_takes_no_sync_context() -> None:
    other = App("memory://")
    with pytest.raises(ConfigurationError, match="SyncContext is for a def task"):

        @other.task
        async def wrong(ctx: SyncContext) -> None: ...

    with pytest.raises(ConfigurationError, match="SyncContext is for a def task"):

        @other.task(executor="loop")
        def wrong_too(ctx: SyncContext) -> None: ...
