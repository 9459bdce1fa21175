"""Prometheus metrics of a table's workers, store and resetter (extra ``metrics``).

    metrics = TableMetrics()
    worker = Worker(store, handle, options, events=metrics.of_worker("uploads", Events()))
    await run_all(worker, resetter, metrics.sampler(store))
    # and, to serve them: prometheus_client.start_http_server(9090)

| metric | labels |
|---|---|
| ``stowhand_table_worker_total``, ``…_errors_total``, ``…_duration_seconds`` | worker, op (handle, pre_claim, …) |
| ``stowhand_table_worker_handlers`` | worker; the most that ran at once within five seconds |
| ``stowhand_table_store_total``, ``…_errors_total``, ``…_duration_seconds`` | store, op (claim, settle, …) |
| ``stowhand_table_queue_total``, ``…_longest_wait_seconds``, ``…_oldest_claim_seconds`` | store |
| ``stowhand_table_resetter_resets_total``, ``…_reset_failures_total``, ``…_errors_total`` | resetter |
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from typing import Protocol

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError, StoreError
from stowhand.events import Events, HookRan, JobLeft, JobsReset, JobStarted, StoreCalled, StoreTrouble
from stowhand.jobs.durations import Duration, seconds
from stowhand.jobs.job import State
from stowhand.observe.prometheus import REGISTRY, SECONDS, CollectorRegistry, Counter, Gauge, Histogram

WINDOW = 5.0
"""Seconds over which the most handlers at once are shown: a scrape now and then misses short ones otherwise."""
PATIENCE = 5.0
"""Seconds that a look which is cut short may take to end."""


class Counted(Protocol):
    """What a sampler needs of a ``TableStore``."""

    @property
    def name(self) -> str:
        """The store's name."""

    async def queued_count(self, include_processing: bool = False) -> int:
        """Records that wait."""

    async def max_duration_in_queue(self) -> timedelta:
        """How long the one due longest has been due."""

    async def oldest_claim_age(self) -> timedelta:
        """Since when the oldest record in processing has been claimed."""


class TableMetrics:
    """One set of metrics in one registry; any number of workers, stores and resetters."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._worker = _Operations("stowhand_table_worker", "worker", "Hooks of handlers", registry)
        self._store = _Operations("stowhand_table_store", "store", "Calls to stores", registry)
        name, words = "stowhand_table_worker_handlers", f"Handlers at once, the most within {WINDOW:g} s"
        self._handlers = Gauge(name, words, ["worker"], registry=registry)
        self._waiting = Gauge("stowhand_table_queue_total", "Records that wait", ["store"], registry=registry)
        name, words = "stowhand_table_queue_longest_wait_seconds", "How long the one due longest has been due"
        self._wait = Gauge(name, words, ["store"], registry=registry)
        name, words = "stowhand_table_queue_oldest_claim_seconds", "Age of the oldest record that is locked"
        self._oldest = Gauge(name, words, ["store"], registry=registry)
        start, labels = "stowhand_table_resetter", ["resetter"]
        self._resets = Counter(f"{start}_resets", "Records returned to the queue", labels, registry=registry)
        self._failures = Counter(f"{start}_reset_failures", "Records reset too often", labels, registry=registry)
        self._errors = Counter(f"{start}_errors", "Looks that failed", labels, registry=registry)

    def of_worker(self, worker: str, events: Events) -> Events:
        """Count these events under that name. Give them to this worker afterwards, and to no other.

        The worker's own sweep counts as the resetter of that name.
        """
        running = _Most(self._handlers.labels(worker), self._clock)

        def ran(event: HookRan) -> None:
            self._worker.count(worker, event.hook, event.seconds, failed=event.failed)

        events.on(HookRan, ran)
        events.on(JobStarted, lambda event: running.more())
        events.on(JobLeft, lambda event: running.less())
        self.of_resetter(worker, events)
        return events

    def of_resetter(self, resetter: str, events: Events) -> Events:
        """Count the resets of these events under that name."""
        for counter in (self._resets, self._failures, self._errors):
            counter.labels(resetter)

        def reset(event: JobsReset) -> None:
            for job in event.jobs:
                (self._failures if job.state is State.FAILED else self._resets).labels(resetter).inc()

        def trouble(event: StoreTrouble) -> None:
            if event.doing == "reset":
                self._errors.labels(resetter).inc()

        events.on(JobsReset, reset)
        events.on(StoreTrouble, trouble)
        return events

    def of_store(self, events: Events) -> Events:
        """Count the calls of these events: ``TableStore(…, events=metrics.of_store(Events()))``."""

        def called(event: StoreCalled) -> None:
            self._store.count(event.store, event.operation, event.seconds, failed=event.failed)

        events.on(StoreCalled, called)
        return events

    def sampler(self, store: Counted, interval: Duration = 15.0) -> Sampler:
        """A routine for ``run_all`` that looks at the queue now and then: every ``interval`` (seconds, a timedelta)."""
        return Sampler(self, store, interval, self._clock)

    async def sample(self, store: Counted) -> None:
        """Look once. Raises StoreError."""
        self._waiting.labels(store.name).set(await store.queued_count())
        self._wait.labels(store.name).set((await store.max_duration_in_queue()).total_seconds())
        self._oldest.labels(store.name).set((await store.oldest_claim_age()).total_seconds())


class Sampler:
    """Looks at a store's queue every ``interval`` seconds, until it is stopped. An outage leaves the last figures."""

    serves = True

    def __init__(self, metrics: TableMetrics, store: Counted, interval: Duration, clock: Clock) -> None:
        try:
            every: object = seconds(interval) if isinstance(interval, timedelta | str) else interval
        except ValueError as error:
            raise ConfigurationError(f"sampler: an interval of {interval!r}: {error}") from None
        if isinstance(every, bool) or not isinstance(every, int | float) or not every > 0:
            raise ConfigurationError(f"sampler: an interval of {interval!r}; give more than 0 s, or a timedelta")
        self._metrics, self._store, self._interval, self._clock = metrics, store, float(every), clock
        self._stopping = asyncio.Event()
        self.failures = 0
        """Looks that failed."""

    async def run(self) -> None:
        """Until stopped; a look that is under way is cut short."""
        looking, stopping = asyncio.ensure_future(self._look()), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((looking, stopping), return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()
        finally:
            looking.cancel()
            stopping.cancel()
            await asyncio.wait((looking, stopping), timeout=PATIENCE)

    async def _look(self) -> None:
        while True:
            try:
                await self._metrics.sample(self._store)
            except StoreError:
                self.failures += 1  # those who work on the store say what is wrong
            await self._clock.sleep(self._interval)

    def stop(self, *, now: bool = False) -> None:
        """End soon."""
        self._stopping.set()


class _Operations:
    """How often, how often in vain, and how long."""

    def __init__(self, name: str, whose: str, what: str, registry: CollectorRegistry) -> None:
        labels = [whose, "op"]
        self._total = Counter(name, what, labels, registry=registry)
        self._errors = Counter(f"{name}_errors", f"{what} that failed", labels, registry=registry)
        words = f"How long they took: {what.lower()}"
        self._seconds = Histogram(f"{name}_duration_seconds", words, labels, buckets=SECONDS, registry=registry)

    def count(self, whose: str, operation: str, seconds: float, *, failed: bool) -> None:
        self._total.labels(whose, operation).inc()
        errors = self._errors.labels(whose, operation)
        if failed:
            errors.inc()
        self._seconds.labels(whose, operation).observe(seconds)


class _Most:
    """The most at once within the window; a gauge asks when it is scraped."""

    def __init__(self, gauge: Gauge, clock: Clock) -> None:
        self._clock = clock
        self._now = 0
        self._peaks: deque[tuple[float, int]] = deque()
        """(moment, how many until then), falling."""
        gauge.set_function(self._most)

    def more(self) -> None:
        self._now += 1

    def less(self) -> None:
        self._note()
        self._now = max(self._now - 1, 0)

    def _note(self) -> None:
        now = self._clock.monotonic()
        while self._peaks and self._peaks[0][0] < now - WINDOW:
            self._peaks.popleft()
        while self._peaks and self._peaks[-1][1] <= self._now:
            self._peaks.pop()
        self._peaks.append((now, self._now))

    def _most(self) -> float:
        """Called in the thread of the scrape: it changes nothing."""
        oldest = self._clock.monotonic() - WINDOW
        return max([self._now, *(most for moment, most in tuple(self._peaks) if moment >= oldest)])
