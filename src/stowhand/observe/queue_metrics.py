"""How long the queue is, as metrics: asked when somebody looks, and absent rather than wrong when nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from stowhand.job import State
from stowhand.observe.prometheus import REGISTRY, Collector, CollectorRegistry, GaugeMetricFamily, Metric

Figures = tuple[Mapping[State, int], float]
"""Jobs by state, and the seconds for which the job that is due longest has waited."""


class QueueMetrics(Collector):
    """``ask``: the figures, soon; ``None`` when they cannot be had now. Called in the thread of whoever looks."""

    def __init__(self, ask: Callable[[], Figures | None], registry: CollectorRegistry = REGISTRY) -> None:
        self._ask = ask
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """The names, without asking anybody."""
        return self._families()

    def collect(self) -> Iterable[Metric]:
        """The figures of this moment."""
        figures = self._ask()
        if figures is None:
            return ()
        jobs, oldest = self._families()
        for state, number in figures[0].items():
            jobs.add_metric([state.value], number)
        oldest.add_metric([], figures[1])
        return jobs, oldest

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        jobs = GaugeMetricFamily("stowhand_queue_jobs", "Jobs in the store, by state", labels=["state"])
        words = "How long the job that is due longest has waited; 0: none is due"
        return jobs, GaugeMetricFamily("stowhand_queue_oldest_due_seconds", words)
