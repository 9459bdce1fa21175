"""A queue that is paused under a worker: what runs goes on, nothing more of it begins, a resume is heard at once."""

from __future__ import annotations

from stowhand.jobs.job import Job, State
from stowhand.protocols.attempt import Attempt
from stowhand.testing import FakeClock
from tests.worker.worker_harness import at_work, nothing


async def test_a_pause_and_a_resume_take_effect_at_once() -> None:
    clock = FakeClock()
    began: list[tuple[float, str | None]] = []

    async def act(attempt: Attempt[Job]) -> None:
        began.append((clock.monotonic(), attempt.claim.serial))
        await clock.sleep(10)

    async with at_work(act, clock=clock, concurrency=4) as harness:
        first = await harness.add(count=5, serial="q") - 4
        await clock.advance(5)
        await harness.store.operate.pause_serial("q")
        other = await harness.add(serial="other")
        await clock.advance(600)
        assert (await harness.job(first)).state is State.COMPLETED
        assert (await harness.job(other)).state is State.COMPLETED
        assert [serial for _, serial in began] == ["q", "other"]
        await harness.store.operate.resume_serial("q")
        await clock.advance(1)
        assert [serial for _, serial in began] == ["q", "other", "q"]
        await clock.advance(60)
        assert len(began) == 6


async def test_with_once_a_worker_does_not_wait_for_a_paused_queue() -> None:
    async with at_work(nothing, once=True) as harness:
        await harness.store.operate.pause_serial("q")
        await harness.add(serial="q")
        await harness.ended()
        assert (await harness.store.inspect.counts())[State.QUEUED] == 1
