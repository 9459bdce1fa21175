"""Metrics as text: those of a worker's processes, and those of a server that lends a store.

A worker has one process, or several that write into one folder. Several processes use Prometheus' own multiprocess
mode, which must be chosen (``multiprocess``) before the client is imported. Counters of exited processes are kept;
their gauges are not.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from stowhand.clock import sleep_blocking
from stowhand.observe import metric_definitions
from stowhand.observe.prometheus import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    MmapedDict,
    MultiProcessCollector,
    generate_latest,
)
from stowhand.observe.queue_metrics import QueueMetrics
from stowhand.protocols.counts import MAX_LISTED_NAMES, CronFigures, Figures
from stowhand.protocols.store import RecordedSettlement

CONTENT_TYPE = CONTENT_TYPE_LATEST
CUMULATIVE_KINDS = ("counter", "histogram", "summary")
"""Kinds of files whose values add up and must never decrease."""
MAX_READ_ATTEMPTS = 5
FILE_RETRY_SECONDS = 0.05
EXITED_PROCESSES = "0"
"""Process number under which the sums of exited processes are kept; no process has it."""


class Exposition:
    """Metrics of a worker; thread-safe. ``folder``: where several processes write; ``None`` for a single process."""

    def __init__(
        self,
        figures: Callable[[], Figures | None],
        oldest_due: Callable[[], Mapping[str, float] | None],
        folder: Path | None = None,
        *,
        cron: Callable[[], CronFigures | None] = lambda: None,
        labels: int = MAX_LISTED_NAMES,
    ) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._registry = REGISTRY
        if folder is not None:
            self._registry = CollectorRegistry()
            MultiProcessCollector(self._registry, path=str(folder))
        self._queue = CollectorRegistry()
        QueueMetrics(figures, oldest_due, self._queue, cron=cron, labels=labels)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._queue) + self._processes()

    def _processes(self) -> bytes:
        with self._lock:
            self._merge_exited()
            for _ in range(MAX_READ_ATTEMPTS - 1):
                with suppress(ValueError, RuntimeError, OSError, struct.error):
                    return generate_latest(self._registry)
                sleep_blocking(FILE_RETRY_SECONDS)  # A process is creating its file.
            return generate_latest(self._registry)

    def _merge_exited(self) -> None:
        """Merge the counters of exited processes into one file, and delete their gauges."""
        for file in () if self._folder is None else self._folder.glob("*.db"):
            kind, _, number = file.stem.rpartition("_")  # Process 77 writes gauge_livesum_77.db.
            if number != EXITED_PROCESSES and not _is_running(int(number)):
                if kind in CUMULATIVE_KINDS and file.stat().st_size:  # A process that died may leave an empty file.
                    _add_values(file, file.with_name(f"{kind}_{EXITED_PROCESSES}.db"))
                file.unlink()


def _add_values(file: Path, target: Path) -> None:
    """Add the values of one file to those of another."""
    with closing(MmapedDict(str(target))) as sums:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(file)):
            before, _ = sums.read_value(key)
            sums.write_value(key, before + value, 0.0)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # A process of another user has reused the number.
        return True
    return True


class LendingMetrics:
    """Metrics of a server that lends a store."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = metric_definitions.LENDING_REQUESTS(registry=self._registry)
        self._records = metric_definitions.LENDING_RECORDS(registry=self._registry)
        self._verdicts = metric_definitions.LENDING_VERDICTS(registry=self._registry)

    def count_request(self, call: str, status: int) -> None:
        """Count an answered request."""
        self._requests.labels(call, str(status)).inc()

    def count_claims(self, number: int) -> None:
        """Count claimed records."""
        self._records.inc(number)

    def count_verdicts(self, results: Sequence[RecordedSettlement]) -> None:
        """Count the verdicts on a batch of settlements."""
        for verdict, number in Counter(result.verdict.value for result in results).items():
            self._verdicts.labels(verdict).inc(number)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
