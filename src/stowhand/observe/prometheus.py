"""The only import of ``prometheus-client``. Raises ConfigurationError if the extra ``metrics`` is not installed."""

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
    "Collector",
    "CollectorRegistry",
    "Counter",
    "Gauge",
    "GaugeMetricFamily",
    "Histogram",
    "Metric",
    "MmapedDict",
    "MultiProcessCollector",
    "generate_latest",
]

MmapedDict: Any = mmap_dict.MmapedDict
MultiProcessCollector: Any = multiprocess.MultiProcessCollector
"""``Any``, because prometheus-client does not annotate these two."""
