"""A resetter of its own."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from stowhand.errors import ConfigurationError, SchemaTooNew
from stowhand.events import Event, Events, JobsReset, StoreCallFailed, StoreRecovered
from stowhand.jobs.job import NewJob, State
from stowhand.protocols.store import ClaimRequest, Foreign
from stowhand.testing import FakeClock
from stowhand.testing.clock import FakeTimer
from stowhand.worker.resetter import Resetter, ResetterOptions
from tests.worker.worker_harness import FaultyStore

SOON = 20.0
"""What takes a moment, on a machine that has none to spare."""


class RestingClock(FakeClock):
    """Counts how often the resetter has begun to rest: so many looks have ended and were told."""

    rests = 0

    def call_later(self, seconds: float, call: Callable[[], None]) -> FakeTimer:
        self.rests += 1
        return super().call_later(seconds, call)


class ResetterHarness:
    def __init__(self, store: FaultyStore, clock: RestingClock, resetter: Resetter, emitted: list[Event]) -> None:
        self.store, self.clock, self.resetter, self.emitted = store, clock, resetter, emitted
        self.running = asyncio.ensure_future(resetter.run())

    async def until(self, looks: int) -> None:
        """Until it has looked so often, by a clock that is moved."""
        await self.clock.settle()
        while self.clock.rests < looks:
            await self.clock.advance(0.5)


@asynccontextmanager
async def at_work(kind: type[FaultyStore] = FaultyStore, **options: Any) -> AsyncIterator[ResetterHarness]:
    clock, emitted, events = RestingClock(), list[Event](), Events()
    store = kind(clock)
    for told in (JobsReset, StoreCallFailed, StoreRecovered):
        events.on(told, emitted.append)
    resetter = Resetter(store, ResetterOptions(name="r", **options), clock=clock, events=events)
    harness = ResetterHarness(store, clock, resetter, emitted)
    yield harness
    resetter.stop()
    resetter.stop()
    await asyncio.wait_for(harness.running, SOON)


async def test_it_looks_at_once_and_then_every_interval() -> None:
    async with at_work(interval=30.0) as harness:
        began = harness.clock.monotonic()
        await harness.until(3)
        first, second, third = harness.store.moments("foreign")
        assert first == began, "before any time has passed"
        assert min(second - first, third - second) >= 30


async def test_it_resets_the_jobs_of_a_lost_worker_and_reports_them() -> None:
    async with at_work(interval=5.0) as harness:
        await harness.until(1)
        await harness.store.jobs.enqueue(NewJob(task="t"))
        await harness.store.claim(ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=10))
        await harness.until(5)
        (told,) = [event for event in harness.emitted if isinstance(event, JobsReset)]
        assert (told.by, [(job.job_id, job.state) for job in told.jobs]) == ("r", [(1, State.QUEUED)])


@pytest.mark.parametrize(("prompt", "taken_at"), [(False, 30.0), (True, 13.0)])
async def test_a_prompt_resetter_sweeps_when_a_lease_ends_and_others_keep_their_interval(
    prompt: bool, taken_at: float
) -> None:
    async with at_work(interval=30.0, slack=1.0, prompt=prompt) as harness:
        await harness.until(1)
        began = harness.clock.monotonic()
        await harness.store.jobs.enqueue(NewJob(task="t"))
        await harness.store.claim(ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=12))
        harness.resetter.expect(12)
        while not harness.emitted:
            await harness.until(harness.clock.rests + 1)
        assert taken_at <= harness.clock.monotonic() - began <= taken_at + 1.5


async def test_a_sweep_continues_while_it_finds_jobs_and_respects_the_slack() -> None:
    clock, empty = FakeClock(), asyncio.Event()
    rows: list[list[Any]] = [[1], [2], []]

    class Full(FaultyStore):
        def heartbeats(self) -> Any:
            heartbeats = super().heartbeats()

            async def late(own_leases: Any, slack: float) -> Foreign:
                return Foreign(has_expired=True)

            async def reset_stalled(slack: float) -> list[Any]:
                self.before("reset_stalled", slack)
                if len(rows) == 1:
                    empty.set()
                return rows.pop(0)

            heartbeats.foreign = late  # type: ignore[method-assign]
            heartbeats.reset_stalled = reset_stalled  # type: ignore[method-assign]
            return heartbeats

    store = Full(clock)
    resetter = Resetter(store, ResetterOptions(slack=7.0), clock=clock)
    running = asyncio.ensure_future(resetter.run())
    await asyncio.wait_for(empty.wait(), SOON)
    resetter.stop()
    await asyncio.wait_for(running, SOON)
    assert store.called("reset_stalled") == [7.0] * 3


async def test_a_stopped_resetter_resets_no_further_page() -> None:
    begun, go_on, told = asyncio.Event(), asyncio.Event(), list[Event]()

    class Endless(FaultyStore):
        def heartbeats(self) -> Any:
            heartbeats = super().heartbeats()

            async def late(own_leases: Any, slack: float) -> Foreign:
                return Foreign(has_expired=True)

            async def reset_stalled(slack: float) -> list[Any]:
                self.before("reset_stalled", slack)
                begun.set()
                await go_on.wait()
                return [1]

            heartbeats.foreign = late  # type: ignore[method-assign]
            heartbeats.reset_stalled = reset_stalled  # type: ignore[method-assign]
            return heartbeats

    store, events = Endless(FakeClock()), Events()
    events.on(JobsReset, told.append)
    resetter = Resetter(store, events=events, clock=store.time)
    running = asyncio.ensure_future(resetter.run())
    await asyncio.wait_for(begun.wait(), SOON)
    resetter.stop()
    go_on.set()
    await asyncio.wait_for(running, SOON)
    assert (len(store.called("reset_stalled")), len(told)) == (1, 1)


async def test_the_schema_is_checked_while_the_resetter_runs() -> None:
    checks: list[float] = []

    class Asked(FaultyStore):
        def heartbeats(self) -> Any:
            heartbeats = super().heartbeats()

            async def check() -> None:
                checks.append(self.time.monotonic())

            heartbeats.check = check  # type: ignore[method-assign]
            return heartbeats

    async with at_work(Asked, interval=5.0) as harness:
        await harness.until(20)
    assert len(checks) >= 3


@pytest.mark.parametrize("where", ["validate", "check"])
async def test_what_makes_the_store_unfit_ends_it(where: str) -> None:
    class Unfit(FaultyStore):
        def __init__(self, clock: FakeClock) -> None:
            super().__init__(clock)
            self.enclosing = self

        async def validate(self, events: Events | None = None) -> None:
            if where == "validate":
                raise SchemaTooNew("newer")

        def around(self, attempt: object) -> None: ...

        def heartbeats(self) -> Any:
            heartbeats = super().heartbeats()

            async def check() -> None:
                raise SchemaTooNew("newer")

            heartbeats.check = check  # type: ignore[method-assign]
            return heartbeats

    store = Unfit(clock := FakeClock())
    with pytest.raises(SchemaTooNew):
        await asyncio.wait_for(Resetter(store, clock=clock).run(), SOON)
    assert len(store.called("foreign")) == (0 if where == "validate" else 1)


async def test_an_outage_is_reported_and_waited_out() -> None:
    async with at_work(interval=5.0) as harness:
        harness.store.down.add("foreign")
        await harness.until(2)
        assert {type(event) for event in harness.emitted} == {StoreCallFailed}
        harness.store.down.clear()
        await harness.until(4)
        assert any(isinstance(event, StoreRecovered) for event in harness.emitted)


async def test_it_stops_in_the_middle_of_its_interval() -> None:
    async with at_work(interval=86_400.0) as harness:
        await harness.until(1)
    assert harness.running.done()


async def test_it_stops_although_a_call_hangs_and_closes_its_heart_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowhand.worker.resetter.STOP_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr("stowhand.clock.END_TIMEOUT_SECONDS", 0.05)
    hanging, go_on, closed, order = threading.Event(), threading.Event(), threading.Event(), list[str]()
    store = FaultyStore(FakeClock())
    heartbeats = store.heartbeats()

    class Hangs:
        async def foreign(self, own_leases: Any, slack: float) -> Foreign:
            hanging.set()
            go_on.wait(SOON)
            order.append("answered")
            return Foreign()

        async def close(self) -> None:
            await heartbeats.close()
            order.append("closed")
            closed.set()

        def __getattr__(self, name: str) -> Any:
            return getattr(heartbeats, name)

    monkeypatch.setattr(store, "heartbeats", Hangs)
    resetter = Resetter(store)
    running = asyncio.ensure_future(resetter.run())
    assert await asyncio.to_thread(hanging.wait, SOON)
    resetter.stop()
    await asyncio.wait_for(running, SOON)
    assert order == []
    go_on.set()
    assert await asyncio.to_thread(closed.wait, SOON)
    assert order == ["answered", "closed"]


@pytest.mark.parametrize("wrong", [0, -1, timedelta(0), True, "soon", float("inf"), float("nan")])
def test_an_interval_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="interval"):
        ResetterOptions(interval=wrong)


def test_durations_may_be_timedeltas() -> None:
    assert ResetterOptions(interval=timedelta(milliseconds=250)).interval == 0.25  # type: ignore[arg-type]
