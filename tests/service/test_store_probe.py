"""Asking a store how it is, seldom."""

from __future__ import annotations

import asyncio

from stowhand.protocols.counts import MAX_EXACT_COUNT, Figures
from stowhand.service.store_probe import StoreProbe
from stowhand.stores.kernel.inspector import Inspector
from stowhand.stores.sqlite.queue.reader import Reader
from stowhand.testing import FakeClock, MemoryStore
from stowhand.worker.host import DEFAULT_TIMINGS
from tests.conftest import Run


class Slow(MemoryStore):
    """Counting takes time."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds, self.counted = clock, seconds, 0
        self.inspect = SlowInspector(self)


class SlowInspector(Inspector):
    def __init__(self, store: Slow) -> None:
        super().__init__(Reader(store._connections))
        self.store = store

    async def figures(self, max_count: int = MAX_EXACT_COUNT) -> Figures:
        self.store.counted += 1
        await self.store.clock.advance(self.store.seconds)
        return await super().figures(max_count)


def counted_within(run: Run, seconds: int, *, taking: float) -> int:
    """How often it is counted if it is asked once a second."""

    async def go() -> int:
        clock = FakeClock()
        store, probe = Slow(clock, taking), StoreProbe(clock)
        probe.of(store, is_remote=False)
        since = clock.monotonic()
        while clock.monotonic() < since + seconds:
            assert await asyncio.to_thread(probe.figures) is not None
            await clock.advance(1)
        return store.counted

    return run(go())


def test_a_quick_count_is_repeated_every_few_seconds(run: Run) -> None:
    assert counted_within(run, 60, taking=0.01) == 60 / DEFAULT_TIMINGS.max_count_age


def test_a_slow_count_takes_no_more_than_a_tenth_of_the_time(run: Run) -> None:
    assert counted_within(run, 60, taking=1.5) == 4
