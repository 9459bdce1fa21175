"""Outcomes that can be raised are exceptions, and frozen values all the same."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from stowhand.jobs.durations import MAX_DURATION_SECONDS
from stowhand.jobs.lifecycle import Cancel, Fail, RaisableOutcome, Retry, Snooze

EACH: list[RaisableOutcome] = [
    Retry("busy", "5m", "[1]", "httpx.ReadError"),
    Fail("never", poison=True, payload="[2]", error_class="app.Gone"),
    Snooze("1h"),
    Cancel("superseded"),
]


class RateLimitedError(Retry):
    def __init__(self, seconds: float) -> None:
        super().__init__("rate limited", delay=seconds)


def raised(outcome: RaisableOutcome) -> RaisableOutcome:
    try:
        try:
            raise OSError("first")
        except OSError as error:
            raise outcome from error
    except RaisableOutcome as caught:
        caught.add_note("by the way")
        return caught


def test_outcomes_are_equal_by_their_fields_and_by_their_type() -> None:
    assert Retry("busy", delay="5m") == Retry("busy", timedelta(minutes=5)) == Retry(error="busy", delay=300)
    assert Retry("busy") != Retry("busy", delay=0)
    assert Retry("why") != Fail("why")
    assert Cancel("why") != "why"
    assert len({Retry("busy"), Retry("busy"), Fail("busy")}) == 2


@pytest.mark.parametrize("outcome", EACH, ids=repr)
def test_raising_an_outcome_changes_nothing_about_its_value(outcome: RaisableOutcome) -> None:
    fresh = copy.copy(outcome)
    again = raised(raised(copy.copy(outcome)))
    assert (again, hash(again), repr(again), str(again)) == (fresh, hash(fresh), repr(fresh), str(fresh))


@pytest.mark.parametrize("outcome", [*EACH, RateLimitedError(7)], ids=repr)
@pytest.mark.parametrize("how", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy])
def test_an_outcome_is_the_same_after_a_pickle_or_a_copy(outcome: RaisableOutcome, how: Any) -> None:
    again = how(outcome)
    assert (type(again), again, repr(again), str(again)) == (type(outcome), outcome, repr(outcome), str(outcome))


def test_an_outcome_shows_its_fields_and_reads_as_its_words() -> None:
    assert repr(EACH[0]) == "Retry(error='busy', delay=300.0, payload='[1]', error_class='httpx.ReadError')"
    assert repr(Snooze(60)) == "Snooze(delay=60.0)"
    assert [str(one) for one in EACH] == ["busy", "never", "again in 1h", "superseded"]


def test_an_outcome_matches_by_position_and_by_name() -> None:
    match EACH[0]:
        case Retry(error, delay, payload=left):
            assert (error, delay, left) == ("busy", 300.0, "[1]")
        case _:
            pytest.fail("no match")


@pytest.mark.parametrize("outcome", EACH, ids=repr)
def test_fields_are_frozen_and_what_raising_sets_is_not(outcome: RaisableOutcome) -> None:
    name = type(outcome).__match_args__[0]
    with pytest.raises(AttributeError, match=f"{name} cannot be changed; create another {type(outcome).__name__}"):
        setattr(outcome, name, "other")
    with pytest.raises(AttributeError, match=f"{name} cannot be removed"):
        delattr(outcome, name)

    @contextmanager
    def block() -> Iterator[None]:
        yield

    with pytest.raises(type(outcome)), block():  # contextlib sets the traceback
        raise outcome
    outcome.__traceback__ = None


def test_a_copy_may_have_other_fields() -> None:
    assert Retry("busy", 5).__replace__(delay="1m") == Retry("busy", 60)


@pytest.mark.parametrize(("given", "wait"), [("5m", 300.0), (90, 90.0), (timedelta(hours=1), 3600.0)])
def test_a_delay_is_seconds_a_timedelta_or_a_phrase(given: Any, wait: float) -> None:
    assert (Retry("x", delay=given).delay, Snooze(given).delay) == (wait, wait)
    assert Snooze(float("inf")).delay == MAX_DURATION_SECONDS


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("soon", "'soon' is not a duration; write for example 250ms, 30s, 5m, 1.5h or 2d"),
        ("5 years", "'years' is not a unit of time"),
        ([], "got a list; use seconds, a timedelta or a phrase such as '30s'"),
        (True, "got a bool; use seconds"),
        (float("nan"), "got nan; use seconds"),
        (10**400, "int too large"),
    ],
    ids=["word", "unit", "list", "bool", "nan", "huge"],
)
def test_a_wrong_delay_is_refused_where_the_outcome_is_made(given: Any, why: str) -> None:
    for make in (lambda: Retry("x", delay=given), lambda: Snooze(given)):
        with pytest.raises(ValueError, match=r"^(Retry|Snooze): delay: ") as caught:
            make()
        assert why in str(caught.value)
