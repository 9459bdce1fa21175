"""Prometheus metrics of a worker (extra ``metrics``): what ``stowhand worker --http`` shows on ``/metrics``.

    metrics = WorkerMetrics()
    worker = app.worker(events=metrics.of(Events()))
    # and, to serve them: prometheus_client.start_http_server(9090)

Counters to alert on start at 0: Prometheus sees no increase in a series that starts at 1. The names are in
metric_definitions.py. In Prometheus' multiprocess mode the metrics are correct across several processes.
"""

from __future__ import annotations

from collections.abc import Iterable

from stowhand.events import (
    ClaimFinished,
    CronScheduled,
    Events,
    HeartbeatFinished,
    JobEnded,
    JobLeft,
    JobLost,
    JobsReset,
    JobStarted,
    JobUnknown,
    Settled,
    TasksReloaded,
    ThreadAbandoned,
    ThreadEnded,
    WorkerStarted,
)
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.observe import metric_definitions
from stowhand.observe.prometheus import REGISTRY, CollectorRegistry
from stowhand.protocols.operator import own_version

MAX_KINDS = 100
"""Default for the maximum number of kinds with their own series; further kinds count as ``other``."""


class WorkerMetrics:
    """Metrics of the workers of one process, in one registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, labels: int = MAX_KINDS) -> None:
        """``labels`` limits how many kinds have their own series."""
        self._kinds = _KindLabels(labels)
        self._running_kinds: dict[tuple[str, JobId], str] = {}
        """Kind of each running job when it started. A kind that was ``other`` then may now have its own series."""
        self._processed = metric_definitions.WORKER_JOBS(registry=registry)
        self._seconds = metric_definitions.WORKER_JOB_SECONDS(registry=registry)
        self._waits = metric_definitions.WORKER_WAIT_SECONDS(registry=registry)
        self._running = metric_definitions.WORKER_RUNNING(registry=registry)
        self._abandoned = metric_definitions.WORKER_ABANDONED(registry=registry)
        self._claim = _Calls(metric_definitions.WORKER_CLAIMS, registry)
        self._settle = _Calls(metric_definitions.WORKER_SETTLES, registry)
        self._beat = _Calls(metric_definitions.WORKER_BEATS, registry)
        self._lag = metric_definitions.WORKER_LAG(registry=registry)
        self._resets = metric_definitions.WORKER_RESETS(registry=registry)
        for state in (State.QUEUED, State.FAILED, State.CANCELED):
            self._resets.labels(state.value)
        self._lost = metric_definitions.WORKER_LOST(registry=registry)
        self._late = metric_definitions.WORKER_CRON_LATE(registry=registry)
        self._info = metric_definitions.WORKER_INFO(registry=registry)

    def of(self, events: Events) -> Events:
        """Count these events, and return them for a worker. Some are emitted in the heartbeat thread."""
        events.on(WorkerStarted, lambda event: self._add_tasks(event.tasks))
        events.on(TasksReloaded, lambda event: self._add_tasks(event.tasks))
        events.on(JobStarted, self._started)
        events.on(JobLeft, self._left)
        events.on(JobEnded, self._ended)
        events.on(JobLost, self._was_lost)
        events.on(JobUnknown, lambda event: self._count(event.task, metric_definitions.UNKNOWN_OUTCOME))
        events.on(ClaimFinished, lambda event: self._claim.count(event.jobs, event.seconds))
        events.on(Settled, lambda event: self._settle.count(event.jobs, event.seconds))
        events.on(HeartbeatFinished, lambda event: self._beat.count(event.jobs, event.seconds))
        events.on(JobsReset, self._reset)
        events.on(ThreadAbandoned, lambda _: self._abandoned.inc())
        events.on(ThreadEnded, lambda _: self._abandoned.dec())
        events.on(CronScheduled, self._scheduled)
        return events

    def introduce(self, store: str) -> None:
        """Set the info metric: the version, and the kind of store (``postgresql``, ``sqlite``, ``https``)."""
        self._info.labels(own_version(), store).set(1)

    def lag(self, seconds: float) -> None:
        """Record the largest lag of the event loop since the last call."""
        self._lag.observe(max(seconds, 0.0))

    def _add_tasks(self, tasks: tuple[str, ...] | None) -> None:
        self._kinds.add(tasks)
        for task in (tasks or ())[: self._kinds.max_labels]:
            for outcome in (AttemptOutcome.OK, AttemptOutcome.RETRY, AttemptOutcome.FAILED, AttemptOutcome.POISON):
                self._processed.labels(task, outcome.value)

    def _count(self, task: str, outcome: str) -> None:
        self._processed.labels(self._kinds.of(task), outcome).inc()

    def _started(self, event: JobStarted) -> None:
        kind = self._running_kinds[event.worker, event.job_id] = self._kinds.of(event.task)
        self._running.labels(kind).inc()
        if event.waited is not None:
            self._waits.labels(kind).observe(event.waited)

    def _left(self, event: JobLeft) -> None:
        kind = self._running_kinds.pop((event.worker, event.job_id), None)
        self._running.labels(self._kinds.of(event.task) if kind is None else kind).dec()

    def _ended(self, event: JobEnded) -> None:
        self._count(event.task, event.outcome.value)
        self._seconds.labels(self._kinds.of(event.task)).observe(event.seconds)

    def _was_lost(self, event: JobLost) -> None:
        self._count(event.task, metric_definitions.LOST_OUTCOME)
        self._lost.inc()

    def _reset(self, event: JobsReset) -> None:
        for job in event.jobs:
            self._resets.labels(job.state.value).inc()

    def _scheduled(self, event: CronScheduled) -> None:
        if not event.backfilled:
            self._late.observe(event.late)


class _Calls:
    """Metrics of store calls: duration, and number of jobs per call."""

    def __init__(self, definitions: metric_definitions.Calls, registry: CollectorRegistry) -> None:
        self._seconds, self._sizes = (definition(registry=registry) for definition in definitions)

    def count(self, size: int, seconds: float) -> None:
        self._seconds.observe(seconds)
        self._sizes.observe(size)


class _KindLabels:
    """Labels of tasks, limited in number: tasks that workers declare, and tasks of workers that take any."""

    def __init__(self, max_labels: int) -> None:
        self.max_labels = max_labels
        self._declared_tasks: set[str] = set()
        self._seen_tasks: set[str] = set()
        self._is_bounded = False

    def add(self, tasks: Iterable[str] | None) -> None:
        """Add the tasks of a worker; ``None``: the worker takes any task."""
        if tasks is not None:
            self._is_bounded = True
            new_tasks = [task for task in tasks if task not in self._declared_tasks]
            self._declared_tasks.update(new_tasks[: self.max_labels - len(self._declared_tasks)])

    def of(self, task: str) -> str:
        if task in self._declared_tasks or task in self._seen_tasks:
            return task
        if self._is_bounded or len(self._seen_tasks) >= self.max_labels:
            return metric_definitions.OTHER_LABEL
        self._seen_tasks.add(task)
        return task
