"""Logs, metrics and traces, made from events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stowhand.lazy_names import lazy_names

if TYPE_CHECKING:
    from stowhand.observe.correlation import CorrelationFilter
    from stowhand.observe.flow_metrics import FlowMetrics
    from stowhand.observe.listener import LogListener
    from stowhand.observe.queue_metrics import QueueMetrics
    from stowhand.observe.table_metrics import TableMetrics
    from stowhand.observe.traces import Traces
    from stowhand.observe.worker_metrics import WorkerMetrics

_NAMES_BY_MODULE = {
    "observe.correlation": "CorrelationFilter",
    "observe.flow_metrics": "FlowMetrics",
    "observe.listener": "LogListener",
    "observe.queue_metrics": "QueueMetrics",
    "observe.table_metrics": "TableMetrics",
    "observe.traces": "Traces",
    "observe.worker_metrics": "WorkerMetrics",
}

__all__ = [
    "CorrelationFilter",
    "FlowMetrics",
    "LogListener",
    "QueueMetrics",
    "TableMetrics",
    "Traces",
    "WorkerMetrics",
]


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _NAMES_BY_MODULE)
