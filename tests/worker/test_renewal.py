"""A worker that has reached a limit of its own claims nothing new, and ends when nothing runs."""

from __future__ import annotations

from stowhand.events import WorkerRenewed
from stowhand.jobs.job import State
from stowhand.testing import FakeClock
from stowhand.worker.host import resident_bytes
from tests.worker.worker_harness import WorkerHarness, at_work, nothing, taking

MIB = 2**20


def states(harness: WorkerHarness) -> list[State]:
    return [row.state for row in harness.store.rows()]


async def test_above_its_memory_a_worker_lets_what_runs_end_and_claims_nothing_new() -> None:
    clock, used = FakeClock(), [90 * MIB]
    async with at_work(
        taking(clock, 10), clock=clock, concurrency=1, look_ahead=0, max_memory=100 * MIB, resident=lambda: used[0]
    ) as harness:
        await harness.add(count=5)
        await clock.advance(15)
        used[0] = 101 * MIB
        await clock.advance(2)
        reason = "max_memory (100 MiB) reached: 101 MiB used"
        assert [event.reason for event in harness.events(WorkerRenewed)] == [reason]
        assert harness.worker.controls.liveness.unready() == reason
        (row,) = await harness.store.inspect.workers()
        assert row.state == "stopping"
        await harness.ended()
        assert states(harness).count(State.COMPLETED) == 2
        assert states(harness).count(State.QUEUED) == 3
        assert harness.worker.controls.renewal_reason() == reason


async def test_a_limit_below_what_the_process_uses_at_its_start_leaves_it_one_job() -> None:
    async with at_work(nothing, concurrency=1, max_memory=100 * MIB, resident=lambda: 200 * MIB) as harness:
        await harness.clock.advance(60)
        assert not harness.ending.done()
        await harness.add()
        await harness.ended()
        assert states(harness) == [State.COMPLETED]


async def test_a_worker_reports_the_limit_that_it_has_reached() -> None:
    async with at_work(nothing, max_age=90.0) as harness:
        await harness.ended(timeout=100)
        assert [event.reason for event in harness.events(WorkerRenewed)] == ["max_age (90s) reached"]
    async with at_work(nothing, max_jobs=2) as harness:
        await harness.add(count=3)
        await harness.ended()
        assert [event.reason for event in harness.events(WorkerRenewed)] == ["max_jobs (2) reached"]


async def test_a_worker_that_is_stopped_has_reached_no_limit() -> None:
    async with at_work(nothing, max_jobs=2, max_age=90.0, max_memory=100 * MIB, resident=lambda: 0) as harness:
        await harness.add()
        await harness.clock.advance(1)
        harness.worker.stop()
        await harness.ended()
        assert harness.worker.controls.renewal_reason() is None
        assert harness.events(WorkerRenewed) == []


def test_the_memory_of_this_process_is_read() -> None:
    before = resident_bytes()
    block = b"x" * (64 * MIB)
    assert before + 60 * MIB < resident_bytes() < before + 200 * MIB
    assert len(block) == 64 * MIB
