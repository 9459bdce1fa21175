"""Heartbeats on a thread of their own: each call is answered, whatever the store does. Real time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stowhand.clock import SystemClock
from stowhand.errors import StoreUnreachable
from stowhand.protocols.store import Heartbeats
from stowhand.worker import heartbeat_thread as module
from stowhand.worker.heartbeat_thread import HeartbeatThread
from tests.worker.worker_harness import FaultyHeartbeats, FaultyStore

SOON = 20.0
"""What takes a moment, on a machine that has none to spare."""
NAME = "heartbeats of this test"


class Counting(FaultyHeartbeats):
    """Counts how often its reports were asked for; ``fails``: that is an error."""

    fails = False
    asked = 0

    def refused(self) -> Any:
        type(self).asked += 1
        if self.fails:
            raise ZeroDivisionError("a bug in a store")
        return super().refused()


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeartbeatThread]:
    monkeypatch.setattr(module, "CALL_TIMEOUT_SECONDS", 4 * SOON)
    monkeypatch.setattr(Counting, "fails", False)
    monkeypatch.setattr(Counting, "asked", 0)
    store = FaultyStore(SystemClock())
    thread = HeartbeatThread(NAME, lambda: Counting(store))
    yield thread
    asyncio.run(thread.close())


async def answers(heartbeats: Heartbeats) -> str:
    return "answered"


async def test_calls_that_wait_for_their_turn_fail_at_once_when_it_is_closed(thread: HeartbeatThread) -> None:
    begun = threading.Event()

    async def hangs(heartbeats: Heartbeats) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    calls = [asyncio.ensure_future(thread.call(one)) for one in (hangs, answers, answers)]
    assert await asyncio.to_thread(begun.wait, SOON)
    began = time.monotonic()
    closing = asyncio.ensure_future(thread.close())
    ended = await asyncio.wait_for(asyncio.gather(*calls[1:], return_exceptions=True), SOON)
    assert not calls[0].done(), "it still has its patience"
    with pytest.raises(StoreUnreachable, match="being closed"):
        await thread.call(answers)
    ended += await asyncio.wait_for(asyncio.gather(calls[0], return_exceptions=True), SOON)
    assert [(type(one), str(one)) for one in ended] == [(StoreUnreachable, "the store is being closed")] * 3
    await closing
    assert time.monotonic() - began < SOON
    assert await thread.call(answers) == "answered", "it may be used again"


async def test_an_error_in_the_reports_of_refusals_costs_no_answer(thread: HeartbeatThread) -> None:
    Counting.fails = True
    for _ in range(3):
        assert await asyncio.wait_for(thread.call(answers), SOON) == "answered"


async def test_the_reports_of_refusals_are_dropped_after_a_failed_call_too(thread: HeartbeatThread) -> None:
    async def fails(heartbeats: Heartbeats) -> str:
        raise StoreUnreachable("away")

    with pytest.raises(StoreUnreachable, match="away"):
        await thread.call(fails)
    end = time.monotonic() + SOON
    while not Counting.asked:
        assert time.monotonic() < end, "they were kept"
        await asyncio.sleep(0.002)


async def test_a_call_that_a_driver_cuts_is_not_taken_for_the_end(thread: HeartbeatThread) -> None:
    async def cut(heartbeats: Heartbeats) -> str:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        return ""

    with pytest.raises(StoreUnreachable, match="interrupted inside the store"):
        await asyncio.wait_for(thread.call(cut), SOON)
    assert await asyncio.wait_for(thread.call(answers), SOON) == "answered"


async def test_after_the_death_of_its_thread_it_starts_another(thread: HeartbeatThread) -> None:
    class Fatal(BaseException):
        """No ``Exception``, as what a driver in another language may raise."""

    async def exits(heartbeats: Heartbeats) -> str:
        raise Fatal

    with pytest.raises(StoreUnreachable, match="interrupted inside the store"):
        await asyncio.wait_for(thread.call(exits), SOON)
    end = time.monotonic() + SOON
    while any(one.name == NAME for one in threading.enumerate()):
        assert time.monotonic() < end
        await asyncio.sleep(0.002)
    assert await asyncio.wait_for(thread.call(answers), SOON) == "answered"
