"""Figures: how estimates are written, and what is summed up."""

from __future__ import annotations

import pytest

from stowhand.protocols.figures import NAMES, Amount, EndedCounts, Tallies, about, total_ended


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "~0"),
        (840, "~840"),
        (1_234, "~1.2k"),
        (56_789, "~57k"),
        (202_000, "~202k"),
        (999_900, "~1000k"),
        (3_141_592, "~3.1M"),
        (27_000_000, "~27M"),
        (4_200_000_000, "~4.2G"),
    ],
)
def test_an_estimate_is_written_in_as_many_digits_as_it_is_worth(number: int, said: str) -> None:
    assert about(number) == said
    assert str(Amount(number, exact=False)) == said
    assert str(Amount(number)) == str(number)


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (Amount(0), "0"),
        (Amount(9_999), "9,999"),
        (Amount(10_001, exact=False), "about 10,000"),
        (Amount(56_789, exact=False), "about 57,000"),
        (Amount(999_900, exact=False), "about 1 million"),
        (Amount(3_141_592, exact=False), "about 3.1 million"),
        (Amount(4_200_000_000, exact=False), "about 4.2 billion"),
        (Amount(0, exact=False), "few, if any"),
        (Amount(10_000, exact=False, least=True), "more than 10,000"),
        (Amount(200_000, exact=False, least=True), "more than 200,000"),
    ],
)
def test_an_amount_is_said_in_words(amount: Amount, said: str) -> None:
    assert amount.words == said


def test_a_sum_with_an_estimate_in_it_is_one() -> None:
    assert Amount(1) + Amount(2) == Amount(3)
    assert Amount(1) + Amount(2, exact=False) == Amount(3, exact=False)


def test_a_number_that_was_counted_no_further_says_so() -> None:
    some = Amount(2_000_000, exact=False, least=True) + Amount(1_000)
    assert str(some) == ">2M"
    assert str(Amount(10_000, exact=False, least=True)) == ">10k"


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


def test_what_ended_is_summed_over_tasks() -> None:
    some = [
        EndedCounts(name="a", completed=Amount(2)),
        EndedCounts(name="b", failed=Amount(1), canceled=Amount(4, exact=False)),
    ]
    total = total_ended(some)
    assert (total.completed, total.failed, total.canceled) == (Amount(2), Amount(1), Amount(4, exact=False))
    assert total.every == Amount(7, exact=False)
