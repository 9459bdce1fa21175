"""The length of the queue as metrics: asked for at each scrape, and absent when there is no answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.observe import vocabulary
from stowhand.observe.prometheus import REGISTRY, Collector, CollectorRegistry, Metric
from stowhand.protocols.counts import NAMES, BoundedCount, CronFigures, Figures, LiveCounts

COUNTED = (
    vocabulary.QUEUE_JOBS,
    vocabulary.QUEUE_TASK_JOBS,
    vocabulary.QUEUE_SERIAL_JOBS,
    vocabulary.QUEUE_LIVE_JOBS,
    vocabulary.QUEUE_IS_PAUSED,
    vocabulary.QUEUE_PAUSED,
    vocabulary.QUEUE_PAUSED_SINCE,
)
CRON = (vocabulary.QUEUE_CRON_UNSCHEDULED, vocabulary.QUEUE_CRON_MISSED)


class QueueMetrics(Collector):
    """The figures of a queue store. Each gauge is there if its own question was answered.

    ``figures``, ``oldest_due`` (seconds by queue) and ``cron``: the answers, soon; ``None`` when there is none now.
    Called in the thread of the scrape. ``labels``: so many tasks, queues, serial keys and recurring items have series
    of their own: of the first three the largest, at most 100 of each; of recurring items the first, and those of which
    something is wrong.
    """

    def __init__(
        self,
        figures: Callable[[], Figures | None],
        oldest_due: Callable[[], Mapping[str, float] | None],
        registry: CollectorRegistry = REGISTRY,
        *,
        cron: Callable[[], CronFigures | None] = lambda: None,
        labels: int = NAMES,
    ) -> None:
        self._figures = figures
        self._oldest_due = oldest_due
        self._cron = cron
        self._labels = labels
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """The names, without asking the store."""
        return [declared() for declared in (*COUNTED, *CRON, vocabulary.QUEUE_OLDEST_DUE)]

    def collect(self) -> Iterable[Metric]:
        """The figures of this moment."""
        seconds = self._oldest_due()
        figures = self._figures()
        if seconds is not None:
            oldest = vocabulary.QUEUE_OLDEST_DUE()
            named = [one.name for one in figures.queues if one.name is not None] if figures is not None else []
            for queue in dict.fromkeys([DEFAULT_QUEUE, *seconds, *named]):
                oldest.add_metric([queue], seconds.get(queue, 0.0))
            yield oldest
        if figures is not None:
            yield from self._of(figures)
        cron = self._cron()
        if cron is not None:
            yield from self._of_cron(cron)

    def _of(self, figures: Figures) -> Iterable[Metric]:
        states, tasks, serials, queues, is_paused, paused, paused_since = (declared() for declared in COUNTED)
        for state, amount in figures.states.items():
            if not amount.least:
                states.add_metric([state.value], amount.number)
        for family, counts in ((tasks, figures.tasks), (serials, figures.serials), (queues, figures.queues)):
            for labels, number in _numbers(counts, self._labels).items():
                family.add_metric(labels, number)
        for one in figures.queues[: self._labels]:
            if one.name is not None:
                is_paused.add_metric([one.name], int(one.name in figures.pauses.queues))
        pauses = figures.all_pauses()
        paused.add_metric([], len(pauses))
        if pauses:
            paused_since.add_metric([], min(pauses).timestamp())
        return states, tasks, serials, queues, is_paused, paused, paused_since

    def _of_cron(self, cron: CronFigures) -> Iterable[Metric]:
        families = [declared() for declared in CRON]
        marked = [frozenset(cron.unscheduled), frozenset(cron.missed)]
        by_need = sorted(cron.known, key=lambda name: not any(name in some for some in marked))
        for family, some in zip(families, marked, strict=True):
            for name in by_need[: self._labels]:
                family.add_metric([name], int(name in some))
            if others := by_need[self._labels :]:
                family.add_metric([vocabulary.OTHER], sum(name in some for name in others))
        return families


def _numbers(counts: Sequence[LiveCounts], labels: int) -> dict[tuple[str, str], int]:
    """By name and part: so many by name, and the others as one. What was not counted to its end is left out."""
    named = [one.name for one in counts if one.name is not None][:labels]
    amounts: defaultdict[tuple[str, str], BoundedCount] = defaultdict(BoundedCount)
    for one in counts:
        name = vocabulary.OTHER if one.name is None or one.name not in named else one.name
        parts = {"waiting": one.waiting, "due": one.due, "running": one.processing, "failed": one.failed}
        for part, amount in parts.items():
            amounts[name, part] += amount
    return {labels: amount.number for labels, amount in amounts.items() if not amount.least}
