"""Probe of a store, for threads other than its loop's. It answers in bounded time and caches the store's answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from stowhand.clock import Clock
from stowhand.cron.known_items import cron_figures
from stowhand.errors import SchemaError
from stowhand.protocols.counts import MAX_EXACT_COUNT_FOR_METRICS, CronFigures, Figures
from stowhand.protocols.queue_store import QueueStore
from stowhand.worker.host import DEFAULT_TIMINGS, Timings

T = TypeVar("T")
MAX_COUNTING_SHARE = 0.1
"""Maximum share of the time that counting may take: a slow answer is reused for longer."""


class StoreProbe:
    """Probe of a store. It has no answers until ``of`` is called, on the store's loop."""

    def __init__(self, clock: Clock, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._clock = clock
        self._timings = timings
        self._check: _CachedQuery[str] | None = None
        self._queries: dict[str, _CachedQuery[object]] = {}

    def of(self, store: QueueStore, *, is_remote: bool) -> None:
        """Probe this store. A remote store has no schema here: only whether it answers counts."""

        async def check() -> str:
            try:
                await (store.next_due(None) if is_remote else store.open())
            except SchemaError as error:
                return str(error)
            return ""

        loop, timings = asyncio.get_running_loop(), self._timings
        self._check = _CachedQuery(check, loop, self._clock, timings.probe_timeout, timings.max_probe_age)
        if not is_remote:
            queries: dict[str, Callable[[], Awaitable[object]]] = {
                "figures": partial(store.inspect.figures, MAX_EXACT_COUNT_FOR_METRICS),
                "oldest_due": store.inspect.oldest_due,
                "cron": partial(cron_figures, store.timetable),
            }
            limits = (loop, self._clock, timings.count_timeout, timings.max_count_age, MAX_COUNTING_SHARE)
            self._queries = {name: _CachedQuery(query, *limits) for name, query in queries.items()}

    @property
    def last_answer_at(self) -> float | None:
        """Time of the store's latest answer to this probe, by the monotonic clock."""
        return None if self._check is None else self._check.answered_at

    def problem(self) -> str | None:
        """Return the problem of the store; ``None`` if there is none."""
        if self._check is None:
            return "the store is not open yet"
        problem = self._check.answer()
        if problem is None:
            return f"the store does not answer within {self._timings.probe_timeout:g} s"
        return problem or None

    def figures(self) -> Figures | None:
        """Return the number of jobs by state; ``None`` if not available now."""
        answer: Figures | None = self._answer("figures")
        return answer

    def oldest_due(self) -> Mapping[str, float] | None:
        """Return the seconds by queue since the oldest due job was due; ``None`` if not available now."""
        answer: Mapping[str, float] | None = self._answer("oldest_due")
        return answer

    def cron(self) -> CronFigures | None:
        """Return the recurring items and their problems; ``None`` if not available now."""
        answer: CronFigures | None = self._answer("cron")
        return answer

    def _answer(self, name: str) -> Any:
        query = self._queries.get(name)
        return None if query is None else query.answer()


@dataclass
class _CachedQuery(Generic[T]):
    """A query to the store. Concurrent callers wait for the same answer."""

    query: Callable[[], Awaitable[T]]
    loop: asyncio.AbstractEventLoop
    clock: Clock
    timeout_seconds: float
    fresh_seconds: float
    max_share: float = 1.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    next_query_at: float = float("-inf")
    last: T | None = None
    answered_at: float | None = None

    def answer(self) -> T | None:
        """Return the answer; ``None`` if there is none within the timeout."""
        with self.lock:
            started_at = self.clock.monotonic()
            if started_at >= self.next_query_at:
                self.last = self._ask()
                finished_at = self.clock.monotonic()
                self.next_query_at = max(
                    finished_at + self.fresh_seconds, started_at + (finished_at - started_at) / self.max_share
                )
                if self.last is not None:
                    self.answered_at = finished_at
            return self.last

    def _ask(self) -> T | None:
        coroutine = self._within()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:  # the loop has ended
            coroutine.close()
            return None
        try:
            return future.result(self.timeout_seconds + 0.1)
        except Exception:  # noqa: BLE001 - boundary: there is no answer; the worker's log has the error
            future.cancel()
        return None

    async def _within(self) -> T:
        async with asyncio.timeout(self.timeout_seconds):
            return await self.query()
