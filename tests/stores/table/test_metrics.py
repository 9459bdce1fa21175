"""Metrics of a table's workers, store and resetter."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.observe.table_metrics import TableMetrics
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.service.run_all import run_all
from stowhand.testing import FakeClock
from stowhand.worker.resetter import Resetter, ResetterOptions
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import claimed, opened, until


class Shop:
    """A registry, and what it says."""

    def __init__(self, **given: Any) -> None:
        self.registry = CollectorRegistry()
        self.metrics = TableMetrics(self.registry, **given)

    def get(self, name: str, labels: dict[str, str]) -> float | None:
        return self.registry.get_sample_value(f"stowhand_table_{name}", labels)

    def __getitem__(self, what: tuple[str, dict[str, str]]) -> float:
        value = self.get(*what)
        assert value is not None, f"{what}: not among\n{generate_latest(self.registry).decode()}"
        return value


class Halves:
    """Every second record fails."""

    async def pre_handle(self, ctx: Attempt[Any], record: Any) -> None:
        pass

    async def handle(self, ctx: Attempt[Any], record: Any) -> None:
        await asyncio.sleep(0.01)
        if record.path == "bad":
            raise ValueError("no")

    async def post_handle(self, ctx: Attempt[Any], record: Any) -> None:
        pass


def test_hooks_calls_and_the_queue_are_counted(run: Run, on_sqlite: Place) -> None:
    shop = Shop(clock=FakeClock())

    async def story() -> None:
        on_sqlite.add("good", "bad", "fine")
        async with opened(on_sqlite, events=shop.metrics.of_store(Events())) as store:
            await shop.metrics.sample(store)
            assert shop["queue_total", {"store": "uploads"}] == 3
            assert shop["queue_longest_wait_seconds", {"store": "uploads"}] > 0
            assert shop["queue_oldest_claim_seconds", {"store": "uploads"}] == 0
            events = shop.metrics.of_worker("indexer", Events())
            await Worker(store, Halves(), WorkerOptions(once=True), events=events).run()
            await shop.metrics.sample(store)

    run(story())
    for hook, errors in (("pre_handle", 0), ("handle", 1), ("post_handle", 0)):
        labels = {"worker": "indexer", "op": hook}
        assert shop["worker_total", labels] == shop["worker_duration_seconds_count", labels] == 3
        assert shop["worker_errors_total", labels] == errors
    assert shop["worker_duration_seconds_sum", {"worker": "indexer", "op": "handle"}] >= 0.03
    assert shop["worker_handlers", {"worker": "indexer"}] == 3
    assert shop["store_total", {"store": "uploads", "op": "claim"}] >= 2
    assert shop["store_errors_total", {"store": "uploads", "op": "claim"}] == 0
    assert shop["store_duration_seconds_count", {"store": "uploads", "op": "settle"}] >= 1
    assert shop["queue_total", {"store": "uploads"}] == 0


def test_resets_are_counted_and_what_was_reset_too_often_apart(run: Run, on_sqlite: Place) -> None:
    shop = Shop()

    async def story() -> None:
        on_sqlite.add("orphan", "foundling")
        on_sqlite.add("killer", num_resets=1)
        table: dict[str, Any] = {"stalled_max_age": 0.2, "heartbeat_interval": 0.05, "max_resets": 1}
        async with opened(on_sqlite, **table) as store:
            assert len(await claimed(store)) == 3
            events = shop.metrics.of_resetter("sweeper", Events())
            resetter = Resetter(store, ResetterOptions(interval=0.05), events=events)
            sampler = shop.metrics.sampler(store, 0.05)
            await run_all(Watch(on_sqlite, shop), resetter, sampler)

    run(story())
    assert shop["queue_total", {"store": "uploads"}] == 2
    assert shop["resetter_resets_total", {"resetter": "sweeper"}] == 2
    assert shop["resetter_reset_failures_total", {"resetter": "sweeper"}] == 1
    assert shop["resetter_errors_total", {"resetter": "sweeper"}] == 0


class Watch:
    """Ends when the resetter has done its work, and the sampler has seen it."""

    def __init__(self, place: Place, shop: Shop) -> None:
        self.place, self.shop = place, shop

    async def run(self) -> None:
        await until(lambda: sorted(self.place.states()) == ["failed", "queued", "queued"])
        await until(lambda: self.shop.get("queue_total", {"store": "uploads"}) == 2)

    def stop(self, *, now: bool = False) -> None:
        pass


def test_the_gauge_of_handlers_shows_the_most_of_the_last_five_seconds() -> None:
    clock = FakeClock()
    shop = Shop(clock=clock)
    from stowhand.observe.table_metrics import _PeakGauge

    most = _PeakGauge(shop.metrics._handlers.labels("w"), clock)

    async def story() -> None:
        for _ in range(3):
            most.increment()
        for _ in range(3):
            most.decrement()
        await clock.advance(4)
        assert shop["worker_handlers", {"worker": "w"}] == 3, "a scrape between two bursts still sees one"
        most.increment()
        await clock.advance(1.5)
        assert shop["worker_handlers", {"worker": "w"}] == 1
        most.decrement()
        await clock.advance(6)
        assert shop["worker_handlers", {"worker": "w"}] == 0

    asyncio.run(story())


class Refused:
    """No record comes as far as ``handle``."""

    async def pre_claim(self, ctx: Any) -> bool:
        return True

    async def pre_handle(self, ctx: Attempt[Any], record: Any) -> None:
        raise ValueError("no room")

    async def handle(self, ctx: Attempt[Any], record: Any) -> None: ...


def test_the_gauge_of_handlers_comes_down_also_for_what_was_never_handled(run: Run, on_sqlite: Place) -> None:
    shop = Shop(clock=FakeClock())

    async def story() -> None:
        on_sqlite.add("a", "b", "c")
        async with opened(on_sqlite) as store:
            events = shop.metrics.of_worker("indexer", Events())
            await Worker(store, Refused(), WorkerOptions(once=True), events=events).run()

    run(story())
    asyncio.run(shop.metrics._clock.advance(6))  # type: ignore[attr-defined]
    assert shop["worker_handlers", {"worker": "indexer"}] == 0
    labels = {"worker": "indexer", "op": "pre_claim"}
    assert shop["worker_total", labels] >= 3
    assert shop["worker_errors_total", labels] == 0


def test_a_sampler_whose_store_hangs_is_stopped_all_the_same() -> None:
    class Hangs:
        name = "slow"

        async def queued_count(self, include_processing: bool = False) -> int:
            await asyncio.Event().wait()
            return 0

    async def story() -> None:
        sampler = Shop().metrics.sampler(Hangs(), timedelta(seconds=1))  # type: ignore[arg-type]
        running = asyncio.ensure_future(sampler.run())
        await asyncio.sleep(0)
        sampler.stop()
        await running

    asyncio.run(asyncio.wait_for(story(), 30))


@pytest.mark.parametrize("wrong", [0, -1, "soon", True, timedelta(0), float("nan")])
def test_an_interval_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="interval"):
        Shop().metrics.sampler(None, wrong)  # type: ignore[arg-type]
