"""A worker's entry in the roll: there while it works, gone when it has ended, and never in anybody's way."""

from __future__ import annotations

import os
from importlib import metadata
from typing import NoReturn

import pytest

import stowhand
from stowhand.events import StoreCallFailed, StoreRecovered
from stowhand.jobs.task_limits import TaskDeclarations
from stowhand.protocols.operator import WORKER_UPDATE_INTERVAL_SECONDS, WorkerDescription
from stowhand.testing import FakeClock
from stowhand.worker.reports import RETRY_DELAY_SECONDS
from tests.worker.worker_harness import FaultyHeartbeats, FaultyStore, at_work, nothing, taking


class CountingHeart(FaultyHeartbeats):
    """Its entries go through the store's gate like every other call."""

    async def worker_seen(self, description: WorkerDescription, declarations: TaskDeclarations) -> None:
        self._faulty.before("worker_seen", description)
        await super().worker_seen(description, declarations)

    async def check_writable(self) -> None:
        self._faulty.before("check_writable")

    async def worker_gone(self, name: str) -> None:
        self._faulty.before("worker_gone", name)
        await super().worker_gone(name)


class CountingStore(FaultyStore):
    """Calls of the roll are among its calls, and may fail like them."""

    def heartbeats(self) -> FaultyHeartbeats:
        return CountingHeart(self)


def uninstalled(name: str) -> NoReturn:
    """As where the package lies in an archive, or is run from its source."""
    raise metadata.PackageNotFoundError(name)


async def test_it_is_in_the_roll_while_it_works_and_not_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", uninstalled)
    async with at_work(nothing, concurrency=3, tasks=("act", "b"), app_version="5.1") as harness:
        assert [one.version for one in await harness.store.inspect.app_versions()] == ["5.1"]
        (row,) = await harness.store.inspect.workers()
        assert (row.description.name, row.description.pid, row.description.concurrency) == ("w", os.getpid(), 3)
        assert row.description.tasks == ("act", "b")
        assert row.description.app_version == "5.1"
        assert row.description.host
        assert row.description.version == stowhand.__version__
        await harness.clock.advance(3600)
        (row,) = await harness.store.inspect.workers()
        assert row.is_alive
        assert row.started_at < row.seen_at
        harness.worker.stop()
        await harness.ended()
        assert list(await harness.store.inspect.workers()) == []


async def test_the_entry_shows_the_stop_and_the_current_tasks() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 20), clock=clock) as harness:
        await harness.add()
        await clock.advance(1)
        harness.worker.controls.set_tasks(("act", "new"))
        await clock.advance(1)
        (row,) = await harness.store.inspect.workers()
        assert (row.description.tasks, row.description.stopping) == (("act", "new"), False)
        harness.worker.stop()
        await clock.advance(1)
        (row,) = await harness.store.inspect.workers()
        assert row.description.stopping


async def test_an_idle_worker_writes_an_entry_each_half_minute_and_no_more() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(nothing, store=store, clock=clock):
        await clock.advance(10 * WORKER_UPDATE_INTERVAL_SECONDS)
        assert 10 <= len(store.called("worker_seen")) <= 11


async def test_a_store_that_refuses_entries_recovers_with_the_next_accepted_one() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(nothing, store=store, clock=clock) as harness:
        store.down.add("worker_seen")  # and nothing else is to be written
        await clock.advance(WORKER_UPDATE_INTERVAL_SECONDS + 20)
        assert [event.retry_in for event in harness.events(StoreCallFailed)[:1]] == [RETRY_DELAY_SECONDS]
        assert harness.events(StoreRecovered) == []
        assert harness.worker.controls.liveness.refused()["heartbeat"] >= 19
        store.down.clear()
        await clock.advance(RETRY_DELAY_SECONDS + 1)
        assert [event.operation for event in harness.events(StoreRecovered)] == ["beat"]
        assert harness.worker.controls.liveness.refused() == {}


async def test_writes_are_checked_only_while_health_probes_arrive() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(nothing, store=store, clock=clock) as harness:
        await clock.advance(60)
        assert store.called("check_writable") == []
        for _ in range(10):
            assert harness.worker.controls.liveness.refused() == {}
            await clock.advance(1)
        assert 4 <= len(store.called("check_writable")) <= 6
        store.down.add("check_writable")
        await clock.advance(3)
        assert harness.worker.controls.liveness.refused().keys() == {"heartbeat"}
        store.down.clear()
        await clock.advance(3)
        assert harness.worker.controls.liveness.refused() == {}
        await clock.advance(60)
        looked = len(store.called("check_writable"))
        await clock.advance(600)
        assert len(store.called("check_writable")) == looked


async def test_deregistering_does_not_wait_for_an_unreachable_store() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(nothing, store=store, clock=clock) as harness:
        store.down |= {"worker_gone", "foreign", "worker_seen"}
        await clock.advance(60)
        harness.worker.stop()
        assert await harness.ended() < 1.0
        assert store.called("worker_gone") == []


async def test_a_failed_deregistration_is_not_repeated() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(nothing, store=store, clock=clock) as harness:
        store.down.add("worker_gone")
        harness.worker.stop()
        assert await harness.ended() < 2.0
        assert store.called("worker_gone") == ["w"]


async def test_the_entry_has_the_forbidden_flags_unless_a_function_returns_them() -> None:
    async with at_work(nothing, forbidden_flags=("gpu", "big")) as harness:
        (row,) = await harness.store.inspect.workers()
        assert row.description.forbidden_flags == ("gpu", "big")
    async with at_work(nothing, forbidden_flags=lambda: ["gpu"]) as harness:
        (row,) = await harness.store.inspect.workers()
        assert row.description.forbidden_flags is None
