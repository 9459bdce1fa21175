"""Observers of a working process, which show its health: base of ``HealthReporter`` and ``ChildReporter``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from stowhand.app.settings.settings import WorkerSettings
from stowhand.cron.scheduler import Scheduler
from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.protocols.queue_store import QueueStore
from stowhand.service.notifier import notifier
from stowhand.worker.worker import Worker

METRICS_NEEDED = "metrics need prometheus-client: pip install 'stowhand[metrics]'"


class ProcessObserver:
    """An observer that does nothing, for a process whose health is not shown."""

    folder: Path | None = None
    """Where the supervisor's processes write their reports."""

    def listen(self, events: Events) -> None:
        """Receive the events of the worker, before the worker is made."""

    def follow(self, store: QueueStore, *, worker: Worker | None = None, scheduler: Scheduler | None = None) -> None:
        """Receive the open store, and the worker and scheduler that are about to start. Called on the loop."""

    def on_stop(self, stop: Callable[[], object]) -> Callable[[], object]:
        """Return the function that a signal to stop calls instead of ``stop``."""
        return stop

    @contextmanager
    def supervising(self, supervisor: Any) -> Iterator[None]:
        """Context manager entered while the supervisor runs its children."""
        del supervisor
        yield


@contextmanager
def observe_process(settings: WorkerSettings) -> Iterator[ProcessObserver]:
    """Observe a process while its worker runs. Raises ConfigurationError where ``--http`` cannot listen."""
    service_notifier = notifier(os.environ)
    if settings.http is None and service_notifier is None:
        yield ProcessObserver()
        return
    from stowhand.service.health_reporter import HealthReporter

    with ExitStack() as stack:
        health_reporter = HealthReporter(settings, service_notifier)
        stack.callback(health_reporter.close)
        health_reporter.open()
        yield health_reporter


def count_events(settings: WorkerSettings, events: Events) -> Callable[[float], None]:
    """Count these events as metrics, if metrics are shown. Return a function that records the loop's lag in seconds.

    Raises ConfigurationError if the client's metrics folder (PROMETHEUS_MULTIPROC_DIR) cannot be used.
    """
    if settings.http is None:
        return lambda lag_seconds: None
    try:
        from stowhand.observe.worker_metrics import WorkerMetrics
    except ConfigurationError:
        return lambda lag_seconds: None
    try:
        metrics = WorkerMetrics(labels=settings.metrics_labels)
    except OSError as error:
        raise ConfigurationError(
            f"PROMETHEUS_MULTIPROC_DIR={os.environ.get('PROMETHEUS_MULTIPROC_DIR')}: metrics cannot be kept there"
            f" ({error.strerror or error}); make that folder, or unset the variable"
        ) from None
    metrics.of(events)
    metrics.introduce(settings.store.connection.scheme)
    return metrics.lag
