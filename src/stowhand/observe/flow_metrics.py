"""Prometheus metrics of a flow (extra ``metrics``).

    metrics = FlowMetrics()
    metrics.of_flow(flow)
    await run_all(flow, flow.monitor)
    # and, to serve them: prometheus_client.start_http_server(9090)

Each worker of the flow counts its own attempts. The monitor, which one process runs, counts the jobs in each queue. A
parent is counted twice: when it fans out, and when it gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from stowhand.events import Events, JobEnded, JobLost, JobsReset
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.observe import metric_definitions
from stowhand.observe.prometheus import REGISTRY, CollectorRegistry
from stowhand.protocols.flow_shape import FlowQueue, FlowShape

QUEUE_STATES = ("waiting", "processing", "delayed", "parked")


class TaskNames(Protocol):
    """Part of a flow's engine that the metrics use."""

    def task(self, queue: FlowQueue) -> str:
        """Return the queue's name in events."""


class ObservedMonitor(Protocol):
    """Part of a flow's monitor that the metrics use."""

    on_counts: list[Callable[[Sequence[Any]], None]]
    """Callbacks for the counts of each round: objects with queue, priority, and a number for each state."""
    reset_jobs: int
    """Number of jobs of lost workers that the monitor has reset."""


class ObservedFlow(Protocol):
    """Part of a ``Flow`` that the metrics use."""

    events: Events

    @property
    def shape(self) -> FlowShape:
        """Queues of the flow."""

    @property
    def engine(self) -> TaskNames:
        """Engine of the flow."""

    @property
    def monitor(self) -> ObservedMonitor:
        """Monitor of the queues."""


class FlowMetrics:
    """Metrics of any number of flows, in one registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._jobs = metric_definitions.FLOW_JOBS(registry=registry)
        self._seconds = metric_definitions.FLOW_JOB_SECONDS(registry=registry)
        self._resets = metric_definitions.FLOW_RESETS(registry=registry)
        self._queued = metric_definitions.FLOW_QUEUE_JOBS(registry=registry)

    def of_flow(self, flow: ObservedFlow) -> None:
        """Count the events of a flow and the jobs that its monitor counts. Call it once per flow."""
        name = flow.shape.name
        queues = {flow.engine.task(queue): queue.name for queue in flow.shape.all_queues()}
        self._start_at_zero(name, queues.values())
        self._count(name, queues, flow.events)
        flow.monitor.on_counts.append(self._round_counter(name, flow.monitor))

    def _round_counter(self, flow: str, monitor: ObservedMonitor) -> Callable[[Sequence[Any]], None]:
        counted_returns = monitor.reset_jobs

        def count_round(counts: Sequence[Any]) -> None:
            nonlocal counted_returns
            self._resets.labels(flow).inc(monitor.reset_jobs - counted_returns)
            counted_returns = monitor.reset_jobs
            for count in counts:
                for state in QUEUE_STATES:
                    self._queued.labels(flow, count.queue, str(count.priority), state).set(getattr(count, state))

        return count_round

    def _start_at_zero(self, flow: str, queues: Iterable[str]) -> None:
        """Start series at 0, so that the first failure is an increase."""
        self._resets.labels(flow)
        for queue in queues:
            self._seconds.labels(flow, queue)
            for outcome in (*AttemptOutcome, metric_definitions.LOST_OUTCOME):
                self._jobs.labels(flow, queue, str(outcome))

    def _count(self, flow: str, queues: Mapping[str, str], events: Events) -> None:
        def count_end(event: JobEnded) -> None:
            if event.task in queues:
                self._jobs.labels(flow, queues[event.task], event.outcome.value).inc()
                self._seconds.labels(flow, queues[event.task]).observe(event.seconds)

        def count_lost(event: JobLost) -> None:
            if event.task in queues:
                self._jobs.labels(flow, queues[event.task], metric_definitions.LOST_OUTCOME).inc()

        def count_resets(event: JobsReset) -> None:
            # A queue store's sweep also resets jobs outside the flow.
            for job in event.jobs:
                if job.task in queues:
                    self._resets.labels(flow).inc()
                    if job.state is not State.QUEUED:
                        self._jobs.labels(flow, queues[job.task], job.state.value).inc()

        events.on(JobEnded, count_end)
        events.on(JobLost, count_lost)
        events.on(JobsReset, count_resets)
