"""Jobs whose payload is an array: what is left of them when some elements failed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stowhand.app.app import App, task_handler
from stowhand.errors import NonRetryable
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Complete, Fail, Retry, Settlement, settle
from stowhand.jobs.outcomes import from_returned
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import Claim
from stowhand.retry import constant
from stowhand.service.quarantine_child import answer_of
from stowhand.tasks.batch import judge_batch
from stowhand.tasks.retry_rules import RetryRules
from stowhand.testing import MemoryStore
from stowhand.worker.policy import Policy
from tests.conftest import Run


def judge(payload: Any, returned: list[Any], warn: Callable[[str], None] = pytest.fail, **policy: Any) -> object:
    text = payload if isinstance(payload, str | None) else json.dumps(payload)
    return from_returned(asyncio.run(judge_batch(claim_of(text), Policy(**policy), returned, warn)))


def claim_of(text: str | None) -> Claim[Job]:
    now = datetime.now(UTC)
    job = Job(
        id=1, task="sum_up", payload_text=text or "", state=State.PROCESSING, serial=None, priority=0, run_at=now,
        attempts=2, max_attempts=3, created_at=now,
    )  # fmt: skip
    return Claim(Lease(1, "token", 1), job, job.task, job.attempts, job.max_attempts, job.serial)


def test_what_failed_is_left_and_the_error_lists_every_message() -> None:
    outcome = judge([1, 2, 3], [ValueError("no 1"), "fine", KeyError("three")])
    assert isinstance(outcome, Retry)
    assert outcome.payload == "[1,3]"
    assert outcome.error.splitlines()[:3] == [
        "2 of 3 elements failed: ValueError: no 1, KeyError: 'three'",
        "element 1: ValueError: no 1",
        "element 3: KeyError: 'three'",
    ]


def test_a_retry_or_a_fail_in_a_place_is_no_success_either() -> None:
    outcome = judge([1, 2, 3], [Retry("not yet", delay=60), "fine", Fail("never")])
    assert isinstance(outcome, Retry)
    assert outcome.payload == "[1,3]"
    assert outcome.error.splitlines() == [
        "2 of 3 elements failed: not yet, never", "element 1: not yet", "element 3: never",
    ]  # fmt: skip
    assert judge([1, 2], [Fail("never"), "fine"]) == Fail(
        "1 of 2 elements failed: never\nelement 1: never", payload="[1]"
    )


def test_elements_that_the_task_gives_up_on_fail_a_job_that_has_no_others() -> None:
    rules = RetryRules((LookupError,), (KeyError,))
    calls: list[BaseException | None] = []

    def wait(attempt: int, error: BaseException | None) -> float:
        calls.append(error)
        return attempt * 10.0

    policy: dict[str, Any] = {"gives_up": rules.final_reason, "backoff": wait}
    assert judge([1, 2, 3], [KeyError("a"), "fine", ValueError("b")], **policy) == Fail(
        "2 of 3 elements failed: KeyError: 'a', ValueError: b\nelement 1: KeyError: 'a'\nelement 3: ValueError: b\n"
        "KeyError: 'a'",
        payload="[1,3]",
    )
    outcome = judge([1, 2, 3], [KeyError("a"), IndexError("b"), Retry("c")], **policy)
    assert isinstance(outcome, Retry)
    assert (outcome.payload, outcome.delay) == ("[1,2,3]", 20.0)
    (group,) = calls
    assert isinstance(group, ExceptionGroup)
    assert [type(one) for one in group.exceptions] == [KeyError, IndexError]
    assert judge([1], [Retry("c")], **policy) == Retry("1 of 1 elements failed: c\nelement 1: c", 20.0, "[1]")
    assert calls[1] is None


def test_a_list_without_exceptions_is_an_ordinary_result() -> None:
    assert judge([1, 2], ["a", None]) == Complete(["a", None])
    assert judge([], []) == Complete([])


@pytest.mark.parametrize("payload", ['{"a": [1]}', "{}", '"[1]"', "1", None])
def test_a_payload_that_is_no_array_is_no_batch(payload: str | None) -> None:
    returned = [ValueError("kept")]
    assert judge(payload, returned) == Complete(returned)


@pytest.mark.parametrize("returned", [[], [None], [None] * 4, [ValueError("lost")]])
def test_a_list_of_another_length_is_a_success_with_a_warning(returned: list[Any]) -> None:
    warnings: list[str] = []
    assert judge([1, 2, 3], returned, warnings.append) == Complete(returned)
    (warning,) = warnings
    assert warning.startswith(f"returned a list of {len(returned)} for a payload of 3 elements, ")
    assert warning.endswith("the job counts as completed")


def test_awaitables_in_the_list_are_awaited_concurrently() -> None:
    met = []

    async def meet(number: int, others: asyncio.Barrier) -> int:
        await others.wait()
        met.append(number)
        if number == 2:
            raise ValueError("no 2")
        return number

    async def story() -> object:
        barrier = asyncio.Barrier(3)
        returned = [meet(number, barrier) for number in (1, 2, 3)]
        return await judge_batch(claim_of("[1, 2, 3]"), Policy(), [*returned], pytest.fail)

    outcome = asyncio.run(asyncio.wait_for(story(), 10))
    assert isinstance(outcome, Retry)
    assert outcome.payload == "[2]"
    assert sorted(met) == [1, 2, 3]


def test_what_is_left_is_kept_to_the_letter() -> None:
    text = '[ {"n": 12345678901234567890.10, "b":1} , "\\u00e9é" , 1e400 , [ 1,2 ] ]'
    outcome = judge(text, [ValueError("x"), ValueError("y"), None, ValueError("z")])
    assert isinstance(outcome, Retry)
    assert outcome.payload == '[{"n": 12345678901234567890.10, "b":1},"\\u00e9é",[ 1,2 ]]'


def test_a_batch_fails_at_once_if_all_failures_are_final() -> None:
    outcome = judge([1, 2], [None, NonRetryable("never")])
    assert isinstance(outcome, Fail)
    assert outcome.payload == "[2]"
    mixed = judge([1, 2], [ValueError("later"), NonRetryable("never")])
    assert isinstance(mixed, Retry)
    assert mixed.payload == "[1,2]"


def test_thousands_of_failures_make_an_error_that_can_be_kept() -> None:
    outcome = judge(list(range(5000)), [ValueError("x" * 500 + str(n)) for n in range(5000)])
    assert isinstance(outcome, Retry)
    assert len(outcome.error.encode()) <= 16 * 1024
    assert outcome.payload is not None
    assert len(json.loads(outcome.payload)) == 5000


@pytest.mark.parametrize("nonsense", ["[1", "", "NaN", '"\\ud800"', 5, ["a"]])
def test_a_payload_that_no_worker_could_read_is_not_kept(nonsense: Any) -> None:
    for outcome in (Retry("why", None, nonsense), Fail("why", payload=nonsense)):
        kept = from_returned(outcome)
        assert isinstance(kept, Retry | Fail)
        assert kept.payload is None
        assert kept.error.startswith("why (its new payload cannot be stored: ")


@pytest.mark.parametrize("attempts", [1, 3])
def test_the_last_attempt_leaves_what_is_left_too(attempts: int) -> None:
    settlement: Settlement = settle(Retry("why", None, "[2]"), attempts=attempts, max_attempts=3, backoff=constant(1.0))
    assert settlement.payload == "[2]"
    assert settlement.state is (State.FAILED if attempts == 3 else State.ERRORED)


def test_what_is_left_is_left_even_when_the_wait_cannot_be_decided(run: Run) -> None:
    app = App(store=MemoryStore())

    def broken(attempt: int) -> float:
        raise ZeroDivisionError

    @app.task(name="sum_up", backoff=broken)
    async def sum_up(payload: list[int]) -> list[object]:
        return [None, ValueError("no 2")]

    job = run(worked_off(app, [1, 2]))
    assert (job.state, job.payload_text) == (State.ERRORED, "[2]")
    assert "its policy could not determine the delay" in (job.last_error or "")


def test_what_is_left_comes_back_from_a_child_process() -> None:
    for outcome in (Retry("why", 2.0, "[2]"), Fail("why", True, "[2]")):
        assert answer_of(outcome, None, ()).outcome() == outcome


# -- on stores -------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    if request.param == "memory":
        return App(store=MemoryStore())
    if request.param == "sqlite":
        return App(f"sqlite:///{tmp_path}/queue.db")
    return App(request.getfixturevalue("postgres_url"))


async def worked_off(app: App, payload: Any, **options: Any) -> Job:
    """The job after everything that is due has run."""
    store = await app.open(install=True)
    try:
        job = await app.enqueue(NewJob(task="sum_up", payload=json.dumps(payload), **options))
        await asyncio.wait_for(app.worker(once=True).run(), 20)
        after = await store.jobs.get(job.id)
        assert after is not None
        return after
    finally:
        await app.close()


def declare(app: App, fails: Callable[[int, int], bool]) -> list[list[int]]:
    """A task whose elements fail as told: (element, attempt). What it was given each time."""
    values: list[list[int]] = []

    @app.task(name="sum_up", backoff=constant(0.0))
    async def sum_up(payload: list[int]) -> list[object]:
        values.append(payload)

        async def one(number: int) -> int:
            if fails(number, len(values)):
                raise ValueError(f"no {number}")
            return number

        return await asyncio.gather(*map(one, payload), return_exceptions=True)

    return values


def test_a_batch_is_retried_with_its_failed_elements_until_none_is_left(app: App, run: Run) -> None:
    value = declare(app, lambda number, attempt: number % 2 == 1 and attempt < number)
    job = run(worked_off(app, [1, 2, 3, 5]))
    assert value == [[1, 2, 3, 5], [3, 5], [3, 5], [5], [5]] or value == [[1, 2, 3, 5], [3, 5], [5], [5], [5]]
    assert (job.state, job.attempts) == (State.COMPLETED, len(value))


def test_a_batch_without_attempts_fails_with_the_remaining_elements(app: App, run: Run) -> None:
    value = declare(app, lambda number, attempt: number != 2)
    job = run(worked_off(app, [1, 2, 3], max_attempts=2))
    assert value == [[1, 2, 3], [1, 3]]
    assert (job.state, job.attempts, json.loads(job.payload_text or "")) == (State.FAILED, 2, [1, 3])
    assert job.last_error is not None
    assert "no 1" in job.last_error
    assert "no 3" in job.last_error


def test_the_handler_of_a_worker_judges_lists() -> None:
    app = App(store=MemoryStore())
    declare(app, lambda number, attempt: number == 2)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    job = Job(
        id=1, task="sum_up", payload_text="[1,2]", state=State.PROCESSING, serial=None, priority=0,
        run_at=noon, attempts=1, max_attempts=25, created_at=noon,
    )  # fmt: skip
    outcome = asyncio.run(task_handler(app).handle(Attempt(Claim(Lease(1, "t", 1), job, "sum_up", 1, 25), 0.0), job))
    assert isinstance(outcome, Retry)
    assert outcome.payload == "[2]"
