"""Prometheus metrics of a worker (extra ``metrics``): what ``stowhand worker --http`` shows on ``/metrics``.

    metrics = WorkerMetrics()
    worker = app.worker(events=metrics.of(Events()))
    # and, to serve them: prometheus_client.start_http_server(9090)

Counters to alert on are 0 from the start: Prometheus sees no increase in a series that begins with 1.
Every name is in docs/reference/metrics.md. They are right across several processes in prometheus' multiprocess mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

from stowhand.events import (
    Beaten,
    Claimed,
    CronScheduled,
    Events,
    JobEnded,
    JobLeft,
    JobLost,
    JobsReset,
    JobStarted,
    JobUnknown,
    Settled,
    TasksReloaded,
    WorkerStarted,
)
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId
from stowhand.jobs.lifecycle import Ended
from stowhand.observe.prometheus import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, exponential

START = "stowhand_worker"
JOB_SECONDS = exponential(0.005, 2.5, 12)
WAIT_SECONDS = exponential(0.001, 4, 12)
CALL_SECONDS = exponential(0.001, 2.5, 12)
LAG_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LATE_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
SIZES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)
OTHER = "other"
MOST_KINDS = 100
"""Kinds that have series of their own, by default: those that come later count as ``other``."""


class WorkerMetrics:
    """One set of metrics in one registry, for the workers of one process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, labels: int = MOST_KINDS) -> None:
        """``labels``: so many kinds have series of their own."""
        self._kinds = _Kinds(labels)
        self._at_work: dict[tuple[str, JobId], str] = {}
        """The kind under which each began: one that was ``other`` then may have a series of its own when it ends."""
        words = "Attempts that have ended"
        self._processed = Counter(f"{START}_jobs_processed", words, ["kind", "outcome"], registry=registry)
        words, buckets = "How long handlers took", JOB_SECONDS
        self._seconds = Histogram(f"{START}_job_duration_seconds", words, ["kind"], buckets=buckets, registry=registry)
        words, buckets = "How long jobs were due before they were claimed", WAIT_SECONDS
        self._waits = Histogram(f"{START}_job_wait_seconds", words, ["kind"], buckets=buckets, registry=registry)
        words = "Handlers at work"
        self._running = Gauge(f"{START}_in_flight", words, ["kind"], registry=registry, multiprocess_mode="livesum")
        self._claim = _Calls("claim", "jobs", registry)
        self._settle = _Calls("settle", "jobs", registry)
        self._beat = _Calls("heartbeat", "leases", registry)
        words = "By how much the event loop was late, the most within each second"
        self._lag = Histogram(f"{START}_loop_lag_seconds", words, buckets=LAG_SECONDS, registry=registry)
        words = "Jobs taken back from workers that are gone, by what they became"
        self._resets = Counter(f"{START}_resets", words, ["state"], registry=registry)
        for state in (State.QUEUED, State.FAILED, State.CANCELED):
            self._resets.labels(state.value)
        words = "Leases that were gone before an outcome was recorded"
        self._lost = Counter(f"{START}_lost_leases", words, registry=registry)
        words = "How long after their minute recurring jobs were made; without those that were made up for"
        self._late = Histogram(f"{START}_cron_lateness_seconds", words, buckets=LATE_SECONDS, registry=registry)
        words = "Which version works on which kind of store; always 1"
        self._info = Gauge(f"{START}_info", words, ["version", "store"], registry=registry, multiprocess_mode="livemax")

    def of(self, events: Events) -> Events:
        """Count these events, and give them back for a worker. Some are emitted in the heartbeat's thread."""
        events.on(WorkerStarted, lambda event: self._learn(event.tasks))
        events.on(TasksReloaded, lambda event: self._learn(event.tasks))
        events.on(JobStarted, self._began)
        events.on(JobLeft, self._left)
        events.on(JobEnded, self._ended)
        events.on(JobLost, self._was_lost)
        events.on(JobUnknown, lambda event: self._count(event.task, "unknown"))
        events.on(Claimed, lambda event: self._claim.count(event.jobs, event.seconds))
        events.on(Settled, lambda event: self._settle.count(event.jobs, event.seconds))
        events.on(Beaten, lambda event: self._beat.count(event.jobs, event.seconds))
        events.on(JobsReset, self._reset)
        events.on(CronScheduled, self._scheduled)
        return events

    def introduce(self, store: str) -> None:
        """Show which version works on which kind of store (``postgresql``, ``sqlite``, ``https``)."""
        self._info.labels(version("stowhand"), store).set(1)

    def lag(self, seconds: float) -> None:
        """Record the largest lag of the event loop since the last call."""
        self._lag.observe(max(seconds, 0.0))

    def _learn(self, tasks: tuple[str, ...] | None) -> None:
        self._kinds.learn(tasks)
        for task in (tasks or ())[: self._kinds.most]:
            for ended in (Ended.OK, Ended.RETRY, Ended.FAILED, Ended.POISON):
                self._processed.labels(task, ended.value)

    def _count(self, task: str, outcome: str) -> None:
        self._processed.labels(self._kinds.of(task), outcome).inc()

    def _began(self, event: JobStarted) -> None:
        kind = self._at_work[event.worker, event.job_id] = self._kinds.of(event.task)
        self._running.labels(kind).inc()
        if event.waited is not None:
            self._waits.labels(kind).observe(event.waited)

    def _left(self, event: JobLeft) -> None:
        kind = self._at_work.pop((event.worker, event.job_id), None)
        self._running.labels(self._kinds.of(event.task) if kind is None else kind).dec()

    def _ended(self, event: JobEnded) -> None:
        self._count(event.task, event.ended.value)
        self._seconds.labels(self._kinds.of(event.task)).observe(event.seconds)

    def _was_lost(self, event: JobLost) -> None:
        self._count(event.task, "lost")
        self._lost.inc()

    def _reset(self, event: JobsReset) -> None:
        for job in event.jobs:
            self._resets.labels(job.state.value).inc()

    def _scheduled(self, event: CronScheduled) -> None:
        if not event.backfilled:
            self._late.observe(event.late)


class _Calls:
    """Calls to the store: how long they took, and how many jobs each was about."""

    def __init__(self, call: str, what: str, registry: CollectorRegistry) -> None:
        name, words = f"{START}_{call}_duration_seconds", f"How long the store took to answer: {call}"
        self._seconds = Histogram(name, words, buckets=CALL_SECONDS, registry=registry)
        name, words = f"{START}_{call}_{what}", f"{what.capitalize()} in one call: {call}"
        self._sizes = Histogram(name, words, buckets=SIZES, registry=registry)

    def count(self, size: int, seconds: float) -> None:
        self._seconds.observe(seconds)
        self._sizes.observe(size)


class _Kinds:
    """Names of tasks as labels, bounded: so many that workers have, and as many that came to one that takes any."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._learned: set[str] = set()
        self._met: set[str] = set()
        self._bounded = False

    def learn(self, tasks: Iterable[str] | None) -> None:
        """A worker has these; ``None``: it takes any."""
        if tasks is not None:
            self._bounded = True
            self._learned.update(
                [task for task in tasks if task not in self._learned][: self.most - len(self._learned)]
            )

    def of(self, task: str) -> str:
        if task in self._learned or task in self._met:
            return task
        if self._bounded or len(self._met) >= self.most:
            return OTHER
        self._met.add(task)
        return task
