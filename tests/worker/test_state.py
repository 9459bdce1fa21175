"""What changes inside a worker is seen by the one who waits for it, whenever it came; errors end in one place."""

from __future__ import annotations

import asyncio

import pytest

from stowhand.events import Events
from stowhand.protocols.handler import handler_of
from stowhand.protocols.options import WorkerOptions
from stowhand.testing import FakeClock
from stowhand.worker.admission import Budget
from stowhand.worker.state import Supervisor, WorkerState


async def handle(ctx: object, record: object) -> None: ...


def state_of(clock: FakeClock, *, asks_handler: bool = False) -> WorkerState:
    handler = Budget(1.0, cost=lambda record: 1.0, column="size").around(handle) if asks_handler else handler_of(handle)
    return WorkerState("w", WorkerOptions(), Events(), clock, handler=handler)


def test_a_change_is_not_a_sign_of_work() -> None:
    state = state_of(FakeClock())
    state.notify_change()
    state.ask_pre_claim_again()
    assert (state.changes, state.wakes) == (1, 0)
    state.wake()
    assert (state.changes, state.wakes) == (2, 1)


def test_what_a_pre_claim_may_count_is_a_sign_of_work_where_there_is_one() -> None:
    state = state_of(FakeClock(), asks_handler=True)
    state.ask_pre_claim_again()
    assert state.wakes == 1


async def test_a_change_that_came_before_the_wait_ends_it() -> None:
    state = state_of(FakeClock())
    seen = state.changes
    state.notify_change()
    assert await state.changed_since(seen)


async def test_a_wait_continues_through_unrelated_changes() -> None:
    clock = FakeClock()
    state = state_of(clock)
    waiting = asyncio.ensure_future(state.until(lambda: state.wakes > 0))
    for _ in range(3):
        state.notify_change()
        await clock.settle()
    assert not waiting.done()
    state.wake()
    await clock.settle()
    assert waiting.result()


@pytest.mark.parametrize("within", [0.0, -1.0, 2.5])
async def test_a_wait_reports_its_timeout(within: float) -> None:
    clock = FakeClock()
    waiting = asyncio.ensure_future(state_of(clock).until(lambda: False, within))
    await clock.advance(max(within, 0.0))
    assert not await waiting


async def test_the_first_error_stays_and_each_stops_the_worker() -> None:
    clock = FakeClock()
    crashes: list[None] = []
    supervisor = Supervisor(state_of(clock), lambda: crashes.append(None))

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
    supervisor = Supervisor(state_of(FakeClock()), lambda: None)

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    supervisor.start(waits())
    await asyncio.sleep(0)
    await supervisor.close()
    assert supervisor.crash is None


async def test_the_first_moment_of_a_stop_counts_and_its_haste_stays() -> None:
    clock = FakeClock()
    state = state_of(clock)
    first = clock.monotonic()
    for skips_grace in (False, True, False):
        state.stop(skips_grace=skips_grace)
        await clock.advance(1)
    assert (state.is_stopping, state.stopped_at, state.skips_grace) == (True, first, True)
