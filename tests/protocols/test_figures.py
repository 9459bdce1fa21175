"""Figures: how amounts are written, and what is summed up."""

from __future__ import annotations

import pytest

from stowhand.protocols.figures import NAMES, Amount, Tallies


@pytest.mark.parametrize(
    ("number", "words", "column"),
    [
        (0, "0", "0"),
        (9_999, "9,999", "9999"),
        (10_000, "10,000", "10000"),
        (10_001, "more than 10,000", ">10000"),
        (3_141_592, "more than 10,000", ">10000"),
    ],
)
def test_an_amount_is_exact_up_to_its_limit(number: int, words: str, column: str) -> None:
    amount = Amount.up_to(10_000, number)
    assert (amount.words, str(amount)) == (words, column)


def test_a_sum_with_more_in_it_is_more() -> None:
    assert Amount(1) + Amount(2) == Amount(3)
    assert (Amount(1) + Amount(10_000, least=True)).words == "more than 10,001"


def test_the_largest_are_named_and_the_others_are_one() -> None:
    tallies = Tallies()
    for number in range(NAMES + 3):
        tallies.add(f"t{number:03}", "waiting", Amount(number + 1))
    tallies.add(None, "failed", Amount(7))
    named, others = tallies.live()[:-1], tallies.live()[-1]
    assert [one.name for one in named] == [f"t{number:03}" for number in reversed(range(3, NAMES + 3))]
    assert (others.name, others.queued, others.failed) == (None, Amount(1 + 2 + 3), Amount(7))


def test_what_waits_for_another_attempt_is_not_counted_twice() -> None:
    tallies = Tallies()
    tallies.add("t", "waiting", Amount(5))
    tallies.add("t", "errored", Amount(2))
    (one,) = tallies.live()
    assert (one.queued, one.errored, one.waiting) == (Amount(3), Amount(2), Amount(5))


def test_what_is_queued_of_more_than_was_counted_is_more() -> None:
    tallies = Tallies()
    tallies.add("t", "waiting", Amount(10_000, least=True))
    tallies.add("t", "errored", Amount(1_196))
    (one,) = tallies.live()
    assert (one.queued, one.errored) == (Amount(8_804, least=True), Amount(1_196))
