"""What a worker writes of what has ended: seldom, once, by the store's clock, and at its stop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from itertools import pairwise

from stowhand.events import StoreCallFailed, StoreRecovered
from stowhand.jobs.histogram import bucket_of
from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import Fail
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import StoreOptions
from stowhand.protocols.throughput import OutcomeCounts, TaskMinute, total
from stowhand.testing import FakeClock, MemoryStore
from stowhand.worker.reports import WRITE_INTERVAL_SECONDS
from tests.worker.worker_harness import FaultyHeartbeats, FaultyStore, WorkerHarness, at_work, nothing, taking


class CountingHeart(FaultyHeartbeats):
    """What it writes of throughput goes through the store's gate like every other call."""

    async def write_throughput(self, writer: str, minutes: Sequence[TaskMinute]) -> Collection[tuple[int, str]]:
        self._faulty.before("write_throughput", (writer, minutes))
        closed = await super().write_throughput(writer, minutes)
        self._faulty.after("write_throughput")
        return closed


class CountingStore(FaultyStore):
    """Writes of throughput are among its calls, and may fail like them."""

    def heartbeats(self) -> FaultyHeartbeats:
        return CountingHeart(self)


async def counted(store: MemoryStore, clock: FakeClock) -> OutcomeCounts:
    until = clock.now() + timedelta(days=1)
    return total(await store.inspect.throughput(until - timedelta(days=3), until))


async def failing(attempt: Attempt[object]) -> Fail:
    return Fail("no")


async def ended_after(harness: WorkerHarness, seconds: float) -> None:
    await harness.add()
    await harness.clock.advance(seconds)


async def test_what_ended_is_written_soon_and_at_most_every_ten_seconds() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(taking(clock, 0.3), store=store, clock=clock) as harness:
        for _ in range(30):
            await ended_after(harness, 1)
        moments = store.moments("write_throughput")
        assert 3 <= len(moments) <= 4
        assert all(later - sooner >= WRITE_INTERVAL_SECONDS for sooner, later in pairwise(moments))
        await clock.advance(WRITE_INTERVAL_SECONDS)
        tally = await counted(store, clock)
        assert (tally.ok, tally.ended) == (30, 30)
        assert tally.runs == {bucket_of(0.3): 30}
        assert sum(tally.waits.values()) == 30


async def test_nothing_is_written_while_nothing_ends() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(nothing, store=store, clock=clock) as harness:
        await clock.advance(300)
        assert store.called("write_throughput") == []
        await ended_after(harness, 300)
        assert len(store.called("write_throughput")) == 1


async def test_the_last_counts_are_written_at_the_stop_despite_the_interval() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(nothing, store=store, clock=clock) as harness:
        await ended_after(harness, 1)
        await ended_after(harness, 1)
        assert (await counted(store, clock)).ok == 1
        harness.worker.stop()
        assert await harness.ended() < 1.0
        assert (await counted(store, clock)).ok == 2


async def test_a_worker_that_runs_once_writes_before_it_ends() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    jobs = [NewJob(task="act")] * 3
    async with at_work(taking(clock, 0.2), store=store, clock=clock, jobs=jobs, concurrency=1, once=True) as harness:
        await harness.ended()
        assert (await counted(store, clock)).ok == 3


async def test_a_lost_reply_counts_nothing_twice() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(nothing, store=store, clock=clock) as harness:
        store.mute += ["write_throughput", "write_throughput"]
        await ended_after(harness, 1)
        await ended_after(harness, 3 * WRITE_INTERVAL_SECONDS)
        assert len(store.called("write_throughput")) == 3
        assert (await counted(store, clock)).ok == 2
        assert [event.failures for event in harness.events(StoreRecovered)] == [2]


async def test_a_store_that_refuses_throughput_is_reported_once_and_delays_nothing() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(nothing, store=store, clock=clock) as harness:
        store.down.add("write_throughput")
        await ended_after(harness, 5 * WRITE_INTERVAL_SECONDS)
        assert [event.operation for event in harness.events(StoreCallFailed)] == ["throughput"]
        assert harness.worker.controls.liveness.refused() == {}
        store.down.clear()
        await clock.advance(WRITE_INTERVAL_SECONDS + 1)
        assert (await counted(store, clock)).ok == 1


async def test_what_could_not_be_written_in_time_is_dropped_and_counted() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(nothing, store=store, clock=clock) as harness:
        store.down.add("write_throughput")
        await ended_after(harness, 720)
        store.down.clear()
        await ended_after(harness, 3 * WRITE_INTERVAL_SECONDS)
        tally = await counted(store, clock)
        assert (tally.ok, tally.late) == (1, 1)


async def test_two_runs_under_one_name_do_not_overwrite_each_other() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    for _ in range(2):
        async with at_work(nothing, store=store, clock=clock) as harness:
            await ended_after(harness, 1)
    first, second = store.called("write_throughput")
    assert first[0] != second[0]
    assert first[0].startswith("w:")
    assert (await counted(store, clock)).ok == 2


async def test_the_minute_is_the_stores_though_the_workers_clock_is_an_hour_off() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    ahead = timedelta(hours=1)
    store._options = StoreOptions(pinned=lambda: clock.now() + ahead)
    async with at_work(nothing, store=store, clock=clock) as harness:
        await ended_after(harness, 1)
        now = await store.timetable.now()
        (period,) = await store.inspect.throughput(now - timedelta(minutes=2), now)
        assert period.start <= now < period.start + timedelta(minutes=2)
        assert period.tally.ok == 1


async def test_without_a_history_it_counts_all_the_same() -> None:
    clock = FakeClock()
    store = CountingStore(clock, StoreOptions(history=None))
    async with at_work({"act": nothing, "b": failing}, store=store, clock=clock) as harness:
        await harness.add("b")
        await ended_after(harness, WRITE_INTERVAL_SECONDS)
        tally = await counted(store, clock)
        assert (tally.ok, tally.failures) == (1, 1)


async def test_what_was_not_recorded_is_not_counted() -> None:
    clock = FakeClock()
    store = CountingStore(clock)
    async with at_work(taking(clock, 1), store=store, clock=clock) as harness:
        job_id = await harness.add()
        await clock.advance(0.5)
        await store.heartbeats().reset_lease(harness.row(job_id).lease())
        await clock.advance(0.7)
        harness.worker.stop(now=True)
        await harness.ended()
        assert (await counted(store, clock)).ended == 0
