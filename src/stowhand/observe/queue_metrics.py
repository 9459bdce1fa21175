"""Metrics of the queue's size, read from the store at each scrape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.observe import metric_definitions
from stowhand.observe.prometheus import REGISTRY, Collector, CollectorRegistry, Metric
from stowhand.protocols.counts import MAX_LISTED_NAMES, BoundedCount, CronFigures, Figures, LimitCounts, LiveCounts

FIGURE_METRICS = (
    metric_definitions.QUEUE_JOBS,
    metric_definitions.QUEUE_TASK_JOBS,
    metric_definitions.QUEUE_SERIAL_JOBS,
    metric_definitions.QUEUE_LIVE_JOBS,
    metric_definitions.QUEUE_IS_PAUSED,
    metric_definitions.QUEUE_PAUSED,
    metric_definitions.QUEUE_PAUSED_SINCE,
)
LIMIT_METRICS = (metric_definitions.QUEUE_LIMIT_JOBS, metric_definitions.QUEUE_LIMIT_SLOTS)
CRON_METRICS = (metric_definitions.QUEUE_CRON_UNSCHEDULED, metric_definitions.QUEUE_CRON_MISSED)


class QueueMetrics(Collector):
    """Collector of a queue store's figures. A gauge is absent if the store has not answered.

    ``figures``, ``oldest_due`` (seconds by queue) and ``cron`` return the answers soon, or ``None``. They are called in
    the thread of the scrape. ``labels`` limits the series: of tasks, queues and serial keys the largest, at most 100 of
    each; of limits those with the most due jobs; of recurring items those with a problem, then the first.
    """

    def __init__(
        self,
        figures: Callable[[], Figures | None],
        oldest_due: Callable[[], Mapping[str, float] | None],
        registry: CollectorRegistry = REGISTRY,
        *,
        cron: Callable[[], CronFigures | None] = lambda: None,
        labels: int = MAX_LISTED_NAMES,
    ) -> None:
        self._figures = figures
        self._oldest_due = oldest_due
        self._cron = cron
        self._labels = labels
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values, without a call to the store."""
        families = (*FIGURE_METRICS, *LIMIT_METRICS, *CRON_METRICS, metric_definitions.QUEUE_OLDEST_DUE)
        return [declared() for declared in families]

    def collect(self) -> Iterable[Metric]:
        """Return the current figures."""
        seconds = self._oldest_due()
        figures = self._figures()
        if seconds is not None:
            oldest = metric_definitions.QUEUE_OLDEST_DUE()
            counted = [] if figures is None else [count.name for count in figures.queues if count.name is not None]
            for queue in dict.fromkeys([DEFAULT_QUEUE, *seconds, *counted]):
                oldest.add_metric([queue], seconds.get(queue, 0.0))
            yield oldest
        if figures is not None:
            yield from self._figure_metrics(figures)
            yield from self._limit_metrics(figures.limits)
        cron = self._cron()
        if cron is not None:
            yield from self._cron_metrics(cron)

    def _figure_metrics(self, figures: Figures) -> Iterable[Metric]:
        states, tasks, serials, queues, is_paused, paused, paused_since = (declared() for declared in FIGURE_METRICS)
        for state, amount in figures.states.items():
            if not amount.is_lower_bound:
                states.add_metric([state.value], amount.number)
        for family, counts in ((tasks, figures.tasks), (serials, figures.serials), (queues, figures.queues)):
            for labels, number in _sum_by_labels(counts, self._labels).items():
                family.add_metric(labels, number)
        for count in figures.queues[: self._labels]:
            if count.name is not None:
                is_paused.add_metric([count.name], int(count.name in figures.pauses.queues))
        pauses = figures.all_pauses()
        paused.add_metric([], len(pauses))
        if pauses:
            paused_since.add_metric([], min(pauses).timestamp())
        return states, tasks, serials, queues, is_paused, paused, paused_since

    def _limit_metrics(self, limits: Sequence[LimitCounts]) -> Iterable[Metric]:
        jobs, slots = (declared() for declared in LIMIT_METRICS)
        by_need = sorted(limits, key=lambda limit: (-limit.due.number, limit.name))
        amounts: defaultdict[tuple[str, str], BoundedCount] = defaultdict(BoundedCount)
        for place, limit in enumerate(by_need):
            name = limit.name if place < self._labels else metric_definitions.OTHER_LABEL
            if limit.slots is not None:
                amounts[name, "used"] += BoundedCount(limit.used)
                if place < self._labels:
                    slots.add_metric([name], limit.slots)
            amounts[name, "waiting"] += limit.waiting
            amounts[name, "due"] += limit.due
        for labels, amount in amounts.items():
            if not amount.is_lower_bound:
                jobs.add_metric(labels, amount.number)
        return jobs, slots

    def _cron_metrics(self, cron: CronFigures) -> Iterable[Metric]:
        families = [declared() for declared in CRON_METRICS]
        marked_sets = [frozenset(cron.unscheduled), frozenset(cron.missed)]
        by_need = sorted(cron.known, key=lambda name: not any(name in marked_items for marked_items in marked_sets))
        for family, marked_items in zip(families, marked_sets, strict=True):
            for name in by_need[: self._labels]:
                family.add_metric([name], int(name in marked_items))
            if others := by_need[self._labels :]:
                family.add_metric([metric_definitions.OTHER_LABEL], sum(name in marked_items for name in others))
        return families


def _sum_by_labels(counts: Sequence[LiveCounts], labels: int) -> dict[tuple[str, str], int]:
    """Return the numbers by name and state, other names as one. Counts that reached their limit are left out."""
    labelled_names = [count.name for count in counts if count.name is not None][:labels]
    amounts: defaultdict[tuple[str, str], BoundedCount] = defaultdict(BoundedCount)
    for count in counts:
        name = count.name
        if name is None or name not in labelled_names:
            name = metric_definitions.OTHER_LABEL
        parts = {"waiting": count.waiting, "due": count.due, "running": count.processing, "failed": count.failed}
        for part, amount in parts.items():
            amounts[name, part] += amount
    return {labels: amount.number for labels, amount in amounts.items() if not amount.is_lower_bound}
