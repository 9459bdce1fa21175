"""Metrics as text: all those of a worker, in one process or in several that write theirs into one folder; and those of
a server that lends a store, in a registry of their own.

Several processes work by Prometheus' own multiprocess mode, which must be chosen (``multiprocess``) before the client
is imported. The counters of a process that has died are kept; its gauges are not.
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
from stowhand.protocols.counts import NAMES, CronFigures, Figures
from stowhand.protocols.store import RecordedSettlement

CONTENT_TYPE = CONTENT_TYPE_LATEST
CUMULATIVE_KINDS = ("counter", "histogram", "summary")
"""Files whose numbers add up, and must never become less."""
MAX_READ_ATTEMPTS = 5
EXITED_PROCESSES = "0"
"""No process has this number: the sums of those that have died are kept under it."""


class Exposition:
    """``folder``: where the processes write; ``None``: this one is the only one. Its methods from any thread."""

    def __init__(
        self,
        figures: Callable[[], Figures | None],
        oldest_due: Callable[[], Mapping[str, float] | None],
        folder: Path | None = None,
        *,
        cron: Callable[[], CronFigures | None] = lambda: None,
        labels: int = NAMES,
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
        """In Prometheus' text format."""
        return generate_latest(self._queue) + self._processes()

    def _processes(self) -> bytes:
        with self._lock:
            self._merge_exited()
            for _ in range(MAX_READ_ATTEMPTS - 1):
                with suppress(ValueError, RuntimeError, OSError, struct.error):
                    return generate_latest(self._registry)
                sleep_blocking(0.05)  # a process is just making its file
            return generate_latest(self._registry)

    def _merge_exited(self) -> None:
        """Keep the counters of processes that have died, in one file for all of them, and delete their gauges."""
        for file in () if self._folder is None else self._folder.glob("*.db"):
            kind, _, number = file.stem.rpartition("_")  # gauge_livesum_77.db is of process 77
            if number != EXITED_PROCESSES and not _is_running(int(number)):
                if kind in CUMULATIVE_KINDS and file.stat().st_size:  # it may have died while it made it
                    _add(file, file.with_name(f"{kind}_{EXITED_PROCESSES}.db"))
                file.unlink()


def _add(file: Path, to: Path) -> None:
    """Add the numbers of one file to those of another."""
    with closing(MmapedDict(str(to))) as sums:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(file)):
            before, _ = sums.read_value(key)
            sums.write_value(key, before + value, 0.0)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user: the number has been reused
        return True
    return True


class LendingMetrics:
    """Called by the server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = metric_definitions.LENDING_REQUESTS(registry=self._registry)
        self._records = metric_definitions.LENDING_RECORDS(registry=self._registry)
        self._verdicts = metric_definitions.LENDING_VERDICTS(registry=self._registry)

    def answered(self, call: str, status: int) -> None:
        """A request was answered."""
        self._requests.labels(call, str(status)).inc()

    def lent(self, number: int) -> None:
        """This many records were lent."""
        self._records.inc(number)

    def settled(self, results: Sequence[RecordedSettlement]) -> None:
        """This was recorded for a batch of settlements."""
        for verdict, number in Counter(result.verdict.value for result in results).items():
            self._verdicts.labels(verdict).inc(number)

    def text(self) -> bytes:
        """All of them in the Prometheus text format."""
        return generate_latest(self._registry)
