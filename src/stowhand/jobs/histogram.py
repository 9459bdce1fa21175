"""Durations, counted in buckets of a fixed logarithmic scale: histograms of any workers, minutes and versions add up.

Their numbers are stored, so the scale never changes. A bucket's upper bound is √2 times the one before, from 0.1 ms to
two and a half days; a quantile is right to within that factor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

BUCKET_COUNT = 64
BUCKET_BOUNDS_SECONDS = tuple(0.0001 * 2 ** (number / 2) for number in range(BUCKET_COUNT - 1))
"""Upper bounds in seconds, included; the last bucket has none."""

Histogram = dict[int, int]
"""How many durations are in each bucket, by its number; without those that have none."""


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket for a duration."""
    return bisect_left(BUCKET_BOUNDS_SECONDS, seconds)


def quantile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the seconds that this share (0 to 1) of the durations do not exceed; ``None`` without durations.

    Within a bucket they count as spread evenly over its logarithmic scale. Of the last one only the least is known.
    """
    rank = share * sum(histogram.values())
    for bucket in sorted(histogram):
        if rank <= histogram[bucket] and histogram[bucket]:
            if bucket == BUCKET_COUNT - 1:
                return BUCKET_BOUNDS_SECONDS[-1]
            return float(BUCKET_BOUNDS_SECONDS[bucket] * 2 ** ((rank / histogram[bucket] - 1) / 2))
        rank -= histogram[bucket]
    return None
