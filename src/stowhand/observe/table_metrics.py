"""Prometheus metrics of a table's workers, store and resetter (extra ``metrics``).

metrics = TableMetrics()
worker = Worker(store, handle, options, events=metrics.of_worker("uploads", Events()))
await run_all(worker, resetter, metrics.sampler(store))
# and, to serve them: prometheus_client.start_http_server(9090)
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError, StoreError
from stowhand.events import Events, HookFinished, JobLeft, JobsReset, JobStarted, StoreCalled, StoreCallFailed
from stowhand.jobs.durations import Duration
from stowhand.jobs.job import State
from stowhand.observe import metric_definitions
from stowhand.observe.prometheus import REGISTRY, CollectorRegistry, Gauge
from stowhand.protocols.options import Seconds

SAMPLE_TIMEOUT_SECONDS = 5.0
"""Time that a cancelled sample may take to end."""
INTERVAL_OPTION = Seconds("Time between two samples of a queue.")


class SampledStore(Protocol):
    """Part of a ``TableStore`` that a sampler uses."""

    @property
    def name(self) -> str:
        """The store's name."""

    async def queued_count(self, include_processing: bool = False) -> int:
        """Return the number of waiting records."""

    async def max_duration_in_queue(self) -> timedelta:
        """Return how long the oldest due record has been due."""

    async def oldest_claim_age(self) -> timedelta:
        """Return the age of the oldest claim."""


class TableMetrics:
    """Metrics of any number of workers, stores and resetters, in one registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._worker = _OperationMetrics(metric_definitions.TABLE_HOOKS, registry)
        self._store = _OperationMetrics(metric_definitions.TABLE_CALLS, registry)
        self._handlers = metric_definitions.TABLE_HANDLERS(registry=registry)
        self._waiting = metric_definitions.TABLE_WAITING(registry=registry)
        self._wait = metric_definitions.TABLE_LONGEST_WAIT(registry=registry)
        self._oldest = metric_definitions.TABLE_OLDEST_CLAIM(registry=registry)
        self._resets = metric_definitions.TABLE_RESETS(registry=registry)
        self._failures = metric_definitions.TABLE_RESET_FAILURES(registry=registry)
        self._errors = metric_definitions.TABLE_RESET_ERRORS(registry=registry)

    def of_worker(self, worker: str, events: Events) -> Events:
        """Count these events under a worker's name, and return them. Pass them to this worker only.

        The worker's own sweeps count as those of a resetter with its name.
        """
        running = _PeakGauge(self._handlers.labels(worker), self._clock)

        def count_hook(event: HookFinished) -> None:
            self._worker.count(worker, event.hook, event.seconds, failed=event.failed)

        events.on(HookFinished, count_hook)
        events.on(JobStarted, lambda event: running.increment())
        events.on(JobLeft, lambda event: running.decrement())
        self.of_resetter(worker, events)
        return events

    def of_resetter(self, resetter: str, events: Events) -> Events:
        """Count the resets of these events under a resetter's name, and return them."""
        for counter in (self._resets, self._failures, self._errors):
            counter.labels(resetter)

        def count_resets(event: JobsReset) -> None:
            for job in event.jobs:
                (self._failures if job.state is State.FAILED else self._resets).labels(resetter).inc()

        def count_failed_sweep(event: StoreCallFailed) -> None:
            if event.operation == "reset":
                self._errors.labels(resetter).inc()

        events.on(JobsReset, count_resets)
        events.on(StoreCallFailed, count_failed_sweep)
        return events

    def of_store(self, events: Events) -> Events:
        """Count the calls of these events: ``TableStore(…, events=metrics.of_store(Events()))``."""

        def count_call(event: StoreCalled) -> None:
            self._store.count(event.store, event.operation, event.seconds, failed=event.failed)

        events.on(StoreCalled, count_call)
        return events

    def sampler(self, store: SampledStore, interval: Duration = 15.0) -> Sampler:
        """Return a routine for ``run_all`` that samples the queue every ``interval`` (seconds, a timedelta)."""
        return Sampler(self, store, interval, self._clock)

    async def sample(self, store: SampledStore) -> None:
        """Sample the queue once. Raises StoreError."""
        self._waiting.labels(store.name).set(await store.queued_count())
        self._wait.labels(store.name).set((await store.max_duration_in_queue()).total_seconds())
        self._oldest.labels(store.name).set((await store.oldest_claim_age()).total_seconds())


class Sampler:
    """Routine that samples a store's queue every ``interval`` seconds. During an outage the last figures stay."""

    serves = True

    def __init__(self, metrics: TableMetrics, store: SampledStore, interval: Duration, clock: Clock) -> None:
        try:
            self._interval = INTERVAL_OPTION.read(interval)
        except ValueError as error:
            raise ConfigurationError(f"sampler: interval: {error}") from None
        self._metrics = metrics
        self._store = store
        self._clock = clock
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Sample until stopped. The stop cancels a sample under way."""
        sampling = asyncio.ensure_future(self._sample_repeatedly())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((sampling, stopping), return_when=asyncio.FIRST_COMPLETED)
            if sampling.done():
                sampling.result()
        finally:
            sampling.cancel()
            stopping.cancel()
            await asyncio.wait((sampling, stopping), timeout=SAMPLE_TIMEOUT_SECONDS)

    async def _sample_repeatedly(self) -> None:
        while True:
            with suppress(StoreError):  # The workers of the store report it.
                await self._metrics.sample(self._store)
            await self._clock.sleep(self._interval)

    def stop(self, *, now: bool = False) -> None:
        """Stop; ``run`` returns soon. ``now`` has no effect."""
        self._stopping.set()


class _OperationMetrics:
    """Number, failures and duration of operations."""

    def __init__(self, declared: metric_definitions.Operations, registry: CollectorRegistry) -> None:
        total, errors, seconds = declared
        self._total, self._errors = total(registry=registry), errors(registry=registry)
        self._seconds = seconds(registry=registry)

    def count(self, owner: str, operation: str, seconds: float, *, failed: bool) -> None:
        self._total.labels(owner, operation).inc()
        errors = self._errors.labels(owner, operation)
        if failed:
            errors.inc()
        self._seconds.labels(owner, operation).observe(seconds)


class _PeakGauge:
    """Gauge of the largest value within PEAK_WINDOW_SECONDS, computed at each scrape."""

    def __init__(self, gauge: Gauge, clock: Clock) -> None:
        self._clock = clock
        self._value = 0
        self._peaks: deque[tuple[float, int]] = deque()
        """(time, value until then), in descending order of values."""
        gauge.set_function(self._peak)

    def increment(self) -> None:
        self._value += 1

    def decrement(self) -> None:
        self._record_peak()
        self._value = max(self._value - 1, 0)

    def _record_peak(self) -> None:
        now = self._clock.monotonic()
        while self._peaks and self._peaks[0][0] < now - metric_definitions.PEAK_WINDOW_SECONDS:
            self._peaks.popleft()
        while self._peaks and self._peaks[-1][1] <= self._value:
            self._peaks.pop()
        self._peaks.append((now, self._value))

    def _peak(self) -> float:
        """Return the largest value. Called in the thread of the scrape, so it must not change state."""
        oldest = self._clock.monotonic() - metric_definitions.PEAK_WINDOW_SECONDS
        return max([self._value, *(peak for time, peak in tuple(self._peaks) if time >= oldest)])
