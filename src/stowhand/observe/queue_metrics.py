"""The length of the queue as metrics: asked for at each scrape, and absent when there is no answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stowhand.observe.prometheus import REGISTRY, Collector, CollectorRegistry, GaugeMetricFamily, Metric
from stowhand.protocols.figures import NAMES, Amount, Figures, LiveCounts

OTHER = "other"
"""The label of all tasks, or queues, that have no series of their own."""


class QueueMetrics(Collector):
    """The figures of a queue store. Each gauge is there if its own question was answered.

    ``figures`` and ``oldest_due`` (seconds): the answers, soon; ``None`` when there is none now. Called in the thread
    of the scrape. ``labels``: so many tasks and queues have series of their own, the largest, at most 100 of each.
    """

    def __init__(
        self,
        figures: Callable[[], Figures | None],
        oldest_due: Callable[[], float | None],
        registry: CollectorRegistry = REGISTRY,
        *,
        labels: int = NAMES,
    ) -> None:
        self._figures = figures
        self._oldest_due = oldest_due
        self._labels = labels
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """The names, without asking the store."""
        return [*_families(), _oldest()]

    def collect(self) -> Iterable[Metric]:
        """The figures of this moment."""
        seconds = self._oldest_due()
        if seconds is not None:
            oldest = _oldest()
            oldest.add_metric([], seconds)
            yield oldest
        figures = self._figures()
        if figures is not None:
            yield from self._of(figures)

    def _of(self, figures: Figures) -> Iterable[Metric]:
        states, tasks, queues, paused = _families()
        for state, amount in figures.states().items():
            states.add_metric([state.value], amount.number)
        for family, counts in ((tasks, figures.tasks), (queues, figures.queues)):
            for one in _bounded(counts, self._labels):
                for part, amount in _parts(one).items():
                    family.add_metric([one.name or OTHER, part], amount.number)
        paused.add_metric([], len(figures.paused))
        return states, tasks, queues, paused


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    states = GaugeMetricFamily("stowhand_queue_jobs", "Jobs in the store, by state", labels=["state"])
    words = "Live jobs, by task: what waits, what of that is due, what is claimed, what has failed"
    tasks = GaugeMetricFamily("stowhand_queue_task_jobs", words, labels=["task", "state"])
    words = "Live jobs that have a queue, by queue: what waits, what of that is due, what is claimed, what has failed"
    queues = GaugeMetricFamily("stowhand_queue_named_jobs", words, labels=["queue", "state"])
    return states, tasks, queues, GaugeMetricFamily("stowhand_queue_paused", "Queues that are paused")


def _oldest() -> GaugeMetricFamily:
    words = "How long the job that is due longest could have run; 0: none is due. Without those of paused queues"
    return GaugeMetricFamily("stowhand_queue_oldest_due_seconds", words)


def _parts(one: LiveCounts) -> dict[str, Amount]:
    return {"waiting": one.waiting, "due": one.due, "running": one.processing, "failed": one.failed}


def _bounded(counts: Sequence[LiveCounts], labels: int) -> list[LiveCounts]:
    """So many by name, and the others as one."""
    named = [one for one in counts if one.name is not None]
    rest = [one for one in counts if one.name is None] + named[labels:]
    return named[:labels] + ([_summed(rest)] if rest else [])


def _summed(counts: Sequence[LiveCounts]) -> LiveCounts:
    total = LiveCounts(name=None)
    for one in counts:
        total = LiveCounts(
            name=None,
            queued=total.queued + one.queued,
            errored=total.errored + one.errored,
            due=total.due + one.due,
            processing=total.processing + one.processing,
            failed=total.failed + one.failed,
        )
    return total
