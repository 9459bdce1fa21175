"""``retry_on``, ``give_up_on`` and a backoff that looks at the error: which attempts another one follows, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from stowhand.app.app import App, task_handler
from stowhand.errors import ConfigurationError, InvalidJob, NonRetryable, Poison, StoreUnreachable
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Fail, Retry, Snooze
from stowhand.retry import exponential
from stowhand.service.quarantine import Assignment
from stowhand.service.quarantine_child import attempt_in_child
from stowhand.testing import MemoryStore, run_task_list_once
from stowhand.worker.worker import Worker
from tests.worker.worker_harness import WorkerHarness, at_work


@asynccontextmanager
async def doing(function: Callable[..., Any], **options: Any) -> AsyncIterator[WorkerHarness]:
    """A worker whose only task this is, called ``act``."""
    app = App(store=MemoryStore())
    app.task(name="act", **options)(function)
    handler = task_handler(app)
    async with at_work(handler) as harness:
        yield harness
    handler.close()


def raising(error: BaseException) -> Callable[[], Any]:
    async def act() -> None:
        raise error

    return act


def caused_by(inner: BaseException) -> BaseException:
    outer = ValueError("the outer one")
    outer.__cause__ = inner
    return outer


GIVEN_UP = "(not retried: give_up_on has FileNotFoundError)"
NOT_TRIED = "(not retried: retry_on has only OSError)"


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (ConnectionResetError("cut"), None),
        (caused_by(ConnectionResetError("cut")), None),
        (ExceptionGroup("several", [ValueError("a"), ConnectionResetError("cut")]), None),
        (StoreUnreachable("a busy pool is not an error of the task"), None),
        (ValueError("wrong"), NOT_TRIED),
        (SystemExit(3), NOT_TRIED),
        (FileNotFoundError("gone"), GIVEN_UP),
        (caused_by(FileNotFoundError("gone")), GIVEN_UP),
        (ExceptionGroup("several", [ConnectionResetError("cut"), FileNotFoundError("gone")]), GIVEN_UP),
    ],
    ids=repr,
)
async def test_an_error_counts_as_all_that_caused_it_and_giving_up_wins(error: BaseException, note: str | None) -> None:
    async with doing(raising(error), retry_on=OSError, give_up_on=[FileNotFoundError]) as harness:
        job = await harness.does()
        assert job.state is (State.ERRORED if note is None else State.FAILED)
        lines = str(job.last_error).splitlines()
        assert lines[0].startswith(type(error).__name__) or isinstance(error, ExceptionGroup | StoreUnreachable)
        assert (lines[1] if note else None) == note
        assert ("not retried" in str(job.last_error)) is (note is not None)


@pytest.mark.parametrize(("kind", "ended"), [(NonRetryable, "failed"), (Poison, "poison")])
async def test_what_is_never_retried_is_not_retried_by_a_list(kind: type[Exception], ended: str) -> None:
    app = App(store=MemoryStore())
    app.task(name="act", retry_on=Exception)(raising(kind("never")))
    await app.enqueue(NewJob(task="act"))
    (ran,) = await run_task_list_once(await app.open(), {"act": cast("Any", raising(kind("never")))})
    assert ran.ended == ended


async def test_outcomes_and_arguments_of_another_version_and_timeouts_are_no_errors_of_the_task() -> None:
    calls: list[tuple[int, BaseException | None]] = []

    def backoff(attempt: int, error: BaseException | None) -> timedelta:
        calls.append((attempt, error))
        return timedelta(minutes=1)

    async def act(how: str) -> object:
        if how == "slow":
            await asyncio.Event().wait()
        return {"retry": Retry("later"), "soon": Retry("soon", delay=2), "fail": Fail("never")}[how]

    async with doing(act, retry_on=KeyError, backoff=backoff, timeout=5) as harness:
        retried = await harness.does(payload='{"how":"retry"}')
        assert (retried.state, calls) == (State.ERRORED, [(1, None)])
        assert (await harness.does(payload='{"how":"soon"}')).state is State.ERRORED
        assert (await harness.does(payload='{"how":"fail"}')).state is State.FAILED
        assert len(calls) == 1, "the wait was said, or nobody waits"
        slow = await harness.does(payload='{"how":"slow"}', seconds=6)
        assert (slow.state, str(slow.last_error)[:9]) == (State.ERRORED, "timed out")
        assert calls[1:] == [(1, None)] or (2, None) in calls[1:]
        calls.clear()
        other = await harness.does(payload='{"who":"?"}')
        assert other.state is State.ERRORED, "another version may take it"
        assert [type(error).__name__ for _, error in calls] == ["PayloadMismatch"]
        await harness.clock.advance(58)
        assert (await harness.job(other.id)).attempts == 1
        await harness.clock.advance(3)
        assert (await harness.job(other.id)).attempts == 2


async def test_the_backoff_receives_the_error_and_is_called_only_for_a_retry() -> None:
    calls: list[BaseException | None] = []

    def backoff(attempt: int, error: BaseException | None) -> str:
        calls.append(error)
        return "5m" if isinstance(error, PermissionError) else "1s"

    for max_attempts, count in ((2, 1), (1, 0)):
        calls.clear()
        async with doing(raising(PermissionError("locked")), backoff=backoff, max_attempts=max_attempts) as harness:
            job = await harness.does(seconds=290, max_attempts=max_attempts)
            assert (job.attempts, len(calls)) == (1, count)
            await harness.clock.advance(12)
            assert (await harness.job(job.id)).attempts == max_attempts


@pytest.mark.parametrize("wrong", [lambda n, error: 1 / 0, lambda n, error: "soon", lambda n, error: float("nan")])
async def test_a_backoff_that_fails_over_the_error_costs_the_natural_wait(wrong: Callable[..., Any]) -> None:
    async with doing(raising(ValueError("the real reason")), backoff=wrong) as harness:
        job = await harness.does(seconds=2)
        assert (job.state, job.attempts) == (State.ERRORED, 1)
        assert str(job.last_error).startswith("ValueError: the real reason")
        assert "its policy could not determine the delay" in str(job.last_error)
        await harness.clock.advance(1)
        assert (await harness.job(job.id)).attempts == 2


def test_a_process_of_its_own_judges_as_its_worker_does() -> None:
    app = App(store=MemoryStore())
    options: dict[str, Any] = {"retry_on": OSError, "backoff": lambda attempt, error: f"{attempt}m"}
    app.task(name="again", **options)(raising(OSError("cut")))
    app.task(name="over", **options)(raising(ValueError("wrong")))
    app.task(name="said", **options)(raising(Retry("busy", delay="5m")))
    app.task(name="later", **options)(raising(Snooze("1h")))
    expected = (("again", "retry", 60.0), ("over", "fail", None), ("said", "retry", 300.0), ("later", "snooze", 3600.0))

    async def scenario() -> None:
        for name, kind, seconds in expected:
            job = (await app.enqueue(NewJob(task=name))).job
            claimed = msgspec.structs.replace(job, attempts=1)
            assignment = Assignment(claimed, Lease(job.id, "t", 1), None, None, keeps_progress=False)
            answer = await attempt_in_child(task_handler(app), assignment)
            assert (answer.kind, answer.seconds) == (kind, seconds)

    asyncio.run(scenario())


# -- declared ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry_on": "OSError"}, r"retry_on: got a str \('OSError'\); use exception types: ConnectionError, or \("),
        ({"retry_on": OSError("x")}, "retry_on: got an OSError"),
        ({"give_up_on": (KeyError, int)}, "give_up_on: int is not an exception type"),
        ({"retry_on": ()}, "retry_on: no exception type; to retry nothing, write max_attempts=1"),
        ({"give_up_on": []}, "give_up_on: no exception type; leave it out"),
        ({"retry_on": ConnectionError, "give_up_on": OSError}, r"ConnectionError is also in give_up_on \(OSError\)"),
        ({"retry_on": Poison}, "retry_on: Poison is never retried; leave it out"),
        ({"retry_on": InvalidJob}, "retry_on: InvalidJob is never retried; leave it out"),
        ({"retry_om": OSError}, "no task option 'retry_om'; did you mean 'retry_on'"),
        ({"backoff": lambda: 1}, r"backoff: takes \(\); write backoff\(attempt\) or backoff\(attempt, error\)"),
        (
            {"backoff": lambda a, b, c: 1},
            r"backoff: takes \(a, b, c\); write backoff\(attempt\) or backoff\(attempt, error\)$",
        ),
        ({"backoff": asyncio.sleep}, "backoff: an async function, which would not be awaited; write a plain def"),
    ],
)
def test_wrong_rules_are_refused_when_declared(options: dict[str, Any], words: str) -> None:
    app = App(store=MemoryStore())
    with pytest.raises(ConfigurationError, match=words):
        app.task(name="act", **options)(lambda: None)
    assert len(app.registry) == 0


def one(attempt: int, factor: float = 2.0) -> float:
    return attempt * factor


def two(attempt: int, error: BaseException | None = None) -> float:
    return 7.0 if error is not None else 0.0


class Own:
    """An object whose equality is its own has no hash."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, attempt: int, reason: object) -> float:
        return 9.0 if reason is not None else 0.0


@pytest.mark.parametrize(
    ("backoff", "waits"), [(one, 2.0), (two, 7.0), (Own(), 9.0), (exponential(base=3.0), 3.0), (lambda *n: 5.0, 5.0)]
)
async def test_a_backoff_takes_the_attempt_or_the_error_too_as_its_signature_says(
    backoff: Callable[..., Any], waits: float
) -> None:
    async with doing(raising(ValueError("no")), backoff=backoff) as harness:
        job = await harness.does(seconds=waits - 0.5)
        assert job.attempts == 1
        await harness.clock.advance(1)
        assert (await harness.job(job.id)).attempts == 2


async def test_a_workers_backoff_by_error_applies_to_every_task() -> None:
    app = App(store=MemoryStore())
    app.task(name="act")(raising(ValueError("no")))
    async with app:
        worker: Worker = app.worker(backoff=two, once=True)
        job = await app.enqueue(NewJob(task="act"))
        await worker.run()
        left = await (await app.open()).jobs.get(job.id)
        assert left is not None
        assert left.updated_at is not None
        assert 7 <= (left.run_at - left.updated_at).total_seconds() < 60
