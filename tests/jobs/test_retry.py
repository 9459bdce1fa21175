"""Backoff: the documented tables, to the microsecond, and the edges where powers overflow."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stowhand.errors import ConfigurationError
from stowhand.retry import BACKOFFS_BY_NAME, SERVICE_BACKOFF, constant, exponential, natural, resolve_backoff


@pytest.mark.parametrize(
    ("attempt", "delay"),
    [
        (1, 2.718282),
        (2, 7.389056),
        (3, 20.085537),
        (4, 54.59815),
        (5, 148.413159),
        (9, 8103.083928),
        (10, 22026.465795),
        (11, 22026.465795),
        (5000, 22026.465795),
    ],
)
def test_the_natural_backoff_is_the_originals_table_to_the_microsecond(attempt: int, delay: float) -> None:
    assert natural(attempt) == delay


def test_an_exponential_backoff_grows_to_its_cap() -> None:
    backoff = exponential(base=30, factor=2, cap=3600)
    assert [backoff(attempt) for attempt in range(1, 10)] == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


@pytest.mark.parametrize("factor", [1, 1.0001, 2, 10, 1e300])
def test_a_backoff_never_overflows(factor: float) -> None:
    backoff = exponential(base=1, factor=factor, cap=3600)
    assert 0 <= backoff(2**31) <= 3600


def test_a_factor_of_one_is_a_constant_wait() -> None:
    backoff = exponential(base=7, factor=1)
    assert {backoff(attempt) for attempt in (1, 2, 99)} == {7}


@pytest.mark.parametrize(("number", "delay"), [(0.0, 80.0), (0.5, 100.0), (0.75, 110.0)])
def test_jitter_gives_or_takes_its_share(number: float, delay: float) -> None:
    backoff = exponential(base=100, jitter=0.2, random=lambda: number)
    assert backoff(1) == pytest.approx(delay)


def test_jitter_is_spread_around_the_cap_too() -> None:
    backoff = exponential(base=100, cap=100, jitter=1, random=lambda: 0.0)
    assert backoff(5) == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": -1},
        {"cap": -1},
        {"factor": 0.5},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"base": timedelta(-1)},
        *({name: float("nan")} for name in ("base", "cap", "factor", "jitter")),
    ],
)
def test_invalid_backoffs_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="backoff"):
        exponential(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, timedelta(-1), float("nan")])
def test_an_invalid_constant_wait_is_refused(wrong: timedelta | float) -> None:
    with pytest.raises(ConfigurationError, match="backoff"):
        constant(wrong)


def test_durations_may_be_timedeltas() -> None:
    assert exponential(base=timedelta(minutes=1), cap=timedelta(minutes=3))(3) == 180
    assert constant(timedelta(seconds=9))(4) == 9


def test_a_constant_backoff_is_the_same_every_time() -> None:
    assert {constant(2.5)(attempt) for attempt in range(1, 20)} == {2.5}


def test_the_service_preset_stays_within_its_jitter() -> None:
    for attempt, middle in ((1, 30), (2, 60), (8, 3600), (50, 3600)):
        assert middle * 0.8 <= SERVICE_BACKOFF(attempt) <= middle * 1.2


def test_policies_are_found_by_name_or_taken_as_they_are() -> None:
    assert resolve_backoff("natural") is natural
    assert resolve_backoff("service") is SERVICE_BACKOFF
    assert resolve_backoff(natural) is natural


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'nautral'.*natural, service"):
        resolve_backoff("nautral")
    assert set(BACKOFFS_BY_NAME) == {"natural", "service"}


@pytest.mark.parametrize("attempt", [1, 0, -1, -5])
def test_an_attempt_below_the_first_waits_as_the_first(attempt: int) -> None:
    assert exponential(base=30.0)(attempt) == 30.0


def test_two_constant_backoffs_of_the_same_wait_are_equal() -> None:
    assert constant(2.5) == constant(timedelta(seconds=2.5))
    assert constant(2.5) != constant(3)
