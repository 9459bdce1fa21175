"""The law: which outcome leads to which state. Every row of the diagram, and the edges of each."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stowhand.jobs.durations import seconds
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import (
    COMPLETED,
    AttemptOutcome,
    Cancel,
    Complete,
    Fail,
    Outcome,
    Retry,
    Settlement,
    Snooze,
    allowed_resets,
    effective_state,
    reset,
    settle,
)


def judge(outcome: Outcome, attempts: int = 1, max_attempts: int = 25, **given: object) -> Settlement:
    return settle(outcome, attempts=attempts, max_attempts=max_attempts, backoff=lambda n: 100.0 + n, **given)  # type: ignore[arg-type]


def test_what_completes_with_nothing_to_add_needs_no_new_settlement() -> None:
    assert judge(Complete()) is COMPLETED
    assert Settlement(State.COMPLETED, AttemptOutcome.OK) == COMPLETED


def test_a_result_and_what_follows_travel_with_the_settlement() -> None:
    then = (NewJob(task="next"),)
    assert judge(Complete(), result="3", then=then) == Settlement(
        State.COMPLETED, AttemptOutcome.OK, result="3", then=then
    )
    assert judge(Complete(), then=then).then == then


@pytest.mark.parametrize("attempts", [1, 2, 24])
def test_a_retry_with_attempts_left_waits_for_its_backoff(attempts: int) -> None:
    settlement = judge(Retry("no"), attempts)
    assert settlement == Settlement(State.ERRORED, AttemptOutcome.RETRY, delay=100.0 + attempts, error="no")
    assert not settlement.refund


@pytest.mark.parametrize(("attempts", "max_attempts"), [(25, 25), (1, 1), (30, 25)])
def test_a_retry_without_attempts_left_fails(attempts: int, max_attempts: int) -> None:
    assert judge(Retry("no"), attempts, max_attempts) == Settlement(State.FAILED, AttemptOutcome.FAILED, error="no")


@pytest.mark.parametrize(("after", "delay"), [(0, 0.0), (0.25, 0.25), (timedelta(minutes=1), 60.0)])
def test_a_retry_may_name_its_own_delay(after: timedelta | float, delay: float) -> None:
    assert judge(Retry("no", after)).delay == delay


def test_a_negative_backoff_is_no_delay() -> None:
    settlement = settle(Retry("no"), attempts=1, max_attempts=2, backoff=lambda attempt: -3.0)
    assert settlement.delay == 0.0


def test_a_delay_does_not_add_an_attempt() -> None:
    assert judge(Retry("no", 5), 25).state is State.FAILED


def test_a_failure_is_final_whatever_attempts_are_left() -> None:
    assert judge(Fail("never")) == Settlement(State.FAILED, AttemptOutcome.FAILED, error="never")


def test_poison_is_a_failure_that_is_counted_apart() -> None:
    assert judge(Fail("never", poison=True)) == Settlement(State.FAILED, AttemptOutcome.POISON, error="never")


@pytest.mark.parametrize("attempts", [1, 25])
def test_a_snooze_gives_its_attempt_back_even_the_last(attempts: int) -> None:
    expected = Settlement(State.QUEUED, AttemptOutcome.SNOOZED, delay=60.0, refund=True)
    assert judge(Snooze(timedelta(minutes=1)), attempts) == expected


def test_a_cancellation_keeps_its_reason() -> None:
    assert judge(Cancel("stop")) == Settlement(State.CANCELED, AttemptOutcome.CANCELED, error="stop")


@pytest.mark.parametrize("outcome", [Retry(), Fail(), Snooze(1), Cancel()])
def test_only_what_completed_has_a_result_and_followers(outcome: Outcome) -> None:
    settlement = judge(outcome, result="1", then=(NewJob(task="next"),))
    assert (settlement.result, settlement.then) == (None, ())


@pytest.mark.parametrize(
    ("max_resets", "max_attempts", "allowed"),
    [(None, 25, 5), (None, 2, 5), (None, 1, 0), (0, 25, 0), (3, 25, 3), (3, 1, 3)],
)
def test_five_deaths_are_forgiven_and_none_where_one_attempt_is_allowed(
    max_resets: int | None, max_attempts: int, allowed: int
) -> None:
    assert allowed_resets(max_resets, max_attempts) == allowed
    for resets in range(allowed):
        settlement = reset(resets=resets, max_resets=max_resets, max_attempts=max_attempts)
        assert settlement == Settlement(State.QUEUED, AttemptOutcome.RETRY, refund=True)
    assert reset(resets=allowed, max_resets=max_resets, max_attempts=max_attempts).state is State.FAILED


def test_the_last_death_says_how_often_it_happened() -> None:
    assert reset(resets=0, max_resets=0, max_attempts=25).error == "its worker died 1 time while running it"
    assert reset(resets=5, max_resets=None, max_attempts=25).error == "its worker died 6 times while running it"


def test_a_count_past_the_limit_fails_too() -> None:
    assert reset(resets=9, max_resets=5, max_attempts=25).state is State.FAILED


@pytest.mark.parametrize(
    ("duration", "value"), [(3, 3.0), (0.5, 0.5), (timedelta(hours=1, microseconds=1), 3600.000001)]
)
def test_durations_are_seconds_however_they_are_given(duration: timedelta | float, value: float) -> None:
    assert seconds(duration) == value


def test_terminal_states_are_the_three() -> None:
    assert {state for state in State if state.terminal} == {State.COMPLETED, State.FAILED, State.CANCELED}


@pytest.mark.parametrize(
    ("asked", "canceled", "lost", "state"),
    [
        (State.QUEUED, False, None, State.QUEUED),
        (State.ERRORED, False, None, State.ERRORED),
        (State.QUEUED, True, None, State.CANCELED),
        (State.ERRORED, True, "replaced", State.CANCELED),
        (State.QUEUED, False, "removed", State.CANCELED),
        (State.ERRORED, False, "removed", State.CANCELED),
        (State.QUEUED, False, "replaced", State.QUEUED),
        (State.ERRORED, False, "replaced", State.FAILED),
        (State.COMPLETED, True, "removed", State.COMPLETED),
        (State.FAILED, True, "removed", State.FAILED),
    ],
)
def test_only_the_row_knows_that_a_job_does_not_wait_again(
    asked: State, canceled: bool, lost: str | None, state: State
) -> None:
    assert effective_state(asked, cancel_requested=canceled, loses_retries=lost) is state
