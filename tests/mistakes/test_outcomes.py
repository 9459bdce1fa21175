"""Mistakes around outcomes, and the text that each is answered with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from stowhand import App, Cancel, Fail, Retry, Snooze
from stowhand.errors import ConfigurationError
from stowhand.jobs.job import Job, State
from stowhand.outcomes import Complete
from stowhand.testing import MemoryStore


def ended(act: Callable[[], Awaitable[object]], **options: Any) -> Job:
    """The job of a task that does this, after its first attempt."""
    app = App(store=MemoryStore())
    task = app.task(name="act", **options)(act)

    async def go() -> Job:
        async with app:
            handle = await task.enqueue()
            await app.worker(once=True).run()
            return (await handle.refresh()).job

    return asyncio.run(go())


def test_an_outcome_is_raised_as_other_libraries_have_it() -> None:
    async def act() -> None:
        raise Retry("the bank does not answer", delay="5m")

    job = ended(act)
    assert (job.state, job.last_error) == (State.ERRORED, "the bank does not answer")


@pytest.mark.parametrize(
    ("delay", "words"),
    [
        ("soon", "ValueError: Retry: delay: 'soon' is not a duration; write for example 250ms, 30s, 5m, 1.5h or 2d"),
        ("5 minutes", "ValueError: Retry: delay: 'minutes' is not a unit of time; available: ms, s, m, h, d, w"),
        (-5, "ValueError: Retry: delay: -5 seconds; it must not be negative; use 0, or max(0, …)"),
        ([5], "ValueError: Retry: delay: got a list; use seconds, a timedelta or a phrase such as '30s'"),
    ],
    ids=repr,
)
def test_a_delay_that_is_none_is_named_in_the_error_of_the_attempt_which_is_tried_again(delay: Any, words: str) -> None:
    async def act() -> None:
        raise Retry("busy", delay=delay)

    job = ended(act)
    assert (job.state, str(job.last_error).splitlines()[0]) == (State.ERRORED, words)


@pytest.mark.parametrize("delay", [-5, timedelta(seconds=-5), float("-inf")], ids=repr)
def test_a_snooze_into_the_past_is_an_error_for_it_would_never_rest(delay: Any) -> None:
    with pytest.raises(ValueError, match=r"Snooze: delay: -.* seconds; it must not be negative; use 0, or max"):
        Snooze(delay)


@pytest.mark.parametrize("kind", [Cancel, Retry, Fail, Snooze, Complete])
def test_a_class_of_outcomes_that_is_returned_is_an_error_of_the_attempt(kind: type) -> None:
    async def act() -> object:
        return kind

    job = ended(act)
    words = f"the handler returned the class {kind.__name__}: return {kind.__name__}(…), not the class"
    assert (job.state, str(job.last_error).splitlines()[0]) == (State.ERRORED, f"TypeError: {words}")


def test_a_field_of_an_outcome_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match=r"Snooze\.delay cannot be changed; create another Snooze"):
        Snooze(60).delay = 30  # type: ignore[misc]


def test_an_outcome_in_a_task_group_is_an_error_like_any_other() -> None:
    async def stop() -> None:
        raise Fail("never")

    async def act() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(stop())

    job = ended(act)
    assert job.state is State.ERRORED
    assert str(job.last_error).startswith("ExceptionGroup: ")


@pytest.mark.parametrize("option", ["retry_on", "give_up_on"])
def test_an_outcome_in_the_rules_for_errors_is_refused(option: str) -> None:
    rules: dict[str, Any] = {option: (ConnectionError, Retry)}
    with pytest.raises(ConfigurationError, match=f"{option}: Retry is an outcome, not an error; leave it out"):
        App(store=MemoryStore()).task(**rules)(asyncio.sleep)
