"""What the worker says costs nothing where nobody listens, and listeners cannot harm it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stowhand.events import (
    ClaimFinished,
    ClaimStarted,
    Event,
    Events,
    HookFinished,
    JobEnded,
    JobLeft,
    JobStarted,
    Settled,
    WorkerStarted,
    WorkerStopped,
)
from stowhand.jobs.job import NewJob, State
from stowhand.protocols.attempt import Stop
from stowhand.protocols.options import WorkerOptions
from stowhand.testing import FakeClock
from stowhand.worker import executor, settler, worker
from tests.worker.worker_harness import KINDS, FaultyStore, at_work, handler_of, nothing


async def test_without_listeners_no_event_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("built although nobody listens")

    monkeypatch.setattr(executor, "JobStarted", build)
    monkeypatch.setattr(settler.Settler, "_job_ended", build)
    clock = FakeClock()
    store = FaultyStore(clock)
    await store.jobs.enqueue_many([NewJob(task="act")] * 20)
    one = worker.Worker(store, handler_of(nothing), WorkerOptions(once=True), clock=clock, events=Events())
    await one.run()
    assert {row.state for row in store.rows()} == {State.COMPLETED}


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_a_listener_that_raises_harms_neither_the_job_nor_other_listeners(error: type[BaseException]) -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    events = Events()
    heard: list[Event] = []
    troubles: list[str] = []

    def raises(event: Event) -> None:
        raise error(type(event).__name__)

    for kind in KINDS:
        events.on(kind, raises)
        events.on(kind, heard.append)
    events.on_listener_error = lambda listener, event, error: troubles.append(str(error))
    await store.jobs.enqueue(NewJob(task="act"))
    await worker.Worker(store, handler_of(nothing), WorkerOptions(once=True), clock=clock, events=events).run()
    assert {row.state for row in store.rows()} == {State.COMPLETED}
    assert [event.__class__.__name__ for event in heard] == troubles
    calls = (ClaimStarted, ClaimFinished, Settled)
    assert [type(event) for event in heard if not isinstance(event, calls)] == [
        WorkerStarted, JobStarted, HookFinished, JobLeft, JobEnded, WorkerStopped,
    ]  # fmt: skip


async def test_a_listener_error_hook_that_raises_is_no_danger_either() -> None:
    events = Events()

    def raises(*args: Any) -> None:
        raise ZeroDivisionError

    events.on(WorkerStarted, raises)
    events.on_listener_error = raises
    events.emit(WorkerStarted("w", None))


async def test_the_event_of_an_ended_job_has_its_attempt_and_duration() -> None:
    clock = FakeClock()

    async def act(attempt: Any) -> None:
        await clock.sleep(2.5)

    async with at_work(act, clock=clock) as harness:
        await harness.does(seconds=3)
        (event,) = harness.events(JobEnded)
        assert (event.worker, event.task, event.attempt, event.max_attempts) == ("w", "act", 1, 25)
        assert (event.seconds, event.error) == (2.5, None)


def test_every_reason_to_stop_is_reported() -> None:
    assert {stop.value for stop in Stop} == {"timeout", "canceled", "lost", "returned", "crashed", "unable"}
