"""Figures: how amounts are written, and what is summed up."""

from __future__ import annotations

import pytest

from stowhand.protocols.counts import MAX_LISTED_NAMES, BoundedCount, NameCounts


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
def test_a_count_is_exact_up_to_its_limit(number: int, words: str, column: str) -> None:
    amount = BoundedCount.up_to(10_000, number)
    assert (amount.text, str(amount)) == (words, column)


def test_a_sum_with_a_lower_bound_is_a_lower_bound() -> None:
    assert BoundedCount(1) + BoundedCount(2) == BoundedCount(3)
    assert (BoundedCount(1) + BoundedCount(10_000, is_lower_bound=True)).text == "more than 10,001"


def test_the_largest_are_listed_and_the_others_are_summed() -> None:
    tallies = NameCounts()
    for number in range(MAX_LISTED_NAMES + 3):
        tallies.add(f"t{number:03}", "waiting", number + 1)
    tallies.add("t001", "failed", 1)
    named, others = tallies.live()[:-1], tallies.live()[-1]
    assert [one.name for one in named] == [f"t{number:03}" for number in reversed(range(3, MAX_LISTED_NAMES + 3))]
    assert (others.name, others.queued, others.failed) == (None, BoundedCount(1 + 2 + 3), BoundedCount(1))


def test_what_waits_for_another_attempt_is_not_counted_twice() -> None:
    tallies = NameCounts()
    tallies.add("t", "waiting", 5)
    tallies.add("t", "errored", 2)
    (one,) = tallies.live()
    assert (one.queued, one.errored, one.waiting) == (BoundedCount(3), BoundedCount(2), BoundedCount(5))


def test_queued_jobs_of_a_lower_bound_are_a_lower_bound() -> None:
    tallies = NameCounts(10_000)
    tallies.add("t", "waiting", 10_001)
    tallies.add("t", "errored", 1_196)
    (one,) = tallies.live()
    assert (one.queued, one.errored) == (BoundedCount(8_804, is_lower_bound=True), BoundedCount(1_196))


def test_a_sum_of_several_counts_is_exact_up_to_the_limit() -> None:
    tallies = NameCounts(10)
    for _ in range(2):
        tallies.add("t", "waiting", 7)
    (one,) = tallies.live()
    assert one.queued == BoundedCount(10, is_lower_bound=True)


def test_an_incomplete_part_has_no_exact_name() -> None:
    tallies = NameCounts()
    tallies.add("t", "processing", 3)
    tallies.add("u", "waiting", 2)
    tallies.cut("processing")
    result = {one.name: (one.processing, one.queued) for one in tallies.live()}
    none = BoundedCount(0, is_lower_bound=True)
    assert result == {
        "t": (BoundedCount(3, is_lower_bound=True), BoundedCount(0)),
        "u": (none, BoundedCount(2)),
        None: (none, BoundedCount(0)),
    }
