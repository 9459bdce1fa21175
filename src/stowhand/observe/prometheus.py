"""The one import of ``prometheus-client``. Raises ConfigurationError where it (extra ``metrics``) is not installed."""

from __future__ import annotations

from typing import Any

from stowhand.errors import ConfigurationError

try:
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        REGISTRY,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        generate_latest,
        mmap_dict,
        multiprocess,
    )
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ConfigurationError("metrics need prometheus-client: pip install 'stowhand[metrics]'") from error

__all__ = [
    "CONTENT_TYPE_LATEST",
    "REGISTRY",
    "SECONDS",
    "Collector",
    "CollectorRegistry",
    "Counter",
    "Gauge",
    "GaugeMetricFamily",
    "Histogram",
    "Metric",
    "MmapedDict",
    "MultiProcessCollector",
    "exponential",
    "generate_latest",
]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Upper bounds of durations of which nothing is known beforehand."""
MmapedDict: Any = mmap_dict.MmapedDict
MultiProcessCollector: Any = multiprocess.MultiProcessCollector
"""These two have no types."""


def exponential(first: float, factor: float, number: int) -> tuple[float, ...]:
    """Upper bounds of so many buckets, each ``factor`` times the one before."""
    return tuple(round(first * factor**place, 9) for place in range(number))
