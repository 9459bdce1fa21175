"""Whatever a handler returns or raises becomes an outcome, and what is stored of it is safe to store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from stowhand.errors import NonRetryable, Poison, UndecodablePayload
from stowhand.events import HookFinished, JobEnded, ResultDropped
from stowhand.jobs.job import DROPPED_RESULT, Job, NewJob, State
from stowhand.jobs.lifecycle import AttemptOutcome, Cancel, Complete, Fail, Outcome, Retry, Snooze
from stowhand.jobs.outcomes import describe, from_error, from_returned
from stowhand.jobs.text import MAX_ERROR_BYTES
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import Claim
from stowhand.worker.policy import Policy
from tests.worker.worker_harness import Act, at_work, nothing


def returning(value: object) -> Act:
    async def act(attempt: Attempt[Job]) -> object:
        return value

    return act


def raising(make: Callable[[], BaseException]) -> Act:
    async def act(attempt: Attempt[Job]) -> object:
        raise make()

    return act


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class Ending:
    """Its text ends the process, or would."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Unbound:
    """As a web framework's proxy is outside of a request: it cannot even be asked what it is."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("outside of a request")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


# -- returned ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "state", "ended"),
    [
        (None, State.COMPLETED, AttemptOutcome.OK),
        ({"any": "thing"}, State.COMPLETED, AttemptOutcome.OK),
        (Complete(), State.COMPLETED, AttemptOutcome.OK),
        (Retry("later"), State.ERRORED, AttemptOutcome.RETRY),
        (Fail("never"), State.FAILED, AttemptOutcome.FAILED),
        (Fail("never", poison=True), State.FAILED, AttemptOutcome.POISON),
        (Snooze(60), State.QUEUED, AttemptOutcome.SNOOZED),
        (Cancel("no longer"), State.CANCELED, AttemptOutcome.CANCELED),
    ],
)
async def test_a_returned_outcome_decides_the_state(value: object, state: State, ended: AttemptOutcome) -> None:
    async with at_work(returning(value)) as harness:
        job = await harness.does()
        assert job.state is state
        assert [event.outcome for event in harness.events(JobEnded)] == [ended]


async def test_a_retry_waits_as_long_as_it_says() -> None:
    async with at_work(returning(Retry("busy", delay=timedelta(minutes=2)))) as harness:
        job = await harness.does(seconds=119)
        assert (job.attempts, job.last_error) == (1, "busy")
        await harness.clock.advance(2)
        assert (await harness.job(job.id)).attempts == 2


async def test_a_snooze_spends_no_attempt() -> None:
    async with at_work(returning(Snooze(timedelta(seconds=30)))) as harness:
        job = await harness.does(seconds=29, max_attempts=1)
        assert (job.state, job.attempts) == (State.QUEUED, 0)
        assert len(harness.events(JobEnded)) == 1
        await harness.clock.advance(32)
        assert len(harness.events(JobEnded)) == 3


async def test_a_wrong_delay_is_an_error_of_the_attempt_and_is_tried_again() -> None:
    async def act(attempt: Attempt[Job]) -> object:
        return Retry("why", delay="Wed, 21 Oct 2026 07:28:00 GMT")

    async with at_work(act) as harness:
        job = await harness.does()
        assert job.state is State.ERRORED
        assert str(job.last_error).startswith("ValueError: Retry: delay: 'Wed, 21 Oct 2026")


@pytest.mark.parametrize("make", [Retry, Fail, Cancel])
@pytest.mark.parametrize("words", ["", "  ", None, 7, Unprintable(), "a\x00b\ud800c", "x" * 100_000])
def test_reasons_of_any_kind_are_made_storable(make: Callable[[object], Outcome], words: object) -> None:
    outcome = from_returned(make(words))
    text = outcome.reason if isinstance(outcome, Cancel) else outcome.error  # type: ignore[union-attr]
    assert text
    assert "\x00" not in text
    assert len(text.encode()) <= MAX_ERROR_BYTES


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Unbound, "RuntimeError: outside of a request"),
        (lambda: Retry(Ending()), "SystemExit: 3"),  # type: ignore[arg-type]
        (lambda: Fail(Ending()), "SystemExit: 3"),  # type: ignore[arg-type]
        (lambda: Cancel(Ending()), "SystemExit: 3"),  # type: ignore[arg-type]
    ],
)
async def test_what_cannot_be_looked_at_ends_nothing_but_its_attempt(made: Callable[[], object], said: str) -> None:
    async with at_work({"bad": returning(made()), "good": nothing}, concurrency=1) as harness:
        bad = await harness.does("bad")
        assert (bad.state, bad.attempts) == (State.ERRORED, 1)
        assert str(bad.last_error).startswith(said)
        assert "executor.py" not in str(bad.last_error)
        assert (await harness.does("good")).state is State.COMPLETED


# -- raised --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueError("no"),
        lambda: SystemExit(3),
        KeyboardInterrupt,
        GeneratorExit,
        asyncio.CancelledError,
        lambda: StopIteration(1),
        lambda: BaseExceptionGroup("many", [SystemExit(1), ValueError("no")]),
        UnprintableError,
    ],
)
async def test_an_error_of_any_kind_is_retried_and_ends_nothing_but_its_attempt(
    make: Callable[[], BaseException],
) -> None:
    async with at_work({"bad": raising(make), "good": nothing}, concurrency=1) as harness:
        bad = await harness.does("bad")
        assert (bad.state, bad.attempts) == (State.ERRORED, 1)
        assert bad.last_error
        assert (await harness.does("good")).state is State.COMPLETED


async def test_the_last_attempt_fails_the_job() -> None:
    async with at_work(raising(lambda: ValueError("no"))) as harness:
        job = await harness.does(seconds=60, max_attempts=3)
        assert (job.state, job.attempts) == (State.FAILED, 3)
        assert str(job.last_error).startswith("ValueError: no\nTraceback")


def caused(error: Exception) -> Exception:
    with contextlib.suppress(ValueError):
        raise ValueError("the outer one") from error
    outer = ValueError("the outer one")
    outer.__cause__ = error
    return outer


def in_context(error: Exception) -> Exception:
    try:
        try:
            raise error
        except Exception:  # noqa: BLE001 - the point: another error while this one is handled
            raise ValueError("the outer one")  # noqa: B904
    except ValueError as outer:
        return outer


def grouped(error: Exception) -> Exception:
    return ExceptionGroup("outer", [ValueError("another"), ExceptionGroup("inner", [caused(error)])])


@pytest.mark.parametrize("wrap", [lambda error: error, caused, in_context, grouped])
@pytest.mark.parametrize(("kind", "ended"), [(NonRetryable, AttemptOutcome.FAILED), (Poison, AttemptOutcome.POISON)])
async def test_a_non_retryable_anywhere_among_the_causes_fails_at_once(
    wrap: Callable[[Exception], Exception], kind: type[Exception], ended: AttemptOutcome
) -> None:
    async with at_work(raising(lambda: wrap(kind("gone")))) as harness:
        assert (await harness.does()).state is State.FAILED
        assert [event.outcome for event in harness.events(JobEnded)] == [ended]


def test_a_context_that_was_suppressed_does_not_count() -> None:
    error = in_context(Poison("handled, and overcome"))
    assert isinstance(from_error(error), Fail)
    error.__suppress_context__ = True  # as ``raise … from None`` does
    assert isinstance(from_error(error), Retry)


def test_causes_that_go_in_a_circle_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert isinstance(from_error(one), Retry)


def test_twenty_thousand_causes_do_not_exhaust_the_stack() -> None:
    innermost: Exception = Poison("deep down")
    for depth in range(20_000):
        innermost, outer = ValueError(str(depth)), innermost
        innermost.__cause__ = outer
    outcome = from_error(innermost)
    assert isinstance(outcome, Fail)
    assert outcome.poison


def deep(levels: int) -> int:
    return deep(levels + 1) + 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueError("x" * 10_000_000),
        lambda: ValueError("a\x00b\udfffc"),
        UnprintableError,
        lambda: ValueError(Unprintable()),
    ],
)
def test_any_error_has_a_text_that_can_be_stored(make: Callable[[], BaseException]) -> None:
    text = describe(make())
    assert text
    assert "\x00" not in text
    assert len(text.encode()) <= MAX_ERROR_BYTES


async def test_endless_recursion_is_an_error_like_any_other() -> None:
    async def act(attempt: Attempt[Job]) -> object:
        return deep(0)

    async with at_work(act) as harness:
        job = await harness.does()
        assert str(job.last_error).startswith("RecursionError: ")


def test_the_first_line_is_the_error_even_when_it_has_notes() -> None:
    error = ValueError("no")
    error.add_note("by the way")
    assert describe(error).splitlines()[0] == "ValueError: no"
    assert "by the way" in describe(error)


def test_the_first_line_of_a_syntax_error_is_its_message() -> None:
    with pytest.raises(SyntaxError) as caught:
        compile("a b", "<code>", "exec")
    assert describe(caught.value).startswith("SyntaxError: ")


async def test_the_traceback_begins_with_the_handler() -> None:
    async with at_work(raising(lambda: ValueError("no"))) as harness:
        trace = str((await harness.does()).last_error).splitlines()
        assert "in act" in trace[2]


def test_an_undecodable_payload_is_reported_without_a_traceback() -> None:
    outcome = from_error(UndecodablePayload("payload: 1e5000 is too large a number"))
    undecodable = "stowhand.errors.UndecodablePayload"
    assert outcome == Fail("payload: 1e5000 is too large a number", poison=True, error_class=undecodable)


# -- raised outcomes -------------------------------------------------------------------------------


RAISED: list[tuple[Exception, State, AttemptOutcome]] = [
    (Retry("later"), State.ERRORED, AttemptOutcome.RETRY),
    (Fail("never"), State.FAILED, AttemptOutcome.FAILED),
    (Fail("never", poison=True), State.FAILED, AttemptOutcome.POISON),
    (Snooze(60), State.QUEUED, AttemptOutcome.SNOOZED),
    (Cancel("no longer"), State.CANCELED, AttemptOutcome.CANCELED),
]


async def recorded(act: Act, **options: Any) -> tuple[Job, list[JobEnded]]:
    """The job after one attempt, and what was reported of it."""
    async with at_work(act, **options) as harness:
        job = await harness.does()
        return job, harness.events(JobEnded)


def shown(job: Job, events: list[JobEnded]) -> list[object]:
    return [job.state, job.attempts, job.last_error, *[(one.outcome, one.error, one.retry_in) for one in events]]


@pytest.mark.parametrize(("outcome", "state", "ended"), RAISED, ids=repr)
async def test_a_raised_outcome_is_recorded_as_the_returned_one(
    outcome: Exception, state: State, ended: AttemptOutcome
) -> None:
    async def later(attempt: Attempt[Job]) -> object:
        await asyncio.sleep(0)
        raise outcome

    returned = shown(*await recorded(returning(outcome)))
    for act in (raising(lambda: outcome), later):
        job, events = await recorded(act)
        assert (job.state, [one.outcome for one in events]) == (state, [ended])
        assert shown(job, events) == returned
        assert "Traceback" not in (job.last_error or "")


async def test_the_policy_is_not_called_for_a_raised_outcome() -> None:
    calls: list[BaseException | None] = []

    def backoff(attempt: int, error: BaseException | None) -> float:
        calls.append(error)
        return 60.0

    def gives_up(error: BaseException) -> str:
        raise AssertionError

    raises = Encoding(str, lambda claim: Policy(backoff=backoff, gives_up=gives_up))
    raises.returns = Retry("busy")
    async with at_work(raises) as harness:
        assert (await harness.does()).state is State.ERRORED
    assert calls == [None]


@pytest.mark.parametrize("outcome", [one for one, _, _ in RAISED], ids=repr)
@pytest.mark.parametrize("wrap", [caused, in_context, grouped])
async def test_an_outcome_that_is_a_cause_or_in_a_group_is_an_error_like_any_other(
    outcome: Exception, wrap: Callable[[Exception], Exception]
) -> None:
    job, events = await recorded(raising(lambda: wrap(outcome)))
    assert (job.state, job.attempts, [one.outcome for one in events]) == (State.ERRORED, 1, [AttemptOutcome.RETRY])
    assert "outer" in str(job.last_error).splitlines()[0]


async def test_an_outcome_outweighs_the_poison_that_it_was_raised_from() -> None:
    def make() -> BaseException:
        outcome = Snooze(60)
        outcome.__cause__ = Poison("no good")
        return outcome

    job, _ = await recorded(raising(make))
    assert job.state is State.QUEUED


@pytest.mark.parametrize("kind", [Retry, Fail])
def test_the_error_that_an_outcome_was_raised_from_is_kept_below_its_words(kind: type[Retry] | type[Fail]) -> None:
    def act() -> None:
        try:
            raise ConnectionError("refused")
        except ConnectionError as error:
            raise kind("the bank does not answer") from error

    with pytest.raises(kind) as caught:
        act()
    outcome = from_error(caught.value)
    assert isinstance(outcome, kind)
    assert outcome.error.splitlines()[:2] == ["the bank does not answer", "ConnectionError: refused"]
    assert "in act" in outcome.error
    assert outcome.error_class == "ConnectionError"


@pytest.mark.parametrize("kind", [Retry, Fail])
def test_an_exception_that_is_given_as_the_error_keeps_its_text_and_its_class(kind: type[Retry] | type[Fail]) -> None:
    def act() -> None:
        try:
            raise ConnectionError("refused")
        except ConnectionError as error:
            raise kind(error)  # noqa: B904 - the exception is the cause already

    with pytest.raises(kind) as caught:
        act()
    raised, returned = from_error(caught.value), from_returned(kind(ConnectionError("refused")))
    assert isinstance(raised, kind)
    assert isinstance(returned, kind)
    title, below, *_ = raised.error.splitlines()
    assert (title, below) == ("ConnectionError: refused", "Traceback (most recent call last):")
    assert returned.error == "ConnectionError: refused"
    assert raised.error_class == returned.error_class == "ConnectionError"


def test_a_context_that_is_no_cause_adds_nothing() -> None:
    raised = Retry("busy")
    raised.__context__ = ConnectionError("refused")
    assert from_error(raised) == Retry("busy")


async def test_one_instance_may_be_raised_again_and_again_and_keeps_nothing_of_it() -> None:
    not_yet = Snooze(1)

    async def act(attempt: Attempt[Job]) -> object:
        try:
            raise ValueError("with a big frame")
        except ValueError as error:
            raise not_yet from error

    async with at_work(act) as harness:
        await harness.does(seconds=5)
        assert len(harness.events(JobEnded)) > 2
    assert (not_yet.__traceback__, not_yet.__cause__, not_yet.__context__) == (None, None, None)
    assert not_yet == Snooze(1)


@pytest.mark.parametrize("end", ["return", "raise"])
async def test_an_outcome_after_the_timeout_counts_raised_or_returned(end: str) -> None:
    async def act(attempt: Attempt[Job]) -> object:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if end == "raise":
                raise Fail("took too long for me") from None
        return Fail("took too long for me")

    async with at_work(act, timeout=5) as harness:
        job = await harness.does(seconds=6)
        assert (job.state, job.last_error) == (State.FAILED, "took too long for me")


class Hooked:
    """A handler with hooks, which raises an outcome in one of its functions."""

    def __init__(self, place: str, outcome: Exception) -> None:
        self.place, self.outcome = place, outcome
        self.called: list[str] = []
        self.asked: list[BaseException] = []

    async def pre_handle(self, attempt: Attempt[Job], job: Job) -> None:
        await self._called("pre_handle")

    async def handle(self, attempt: Attempt[Job], job: Job) -> None:
        await self._called("handle")

    async def post_handle(self, attempt: Attempt[Job], job: Job) -> None:
        await self._called("post_handle")

    def retryable(self, error: BaseException) -> bool:
        self.asked.append(error)
        return False

    async def _called(self, place: str) -> None:
        self.called.append(place)
        if place == self.place:
            raise self.outcome


@pytest.mark.parametrize(
    ("place", "called"),
    [("pre_handle", ["pre_handle", "post_handle"]), ("handle", ["pre_handle", "handle", "post_handle"])],
)
@pytest.mark.parametrize(("outcome", "state", "ended"), RAISED, ids=repr)
async def test_a_hook_or_a_handler_may_raise_an_outcome_and_post_handle_follows(
    place: str, called: list[str], outcome: Exception, state: State, ended: AttemptOutcome
) -> None:
    hooked = Hooked(place, outcome)
    async with at_work(hooked) as harness:
        job = await harness.does()
        assert (job.state, [one.outcome for one in harness.events(JobEnded)]) == (state, [ended])
        assert [one.failed for one in harness.events(HookFinished)] == [False] * len(called)
    assert (hooked.called, hooked.asked) == (called, [])


# -- results, policies -----------------------------------------------------------------------------


class Encoding:
    """A handler with the optional hooks."""

    def __init__(self, encode: Callable[[object], str], policy: Callable[[Claim[Job]], Policy] | None = None) -> None:
        self.encode = encode
        if policy is not None:
            self.policy = policy
        self.returns: object = {"a": 1}

    async def handle(self, attempt: Attempt[Job], job: Job) -> object:
        if isinstance(self.returns, Exception):
            raise self.returns
        return self.returns


async def test_a_result_is_kept_as_the_handler_encodes_it() -> None:
    async with at_work(Encoding(lambda result: f'"{result}"')) as harness:
        assert (await harness.does()).result_text == "\"{'a': 1}\""


@pytest.mark.parametrize(
    "error", [ValueError("no"), TypeError("no"), RecursionError("deep"), UnprintableError(), SystemExit(3)]
)
async def test_a_result_that_cannot_be_encoded_is_dropped_and_the_job_completed(error: BaseException) -> None:
    def encode(result: object) -> str:
        raise error

    async with at_work(Encoding(encode)) as harness:
        job = await harness.does()
        assert (job.state, job.result, job.result_text) == (State.COMPLETED, None, DROPPED_RESULT)
        assert len(harness.events(ResultDropped)) == 1


async def test_nothing_is_encoded_where_there_is_no_result() -> None:
    def encode(result: object) -> str:
        raise AssertionError

    hooked = Encoding(encode)
    hooked.returns = None
    async with at_work(hooked) as harness:
        assert (await harness.does()).state is State.COMPLETED
        assert harness.events(ResultDropped) == []


def failing(attempt: int) -> float:
    raise ZeroDivisionError("in the backoff")


def leaving(attempt: int) -> float:
    raise SystemExit(3)


@pytest.mark.parametrize(
    "backoff", [failing, leaving, lambda n: float("nan"), lambda n: float("inf"), lambda n: "soon"]
)
async def test_a_failing_backoff_gives_its_job_the_natural_delay_and_affects_no_other(
    backoff: Callable[[int], float],
) -> None:
    hooked = Encoding(str, lambda claim: Policy(backoff=backoff))
    hooked.returns = ValueError("the real reason")
    async with at_work(hooked) as harness:
        job = await harness.does()
        assert job.state is State.ERRORED
        assert str(job.last_error).startswith("ValueError: the real reason")
        assert "its policy could not determine the delay" in str(job.last_error)
        await harness.clock.advance(2.8)
        assert (await harness.job(job.id)).attempts == 2


@pytest.mark.parametrize("wait", [Decimal(60), Fraction(60), timedelta(minutes=1)], ids=repr)
async def test_a_backoff_may_give_any_number_or_a_duration(wait: Any) -> None:
    hooked = Encoding(str, lambda claim: Policy(backoff=lambda attempt: wait))
    hooked.returns = ValueError("no")
    async with at_work(hooked) as harness:
        job = await harness.does(seconds=59)
        assert (job.attempts, "could not be decided" in str(job.last_error)) == (1, False)
        await harness.clock.advance(2)
        assert (await harness.job(job.id)).attempts == 2


async def test_a_policy_that_fails_costs_an_attempt_and_not_the_worker() -> None:
    async def waits(attempt: Attempt[Job], job: Job) -> None:
        await asyncio.sleep(0)

    class Broken:
        handle = staticmethod(waits)

        def policy(self, claim: Claim[Job]) -> Policy:
            raise ZeroDivisionError("in the policy")

    async with at_work(Broken()) as harness:
        job = await harness.does()
        assert job.state is State.ERRORED
        assert "in the policy" in str(job.last_error)


@pytest.mark.parametrize(
    ("outcome", "state", "said"),
    [
        (Poison("no good"), State.FAILED, "no good"),
        (Fail("never"), State.FAILED, "never"),
        (Cancel("not wanted"), State.CANCELED, "not wanted"),
        (Snooze(60), State.QUEUED, None),
        (Complete("a result"), State.COMPLETED, None),
        (Retry("later", delay=60), State.ERRORED, "later"),
    ],
)
async def test_a_policy_is_not_called_if_its_delay_is_not_needed(
    outcome: Outcome | Poison, state: State, said: str | None
) -> None:
    class BreaksMeanwhile:
        """Its policy gives the timeout, and fails from then on."""

        begun = False

        async def handle(self, attempt: Attempt[Job], job: Job) -> object:
            self.begun = True
            if isinstance(outcome, Poison):
                raise outcome
            return outcome

        def policy(self, claim: Claim[Job]) -> Policy:
            if self.begun:
                raise ZeroDivisionError("in the policy")
            return Policy()

    async with at_work(BreaksMeanwhile()) as harness:
        job = await harness.does()
        assert job.state is state
        assert (said or "") in (job.last_error or "")
        assert "in the policy" not in (job.last_error or "")


async def test_what_a_handler_leaves_in_then_is_enqueued_with_its_completion() -> None:
    async def first(attempt: Attempt[Job]) -> None:
        attempt.then.append(NewJob(task="second"))

    async with at_work({"first": first, "second": nothing}) as harness:
        await harness.does("first")
        assert [event.task for event in harness.events(JobEnded)] == ["first", "second"]
