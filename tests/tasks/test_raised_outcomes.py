"""Tasks that raise an outcome: the same as returning it, for all that is around a task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stowhand.app.app import App
from stowhand.events import JobEnded
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import AttemptOutcome, Cancel, Fail, Retry, Snooze
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import Handler
from stowhand.tasks.context import Context
from stowhand.testing import MemoryStore, run_task_list_once
from tests.conftest import Run

ENDS: list[tuple[Exception, State]] = [
    (Retry("later", delay="5m"), State.ERRORED),
    (Fail("never"), State.FAILED),
    (Snooze("1h"), State.QUEUED),
    (Cancel("no longer"), State.CANCELED),
]


def worked(run: Run, app: App, *jobs: NewJob) -> list[Job]:
    """The jobs after one run of a worker."""

    async def go() -> list[Job]:
        async with app:
            store = await app.open(install=True)
            instance = await app.add_jobs(jobs)
            await app.worker(once=True, concurrency=1).run()
            rows = [await store.jobs.get(job.id) for job in instance]
            return [job for job in rows if job is not None]

    return run(go())


@pytest.mark.parametrize(("outcome", "state"), ENDS, ids=repr)
def test_a_task_may_raise_what_it_may_return_in_the_loop_and_in_a_thread(
    run: Run, outcome: Exception, state: State
) -> None:
    app = App(store=MemoryStore())

    @app.task
    async def at_once() -> None:
        raise outcome

    @app.task
    async def later(ctx: Context) -> None:
        await asyncio.sleep(0)
        ctx.log("goes on")
        raise outcome

    @app.task
    def in_thread() -> None:
        raise outcome

    @app.task(executor="loop")
    def in_loop() -> None:
        raise outcome

    @app.task
    def returned() -> object:
        return outcome

    tasks = [at_once, later, in_thread, in_loop, returned]
    jobs = worked(run, app, *[task.new_job() for task in tasks])
    assert [(job.state, job.attempts, job.last_error) for job in jobs] == [
        (state, jobs[-1].attempts, jobs[-1].last_error)
    ] * len(tasks)


def test_middleware_and_what_is_around_a_thread_see_a_returned_outcome(run: Run) -> None:
    seen: list[object] = []

    def middleware(inner: Handler) -> Handler:
        class Watching:
            async def handle(self, attempt: Attempt[Any], record: Any) -> object:
                returned = await inner.handle(attempt, record)
                seen.append(returned)
                return returned

        return Watching()

    @contextmanager
    def around() -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the point: there is none
            seen.append(error)
        seen.append("committed")

    app = App(store=MemoryStore(), middleware=[middleware], around_thread=around)

    @app.task
    def act() -> None:
        raise Snooze(60)

    (job,) = worked(run, app, act.new_job())
    assert (job.state, seen) == (State.QUEUED, ["committed", Snooze(60)])


def test_middleware_may_raise_an_outcome_too(run: Run) -> None:
    def closed(inner: Handler) -> Handler:
        class Closed:
            async def handle(self, attempt: Attempt[Any], record: Any) -> object:
                raise Snooze(60)

        return Closed()

    app = App(store=MemoryStore(), middleware=[closed])

    @app.task
    async def act() -> None: ...

    (job,) = worked(run, app, act.new_job())
    assert (job.state, job.attempts) == (State.QUEUED, 0)


@pytest.mark.parametrize("option", ["retry_on", "give_up_on"])
def test_rules_for_errors_say_nothing_about_outcomes(run: Run, option: str) -> None:
    app = App(store=MemoryStore())
    rule: dict[str, Any] = {option: OSError if option == "retry_on" else Exception}

    @app.task(**rule)
    async def act() -> None:
        raise Retry("busy")

    (job,) = worked(run, app, act.new_job())
    assert (job.state, job.last_error) == (State.ERRORED, "busy")


def test_a_raised_outcome_is_no_error_for_tests_of_tasks(run: Run) -> None:
    app = App(store=MemoryStore())

    @app.task
    async def act() -> None:
        raise Retry("busy")

    async def go() -> None:
        store = await app.open()
        await app.enqueue(act.new_job())
        (ran,) = await run_task_list_once(store, {"act": act})
        assert (ran.ended, ran.outcome, ran.error) == (AttemptOutcome.RETRY, Retry("busy"), None)
        with app.immediate():
            job = await act.enqueue()
            assert job.state is State.ERRORED

    run(go())


def test_an_element_of_a_batch_may_raise_retry_or_fail(run: Run) -> None:
    app = App(store=MemoryStore())

    @app.task
    async def act(payload: list[int]) -> list[int | BaseException]:
        async def one(number: int) -> int:
            if number:
                raise Retry("not yet") if number == 1 else Fail("never")
            return number

        return await asyncio.gather(*map(one, payload), return_exceptions=True)

    mixed, final = worked(run, app, act.new_job([0, 1, 2]), act.new_job([0, 2]))
    assert (mixed.state, mixed.payload) == (State.ERRORED, [1, 2])
    assert str(mixed.last_error).splitlines()[0] == "2 of 3 elements failed: not yet, never"
    assert (final.state, final.payload) == (State.FAILED, [2])


def test_one_outcome_for_all_is_as_good_as_a_new_one_each_time(run: Run) -> None:
    app = App(store=MemoryStore())
    not_yet = Snooze(0)
    ended: list[AttemptOutcome] = []

    @app.task
    def act(ctx: Context) -> str:
        if len(ended) < 3:
            raise not_yet
        return "done"

    async def go() -> None:
        async with app:
            await act.enqueue()
            worker = app.worker(once=True)
            worker.events.on(JobEnded, lambda event: ended.append(event.outcome))
            await worker.run()

    run(go())
    assert ended == [AttemptOutcome.SNOOZED] * 3 + [AttemptOutcome.OK]
    assert not_yet.__traceback__ is None


def test_the_result_of_a_task_that_may_end_otherwise_is_read_in_its_type(run: Run) -> None:
    app = App(store=MemoryStore())

    @app.task
    async def act(number: int) -> tuple[int, ...] | Retry | Snooze:
        return (number,)

    async def go() -> None:
        async with app, app.run_in_background():
            assert await act.enqueue_and_wait(3) == (3,)

    run(go())
