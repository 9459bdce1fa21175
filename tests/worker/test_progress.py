"""What handlers say of their progress: written for all of them at once, seldom, and dropped rather than waited for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stowhand.errors import ConfigurationError
from stowhand.events import JobEnded
from stowhand.jobs.job import Job, State
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt import Attempt, Progress, read_progress
from stowhand.protocols.store import Claim
from stowhand.testing import FakeClock
from tests.worker.worker_harness import FaultyHeartbeats, FaultyStore, at_work, taking


class NotingHeart(FaultyHeartbeats):
    """Its notes go through the store's gate like every other call."""

    async def keep_progress(self, notes: Sequence[Progress], timeout: float) -> None:
        self._faulty.before("keep_progress", (len(notes), timeout))
        await super().keep_progress(notes, timeout)


class NotingStore(FaultyStore):
    """Calls about progress are among its calls, and may fail like them."""

    def heartbeats(self) -> FaultyHeartbeats:
        return NotingHeart(self)


async def test_several_jobs_are_written_together_and_at_most_once_a_second() -> None:
    clock = FakeClock()
    store = NotingStore(clock)

    async def act(attempt: Attempt[Job]) -> None:
        for step in range(100):
            attempt.progress(step / 100, f"step {step}")
            await clock.sleep(0.1)

    async with at_work(act, store=store, clock=clock, concurrency=3, lease=30.0) as harness:
        ids = [await harness.add() for _ in range(3)]
        await clock.advance(9.9)
        calls = store.called("keep_progress")
        assert 9 <= len(calls) <= 11
        assert calls[-1] == (3, 3.0)
        job = await harness.job(ids[0])
        assert job.progress is not None
        assert job.progress >= 0.8
        assert str(job.progress_text).startswith("step ")
        await clock.advance(1)
        done = await harness.job(ids[0])
        assert (done.state, done.progress) == (State.COMPLETED, None)


async def test_nothing_is_written_without_progress() -> None:
    clock = FakeClock()
    store = NotingStore(clock)
    async with at_work(taking(clock, 20), store=store, clock=clock) as harness:
        await harness.does(seconds=21)
        assert store.called("keep_progress") == []


async def test_what_cannot_be_written_is_dropped_and_hurts_neither_job_nor_beat() -> None:
    clock = FakeClock()
    store = NotingStore(clock)
    store.down.add("keep_progress")

    async def act(attempt: Attempt[Job]) -> None:
        attempt.progress(0.5)
        await clock.sleep(25)

    async with at_work(act, store=store, clock=clock, lease=30.0) as harness:
        job = await harness.does(seconds=24)
        assert len(store.called("keep_progress")) == 1, "it is not written later"
        assert (job.state, job.progress) == (State.PROCESSING, None)
        assert len(store.called("beat")) == 2
        await clock.advance(2)
        (ended,) = harness.events(JobEnded)
        assert ended.error is None


@pytest.mark.parametrize("given", [-0.1, 1.1, float("nan"), float("inf"), "0.5", None, True])
def test_progress_outside_0_to_1_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="use a number from 0 to 1"):
        read_progress(Lease(1, "token", 1), given, None)


def test_a_text_is_cleaned_and_cut() -> None:
    note = read_progress(Lease(1, "token", 1), 1, "a\x00\ud800" + "b" * 500)
    assert (note.done, len(str(note.text))) == (1.0, 200)
    assert str(note.text).encode().startswith("a\N{REPLACEMENT CHARACTER}?b".encode())


def test_where_none_is_kept_it_is_refused_with_the_reason() -> None:
    attempt = Attempt(Claim(Lease(1, "token", 1), None, "send", 1, 1), 0.0)
    with pytest.raises(
        ConfigurationError,
        match=r"this store keeps no progress.*write a line with ctx\.log\(…\), or in a table's execution log",
    ):
        attempt.progress(0.5)
