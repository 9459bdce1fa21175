"""Histograms: one scale for ever, and quantiles that are right to within a bucket."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stowhand.jobs.histogram import BUCKET_BOUNDS_SECONDS, BUCKET_COUNT, bucket_of, quantile


def test_the_scale_is_what_it_was_when_the_first_numbers_were_stored() -> None:
    assert (BUCKET_COUNT, len(BUCKET_BOUNDS_SECONDS)) == (64, 63)
    some = [round(BUCKET_BOUNDS_SECONDS[bucket], 7) for bucket in (0, 1, 2, 20, 62)]
    assert some == [0.0001, 0.0001414, 0.0002, 0.1024, 214748.3648]


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(-1.0, 0), (0.0, 0), (0.0001, 0), (0.00011, 1), (0.1024, 20), (0.11, 21), (214748.3648, 62), (1e12, 63)],
)
def test_every_duration_has_a_bucket(seconds: float, bucket: int) -> None:
    assert bucket_of(seconds) == bucket


def test_an_empty_histogram_has_no_quantile() -> None:
    assert quantile({}, 0.5) is None


def test_the_last_bucket_counts_as_its_minimum() -> None:
    assert quantile({63: 5}, 0.5) == BUCKET_BOUNDS_SECONDS[-1]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 1.0])
def test_a_quantile_is_right_to_within_a_bucket(share: float) -> None:
    draw = random.Random(share)
    seconds = sorted(draw.lognormvariate(-3, 2) for _ in range(5000))
    result = quantile(Counter(map(bucket_of, seconds)), share)
    assert result is not None
    truth = seconds[max(int(share * len(seconds)) - 1, 0)]
    assert truth / 2**0.5 <= result <= truth * 2**0.5
