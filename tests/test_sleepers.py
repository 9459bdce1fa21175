"""One wake-up for many waits."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stowhand.clock import SystemClock
from stowhand.errors import StoreUnreachable
from stowhand.sleepers import Sleepers
from stowhand.testing import FakeClock
from tests.conftest import Run


def test_one_wake_up_ends_every_wait(run: Run) -> None:
    async def story() -> None:
        sleepers = Sleepers(FakeClock())
        waits = [asyncio.ensure_future(sleepers.wait(0, 60.0)) for _ in range(3)]
        await asyncio.sleep(0)
        sleepers.wake()
        assert await asyncio.gather(*waits) == [True] * 3
        assert not sleepers

    run(story())


def test_each_wait_ends_alone_by_its_own_time_or_when_it_is_cancelled(run: Run) -> None:
    async def story() -> None:
        clock = FakeClock()
        sleepers = Sleepers(clock)
        short, long, canceled = (asyncio.ensure_future(sleepers.wait(0, seconds)) for seconds in (1.0, 5.0, 60.0))
        await clock.advance(1.0)
        assert (short.done(), long.done(), canceled.done()) == (True, False, False)
        assert short.result() is False
        canceled.cancel()
        await clock.settle()
        assert canceled.cancelled()
        assert not long.done()
        sleepers.wake()
        assert await long is True

    run(story())


def test_a_wake_up_between_two_waits_is_not_missed(run: Run) -> None:
    async def story() -> None:
        clock = FakeClock()
        sleepers = Sleepers(clock)
        seen = sleepers.wakes
        sleepers.wake()
        assert await sleepers.wait(seen, 60.0) is True
        again = asyncio.ensure_future(sleepers.wait(sleepers.wakes, 60.0))
        await clock.advance(60.0)
        assert again.result() is False

    run(story())


def test_an_error_ends_the_waits_of_now_and_counts_as_no_wake_up(run: Run) -> None:
    async def story() -> None:
        clock = FakeClock()
        sleepers = Sleepers(clock)
        waits = [asyncio.ensure_future(sleepers.wait(0, 60.0)) for _ in range(2)]
        await clock.settle()
        sleepers.fail(StoreUnreachable("no answer"))
        for wait in waits:
            with pytest.raises(StoreUnreachable):
                await wait
        assert (sleepers.wakes, len(sleepers)) == (0, 0)

    run(story())


def test_another_thread_wakes_the_waits_of_every_loop() -> None:
    """A store in memory or in a file is used from several threads, each with a loop of its own."""
    sleepers = Sleepers(SystemClock())
    rows: list[bool] = []
    threads = [
        threading.Thread(target=lambda: rows.append(asyncio.run(sleepers.wait(0, 20.0))), daemon=True) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    while len(sleepers) < 2:
        threading.Event().wait(0.001)
    sleepers.wake()
    for thread in threads:
        thread.join(20.0)
    assert rows == [True, True]


def test_a_wait_whose_loop_was_closed_keeps_no_other_from_its_wake_up(run: Run) -> None:
    sleepers = Sleepers(SystemClock())
    closed = asyncio.new_event_loop()
    left = closed.create_task(sleepers.wait(0, 60.0))
    closed.run_until_complete(asyncio.sleep(0))
    closed.close()

    async def story() -> None:
        wait = asyncio.ensure_future(sleepers.wait(0, 60.0))
        await asyncio.sleep(0)
        sleepers.wake()
        assert await wait is True

    run(story())
    left._log_destroy_pending = False  # type: ignore[attr-defined]
    left.get_coro().close()
