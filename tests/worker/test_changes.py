"""What changes inside a worker is seen by the one who waits for it, whenever it came; errors end in one place."""

from __future__ import annotations

import asyncio

import pytest

from stowhand.testing import FakeClock
from stowhand.worker.changes import Changes
from stowhand.worker.duty import Duty
from stowhand.worker.supervisor import Supervisor


def changes_of(clock: FakeClock, *, asks_handler: bool = False) -> Changes:
    return Changes(clock, asks_handler=asks_handler)


def test_a_reason_to_look_again_is_no_sign_of_work() -> None:
    changes = changes_of(FakeClock())
    changes.look_again()
    changes.recount()
    assert (changes.count, changes.wakes) == (1, 0)
    changes.wake()
    assert (changes.count, changes.wakes) == (2, 1)


def test_what_a_pre_claim_may_count_is_a_sign_of_work_where_there_is_one() -> None:
    changes = changes_of(FakeClock(), asks_handler=True)
    changes.recount()
    assert changes.wakes == 1


async def test_a_change_that_came_before_the_wait_ends_it() -> None:
    changes = changes_of(FakeClock())
    seen = changes.count
    changes.look_again()
    assert await changes.since(seen)


async def test_a_wait_goes_on_through_changes_that_do_not_concern_it() -> None:
    clock = FakeClock()
    changes = changes_of(clock)
    waiting = asyncio.ensure_future(changes.until(lambda: changes.wakes > 0))
    for _ in range(3):
        changes.look_again()
        await clock.settle()
    assert not waiting.done()
    changes.wake()
    await clock.settle()
    assert waiting.result()


@pytest.mark.parametrize("within", [0.0, -1.0, 2.5])
async def test_a_wait_says_that_its_time_is_over(within: float) -> None:
    clock = FakeClock()
    waiting = asyncio.ensure_future(changes_of(clock).until(lambda: False, within))
    await clock.advance(max(within, 0.0))
    assert not await waiting


async def test_the_first_error_stays_and_each_stops_the_worker() -> None:
    clock = FakeClock()
    crashes: list[None] = []
    supervisor = Supervisor(changes_of(clock), lambda: crashes.append(None))

    async def broken() -> None:
        raise ZeroDivisionError

    async def loop() -> None:
        raise ValueError

    supervisor.start(broken())
    assert supervisor.pending == 1
    await clock.settle()
    await supervisor.watch(loop)
    assert isinstance(supervisor.crash, ZeroDivisionError)
    assert (len(crashes), supervisor.pending) == (2, 0)


async def test_a_side_task_that_is_ended_with_the_worker_reports_nothing() -> None:
    supervisor = Supervisor(changes_of(FakeClock()), lambda: None)

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    supervisor.start(waits())
    await asyncio.sleep(0)
    await supervisor.close()
    assert supervisor.crash is None


def test_the_first_moment_of_a_stop_counts_and_its_haste_stays() -> None:
    duty = Duty(("act",), changes_of(FakeClock()))
    duty.stop(1.0, at_once=False)
    duty.stop(2.0, at_once=True)
    duty.stop(3.0, at_once=False)
    assert (duty.is_stopping, duty.stopped_at, duty.at_once) == (True, 1.0, True)
