"""Virtual time: the order of what wakes, and that nothing wakes early."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from stowhand.clock import Clock
from stowhand.testing import FakeClock
from stowhand.testing.clock import START
from tests.conftest import Run


def test_time_stands_still_until_it_is_moved(run: Run) -> None:
    async def scenario() -> None:
        clock: Clock = FakeClock()
        assert (clock.monotonic(), clock.pinned()) == (0.0, START)
        await FakeClock.advance(clock, 2.5)  # type: ignore[arg-type]
        assert (clock.monotonic(), clock.pinned()) == (2.5, START + timedelta(seconds=2.5))

    run(scenario())


def test_sleepers_wake_one_instant_after_the_other(run: Run) -> None:
    async def scenario() -> list[tuple[str, float]]:
        clock, seen = FakeClock(), []

        async def nap(name: str, seconds: float) -> None:
            for _ in range(2):
                await clock.sleep(seconds)
                seen.append((name, clock.monotonic()))

        async with asyncio.TaskGroup() as group:
            group.create_task(nap("slow", 3))
            group.create_task(nap("quick", 2))
            await clock.advance(10)
        return seen

    assert run(scenario()) == [("quick", 2), ("slow", 3), ("quick", 4), ("slow", 6)]


def test_no_sleeper_wakes_early(run: Run) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        nap = asyncio.create_task(clock.sleep(5))
        await clock.advance(4.999)
        assert not nap.done()
        await clock.advance(0.001)
        assert nap.done()

    run(scenario())


def test_all_calls_of_an_instant_run_before_the_next(run: Run) -> None:
    async def scenario() -> list[float]:
        clock, seen = FakeClock(), []

        async def long_chain() -> None:
            await clock.sleep(1)
            for _ in range(500):
                await asyncio.sleep(0)
            seen.append(clock.monotonic())

        chain = asyncio.create_task(long_chain())
        later = asyncio.create_task(clock.sleep(1.5))
        await clock.advance(2)
        await chain
        await later
        return seen

    assert run(scenario()) == [1.0]


def test_a_canceled_sleep_and_a_canceled_timer_do_nothing(run: Run) -> None:
    async def scenario() -> list[str]:
        clock, rung = FakeClock(), []
        nap = asyncio.create_task(clock.sleep(1))
        kept, dropped = clock.call_later(2, lambda: rung.append("kept")), clock.call_later(2, lambda: rung.append("x"))
        await clock.settle()
        nap.cancel()
        dropped.cancel()
        await clock.advance(5)
        kept.cancel()
        assert nap.cancelled()
        return rung

    assert run(scenario()) == ["kept"]


def test_a_ticker_ticks_at_once_and_then_at_its_own_interval(run: Run) -> None:
    async def scenario() -> list[float]:
        clock, seen = FakeClock(), []

        async def tick() -> float:
            seen.append(clock.monotonic())
            return 2.0

        ticker = clock.ticker("heart", tick)
        await clock.advance(3)
        ticker.poke()
        await clock.advance(2.5)
        ticker.stop()
        ticker.poke()
        await clock.advance(10)
        return seen

    assert run(scenario()) == [0.0, 2.0, 3.0, 5.0]


def test_a_ticker_may_be_poked_from_another_thread(run: Run) -> None:
    async def scenario() -> int:
        clock, seen = FakeClock(), []

        async def tick() -> float:
            seen.append(clock.monotonic())
            return 60.0

        ticker = clock.ticker("heart", tick)
        await clock.advance()
        thread = threading.Thread(target=ticker.poke)
        thread.start()
        thread.join()
        await clock.advance()
        return len(seen)

    assert run(scenario()) == 2


def test_a_poke_during_a_tick_causes_another_tick(run: Run) -> None:
    async def scenario() -> int:
        clock = FakeClock()
        seen: list[float] = []

        async def tick() -> float:
            seen.append(clock.monotonic())
            if len(seen) == 1:
                ticker.poke()
            return 60.0

        ticker = clock.ticker("heart", tick)
        await clock.advance(1)
        return len(seen)

    assert run(scenario()) == 2


def test_time_cannot_be_set_back(run: Run) -> None:
    with pytest.raises(ValueError, match="go back"):
        run(FakeClock().advance(-1))


def test_a_loop_that_spins_is_reported_instead_of_waited_for(run: Run) -> None:
    async def scenario() -> None:
        clock = FakeClock()

        async def spin() -> None:
            while True:  # noqa: ASYNC110 - there is nothing that it could wait for
                await asyncio.sleep(0)

        spinning = asyncio.create_task(spin())
        try:
            with pytest.raises(RuntimeError, match="does not become idle"):
                await clock.advance(1)
        finally:
            spinning.cancel()

    run(scenario())
