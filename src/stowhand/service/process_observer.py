"""Who looks at a worker from outside: by default nobody. ``HealthReporter`` and ``Reporter`` do more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stowhand.app.settings.settings import WorkerSettings
from stowhand.cron.scheduler import Scheduler
from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.protocols.queue_store import QueueStore
from stowhand.worker.worker import Worker

NEEDED = "metrics need prometheus-client: pip install 'stowhand[metrics]'"


class ProcessObserver:
    """Told by a process what it has made; nothing of it costs anything here."""

    folder: Path | None = None
    """Where the processes of a supervisor leave what they report."""

    def listen(self, events: Events) -> None:
        """These events will be told; the worker is not made yet."""

    def follow(self, store: QueueStore, *, worker: Worker | None = None, scheduler: Scheduler | None = None) -> None:
        """The store is open, and these are about to work. On their loop."""

    def stops(self, wish: Callable[[], object]) -> Callable[[], object]:
        """What a signal to stop calls instead of ``wish``."""
        return wish

    def reloads(self, reload: Callable[[], object]) -> Callable[[], object]:
        """What a signal to reload calls instead of ``reload``."""
        return reload

    @contextmanager
    def supervising(self, supervisor: Any) -> Iterator[None]:
        """For as long as the supervisor has children."""
        del supervisor
        yield


def count(settings: WorkerSettings, events: Events) -> Callable[[float], None]:
    """Make metrics of these events, where they can be shown. Gives what is to hear by how much the loop was late.

    Raises ConfigurationError where the client is told to keep them in a folder that is not to be had.
    """
    if settings.http is None:
        return lambda late: None
    try:
        from stowhand.observe.worker_metrics import WorkerMetrics
    except ConfigurationError:
        return lambda late: None
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
