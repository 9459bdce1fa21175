"""The ticker of production: a loop in a thread, which ends in bounded time whatever its calls do. Real time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from stowhand import clock as module
from stowhand.clock import SystemClock

SOON = 20.0
"""What takes a moment, on a machine that has none to spare."""


class Called:
    """What a ticker has called, and on which threads."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.threads: set[int] = set()
        self.begun = threading.Event()
        self.closed = threading.Event()

    def note(self, name: str) -> None:
        self.names.append(name)
        self.threads.add(threading.get_ident())

    async def on_end(self) -> None:
        self.note("end")
        self.closed.set()


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


async def until(reached: Callable[[], object]) -> None:
    end = time.monotonic() + SOON
    while not reached():
        assert time.monotonic() < end, "it did not come to that"
        await asyncio.sleep(0.002)


async def test_calls_and_end_run_on_one_thread_that_then_ends() -> None:
    called = Called()

    async def tick() -> float:
        called.note("tick")
        return 3600.0

    ticker = SystemClock().ticker("a ticker", tick, on_end=called.on_end)
    await until(lambda: called.names)
    ticker.poke()
    await until(lambda: len(called.names) == 2)
    ticker.stop()
    await ticker.ended()
    assert called.names == ["tick", "tick", "end"]
    assert len(called.threads) == 1
    assert threading.get_ident() not in called.threads
    assert named("a ticker") == []
    ticker.poke()
    ticker.stop()
    await ticker.ended()
    assert called.names == ["tick", "tick", "end"], "whatever comes later is harmless"


async def test_of_two_functions_one_goes_on_while_the_other_waits() -> None:
    called, go_on = Called(), asyncio.Event()

    async def waits() -> float:
        await go_on.wait()
        return 0.0

    async def goes_on() -> float:
        called.note("tick")
        return 0.001

    ticker = SystemClock().ticker("a ticker", waits, goes_on)
    await until(lambda: len(called.names) > 3)
    ticker.stop(0.01)
    await ticker.ended()
    assert named("a ticker") == []


async def test_a_call_that_hangs_is_cancelled_and_the_end_comes_after_it() -> None:
    called = Called()

    async def tick() -> float:
        called.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            called.note("cancelled")
        return 0.0

    ticker = SystemClock().ticker("a ticker", tick, on_end=called.on_end)
    await until(called.begun.is_set)
    ticker.stop(0.05)
    await ticker.ended()
    assert called.names == ["cancelled", "end"]
    assert named("a ticker") == []


async def test_a_call_whose_driver_was_cancelled_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CANCELLED_TICK_DELAY_SECONDS", 0.01)
    called = Called()

    async def tick() -> float:
        called.note("tick")
        cut = asyncio.get_running_loop().create_future()
        cut.cancel()
        await cut
        return 0.0

    ticker = SystemClock().ticker("a ticker", tick, on_end=called.on_end)
    await until(lambda: len(called.names) > 2)
    ticker.stop()
    await ticker.ended()
    assert called.names[-1] == "end"
    assert named("a ticker") == []


async def test_a_call_that_blocks_its_thread_is_left_behind_and_the_end_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "END_TIMEOUT_SECONDS", 0.05)
    called, go_on = Called(), threading.Event()

    async def tick() -> float:
        called.begun.set()
        assert go_on.wait(SOON)
        called.note("answered")
        return 0.0

    ticker = SystemClock().ticker("a ticker", tick, on_end=called.on_end)
    await until(called.begun.is_set)
    ticker.stop(0.05)
    began = time.monotonic()
    await ticker.ended()
    assert time.monotonic() - began < SOON / 2
    assert called.names == [], "it is not closed under a call"
    go_on.set()
    await until(called.closed.is_set)
    assert called.names == ["answered", "end"]
    await until(lambda: not named("a ticker"))


async def test_a_call_that_is_slow_to_be_cancelled_is_cut_before_the_end() -> None:
    """As a driver's that waits until the store has cancelled too, with its connection's lock held."""
    called, lock = Called(), asyncio.Lock()

    async def tick() -> float:
        async with lock:
            called.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(SOON)
        return 0.0

    async def on_end() -> None:
        async with lock:
            called.note("end")

    ticker = SystemClock().ticker("a ticker", tick, on_end=on_end)
    await until(called.begun.is_set)
    ticker.stop(0.05)
    await ticker.ended()
    assert called.names == ["end"]
    assert named("a ticker") == []


@pytest.mark.parametrize("where", ["tick", "end"])
async def test_what_fails_in_the_thread_is_raised_where_its_end_is_awaited(where: str) -> None:
    async def tick() -> float:
        called.set()
        if where == "tick":
            raise ZeroDivisionError("a tick")
        return 3600.0

    async def on_end() -> None:
        if where == "end":
            raise ZeroDivisionError("an end")

    called = threading.Event()
    ticker = SystemClock().ticker("a ticker", tick, on_end=on_end)
    await until(called.is_set)
    ticker.stop()
    with pytest.raises(ZeroDivisionError, match=where):
        await ticker.ended()
    assert ticker.is_over
    assert named("a ticker") == []


async def test_an_end_that_hangs_is_given_up() -> None:
    async def tick() -> float:
        return 3600.0

    async def hangs() -> None:
        await asyncio.Event().wait()

    ticker = SystemClock().ticker("a ticker", tick, on_end=hangs)
    ticker.stop()
    await ticker.ended()
    await until(lambda: not named("a ticker"))
