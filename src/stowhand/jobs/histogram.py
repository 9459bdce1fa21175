"""Histograms of durations with a fixed logarithmic scale, so that those of several workers and minutes can be added.

Bucket numbers are stored, so the scale never changes. Each upper bound is √2 times the previous one, from 0.1 ms to
two and a half days. A quantile is accurate to within that factor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

BUCKET_COUNT = 64
BUCKET_BOUNDS_SECONDS = tuple(0.0001 * 2 ** (number / 2) for number in range(BUCKET_COUNT - 1))
"""Inclusive upper bounds; the last bucket has none."""

Histogram = dict[int, int]
"""Number of durations by bucket number, without empty buckets."""


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket for a duration."""
    return bisect_left(BUCKET_BOUNDS_SECONDS, seconds)


def quantile(histogram: Mapping[int, int], fraction: float) -> float | None:
    """Return the seconds that this share (0 to 1) of the durations do not exceed; ``None`` without durations.

    Durations count as evenly spread over the logarithmic scale of their bucket. The last bucket counts as its minimum.
    """
    rank = fraction * sum(histogram.values())
    for bucket in sorted(histogram):
        if rank <= histogram[bucket] and histogram[bucket]:
            if bucket == BUCKET_COUNT - 1:
                return BUCKET_BOUNDS_SECONDS[-1]
            return float(BUCKET_BOUNDS_SECONDS[bucket] * 2 ** ((rank / histogram[bucket] - 1) / 2))
        rank -= histogram[bucket]
    return None
