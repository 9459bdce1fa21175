"""A handler that blocks the loop: the heartbeat thread keeps the leases alive and says where it is. Real time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import pytest

from stowhand.clock import SystemClock
from stowhand.events import Events, JobEnded, JobLost, LoopBlocked
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Foreign
from stowhand.testing import FakeClock
from stowhand.testing.clock import START
from stowhand.worker.host import Host
from stowhand.worker.policy import HandlerPolicies, Policy
from stowhand.worker.state import WorkerState
from stowhand.worker.watchdog import LoopWatchdog
from stowhand.worker.worker import Worker
from tests.support.memory_rows import look
from tests.worker.worker_harness import FaultyHeartbeats, FaultyStore, handler_of, nothing


class RunningClock(SystemClock):
    """Real time while this process runs: of a pause in which nobody looked at it, a moment counts and not more."""

    MOMENT = 0.3

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked = super().monotonic()
        self._passed = 0.0

    def monotonic(self) -> float:
        with self._lock:
            now = super().monotonic()
            self._passed += min(now - self._looked, self.MOMENT)
            self._looked = now
            return self._passed

    def pinned(self) -> datetime:
        return START + timedelta(seconds=self.monotonic())


def block_until(event: threading.Event) -> None:
    """Keep the loop's thread, as a handler does that should have been synchronous."""
    assert event.wait(20)


def block_for(clock: RunningClock, seconds: float) -> None:
    """The same, for a while."""
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        time.sleep(0.05)


def watchdog_on(clock: FakeClock, events: Events, on_hang: Callable[[], object]) -> LoopWatchdog:
    """No handler is at work."""
    state = WorkerState("w", WorkerOptions(lease=10.0), events, clock)
    policies = HandlerPolicies(handler_of(nothing), Policy(), events)
    return LoopWatchdog(policies, lambda _: on_hang(), state)


async def test_a_blocked_loop_is_reported_with_its_stack_while_the_lease_is_kept() -> None:
    store = FaultyStore(clock := RunningClock())
    reports: list[LoopBlocked] = []
    reported = threading.Event()

    async def act(attempt: Attempt[Job]) -> None:
        until = clock.monotonic() + 2.5  # longer than its lease: only the other thread can keep it
        block_until(reported)
        block_for(clock, until - clock.monotonic())

    def listen(event: LoopBlocked) -> None:
        reports.append(event)
        reported.set()

    job = await store.jobs.enqueue(NewJob(task="act"))
    worker = Worker(store, handler_of(act), WorkerOptions(lease=1.5, once=True), clock=clock)
    lost: list[JobLost] = []
    worker.events.on(LoopBlocked, listen)
    worker.events.on(JobLost, lost.append)
    await worker.run()
    done = await store.jobs.get(job.id)
    assert done is not None
    assert (done.state, done.attempts, lost) == (State.COMPLETED, 1, [])
    first = reports[0]
    assert (first.task, first.job_id, first.is_lease_renewed) == ("act", job.id, True)
    assert 1.0 <= first.seconds < 3
    assert "block_until" in first.stack
    assert len(store.called("beat")) >= 2


async def test_a_worker_whose_loop_is_blocked_is_listed_as_blocked() -> None:
    store = FaultyStore(clock := RunningClock())
    seen: list[bool] = []

    def is_blocked() -> bool:
        return bool(look(store, "SELECT 1 FROM stowhand_workers WHERE blocked"))

    async def act(attempt: Attempt[Job]) -> None:
        until = clock.monotonic() + 20
        while not is_blocked() and clock.monotonic() < until:
            time.sleep(0.02)  # noqa: ASYNC251 - that is the point
        seen.append(is_blocked())

    await store.jobs.enqueue(NewJob(task="act"))
    worker = Worker(store, handler_of(act), WorkerOptions(), clock=clock)
    running = asyncio.ensure_future(worker.run())
    while not seen or is_blocked():  # noqa: ASYNC110 - both are seen from outside only
        await asyncio.sleep(0.01)
    worker.stop()
    await running
    assert seen == [True]


async def test_a_blocked_loop_is_reported_while_a_call_to_the_store_hangs() -> None:
    store = FaultyStore(clock := RunningClock())
    reports: list[LoopBlocked] = []
    reported, hanging = threading.Event(), threading.Event()

    class Hangs(FaultyHeartbeats):
        async def foreign(self, own_leases: Sequence[Lease], slack: float) -> Foreign | None:
            hanging.set()
            await asyncio.Event().wait()
            raise AssertionError("nothing answers")

    async def act(attempt: Attempt[Job]) -> None:
        block_until(hanging)
        block_until(reported)

    def listen(event: LoopBlocked) -> None:
        reports.append(event)
        reported.set()

    store.heartbeats = lambda: Hangs(store)  # type: ignore[method-assign]
    await store.jobs.enqueue(NewJob(task="act"))
    worker = Worker(store, handler_of(act), WorkerOptions(once=True), clock=clock)
    worker.events.on(LoopBlocked, listen)
    await asyncio.wait_for(worker.run(), 20)
    assert "block_until" in reports[0].stack


async def test_an_error_in_a_look_ends_the_worker_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: LoopWatchdog) -> float:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(LoopWatchdog, "look", broken)
    with pytest.raises(ZeroDivisionError, match="a bug of ours"):
        await asyncio.wait_for(Worker(FaultyStore(SystemClock()), handler_of(nothing)).run(), 20)


async def test_a_loop_blocked_beyond_timeout_and_one_lease_counts_as_hung_once() -> None:
    store = FaultyStore(clock := RunningClock())
    given_up = threading.Event()
    is_hung: list[float] = []
    beats: list[int] = []
    reports: list[LoopBlocked] = []

    async def act(attempt: Attempt[Job]) -> None:
        if attempt.claim.attempts == 1 and not is_hung:
            block_until(given_up)
            block_for(clock, 0.7)  # a few ticks more: beats have ended, and it is not called again
            beats.append(len(store.called("beat")))

    def on_hang(lease: Lease | None) -> None:
        assert lease is not None
        assert lease.job_id == job.id
        is_hung.append(clock.monotonic() - began)
        beats.append(len(store.called("beat")))
        given_up.set()

    job = await store.jobs.enqueue(NewJob(task="act"))
    options = WorkerOptions(lease=1.0, timeout=0.3, sweep_interval=60.0)
    worker = Worker(store, handler_of(act), options, clock=clock, host=Host(on_hang=on_hang))
    worker.events.on(LoopBlocked, reports.append)
    lost: list[JobLost] = []
    ended: list[JobEnded] = []
    worker.events.on(JobLost, lost.append)
    worker.events.on(JobEnded, ended.append)
    began = clock.monotonic()
    running = asyncio.ensure_future(worker.run())
    while not is_hung or worker.running:  # noqa: ASYNC110 - both are seen from outside only
        await asyncio.sleep(0.01)
    worker.stop(now=True)
    await running
    assert len(is_hung) == 1
    assert 1.3 < is_hung[0] < 3.3
    assert [event.is_lease_renewed for event in reports].count(False) >= 1
    assert beats == [beats[0]] * 2, "a hung job is not kept alive for ever"


async def test_a_long_hang_is_reported_ever_more_rarely_and_given_up_once_each_time() -> None:
    clock = FakeClock()
    events = Events()
    reports: list[LoopBlocked] = []
    events.on(LoopBlocked, reports.append)
    given_up: list[float] = []
    watchdog = watchdog_on(clock, events, lambda: given_up.append(clock.monotonic()))
    for _ in range(2):
        watchdog.mark_alive()
        began = clock.monotonic()
        for _ in range(2000):
            clock._elapsed += 0.5
            await watchdog.look()
        watchdog.mark_alive()
        clock._elapsed += 0.5
        await watchdog.look()
        assert 30 < given_up[-1] - began <= 31
    assert len(given_up) == 2
    assert 8 <= len(reports) <= 2 * 14


@pytest.mark.parametrize("seconds", [2.0, 1000.0])
async def test_a_process_that_stood_still_as_a_whole_is_not_blocked_and_does_not_hang(seconds: float) -> None:
    """Stopped by a signal, or with its machine: whichever thread goes on first, the loop's goes on too."""
    clock, events = FakeClock(), Events()
    calls: list[object] = []
    events.on(LoopBlocked, calls.append)
    watchdog = watchdog_on(clock, events, lambda: calls.append("hangs"))
    for _ in range(3):
        watchdog.mark_alive()
        clock._elapsed += seconds
        await watchdog.look()
        assert not watchdog.is_hung
        watchdog.mark_alive()
        clock._elapsed += 0.5
        await watchdog.look()
    assert calls == []


async def test_a_loop_that_runs_is_never_reported() -> None:
    store = FaultyStore(clock := RunningClock())

    async def act(attempt: Attempt[Job]) -> None:
        await asyncio.sleep(1.6)

    await store.jobs.enqueue(NewJob(task="act"))
    worker = Worker(store, handler_of(act), WorkerOptions(once=True), clock=clock)
    reports: list[LoopBlocked] = []
    worker.events.on(LoopBlocked, reports.append)
    await worker.run()
    assert reports == []
