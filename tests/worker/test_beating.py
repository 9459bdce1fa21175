"""Leases are kept true while handlers run, and only then; a lease that may be gone stops its handler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from stowhand.events import JobEnded, JobLost, LeaseExpiring, StoreCallFailed, StoreRecovered
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.store import ClaimRequest, Pulse, Terms
from stowhand.testing import FakeClock
from tests.support.memory_rows import change
from tests.worker.worker_harness import FaultyHeartbeats, FaultyStore, at_work, nothing, taking


async def test_short_jobs_are_never_renewed_and_an_idle_worker_beats_nothing() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 9), clock=clock, lease=30.0) as harness:
        await harness.add(count=4)
        await clock.advance(300)
        assert len(harness.events(JobEnded)) == 4
        assert harness.store.called("beat") == []


async def test_a_long_job_is_renewed_every_third_of_its_lease() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 100), clock=clock, lease=30.0) as harness:
        job = await harness.does(seconds=99)
        beats = harness.store.moments("beat")
        assert 8 <= len(beats) <= 10
        assert all(later - earlier <= 11 for earlier, later in pairwise(beats))
        await clock.advance(2)
        assert (await harness.job(job.id)).state is State.COMPLETED


async def test_one_statement_renews_everything_that_is_due() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 100), clock=clock, concurrency=10) as harness:
        await harness.add(count=10)
        await clock.advance(12)
        assert [len(ids) for ids in harness.store.called("beat")] == [10]


async def test_leases_that_are_nearly_due_are_renewed_along_with_those_that_are() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 18), clock=clock, lease=30.0) as harness:
        await harness.add()
        await clock.advance(4)
        await harness.add()
        await clock.advance(12)
        assert harness.store.called("beat") == [[1, 2]]


async def test_what_has_ended_is_renewed_until_its_settlement_is_answered() -> None:
    """Even after an outage in which its lease seemed lost: the store may have kept it, and its answer will tell."""
    clock = FakeClock()
    async with at_work(nothing, clock=clock, lease=30.0) as harness:
        harness.store.down |= {"settle", "beat", "foreign"}
        job_id = await harness.add()
        await clock.advance(40)
        harness.store.down.discard("beat")
        await clock.advance(3)
        harness.store.down.discard("foreign")
        await clock.advance(200)
        harness.store.down.clear()
        await clock.advance(6)
        assert [event.job_id for event in harness.events(JobEnded)] == [job_id]
        assert harness.events(JobLost) == []


async def test_one_failed_beat_cancels_nothing() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 40), clock=clock) as harness:
        job_id = await harness.add()
        harness.store.mute.append("beat")
        await clock.advance(41)
        assert (await harness.job(job_id)).state is State.COMPLETED
        assert [event.operation for event in harness.events(StoreCallFailed)] == ["beat"]
        assert [event.operation for event in harness.events(StoreRecovered)] == ["beat"]


async def test_a_requested_beat_that_the_driver_cancels_is_repeated_at_the_next_tick() -> None:
    clock, cuts = FakeClock(), [True]

    class Cut(FaultyHeartbeats):
        async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
            pulse = await super().beat(leases, lease)
            if cuts:
                cuts.clear()
                raise asyncio.CancelledError
            return pulse

    class CutStore(FaultyStore):
        def heartbeats(self) -> FaultyHeartbeats:
            return Cut(self)

    async with at_work(taking(clock, 40), store=CutStore(clock), clock=clock, lease=30.0) as harness:
        await harness.does(seconds=1)
        harness.worker._heartbeater.beat_soon()
        await clock.advance(5)  # far from due
        assert len(harness.store.called("beat")) == 2
        assert harness.worker._heartbeater.beats == 1


async def test_without_beats_a_handler_is_stopped_before_its_job_may_be_given_away_and_nothing_is_written() -> None:
    clock = FakeClock()
    stopped: list[float] = []

    async def act(attempt: Attempt[Job]) -> None:
        try:
            await clock.sleep(1000)
        finally:
            stopped.append(clock.monotonic())
            assert control_of(attempt).lost

    async with at_work(act, clock=clock, lease=30.0) as harness:
        job_id = await harness.add()
        await clock.advance(15)
        (sent,) = harness.store.moments("beat")
        harness.store.down.update({"beat", "foreign"})
        await clock.advance(60)
        assert len(stopped) == 1
        assert sent + 25 < stopped[0] < sent + 30, "counted from the sending of the last good beat"
        assert [event.lease.job_id for event in harness.events(LeaseExpiring)] == [job_id]
        assert [event.job_id for event in harness.events(JobLost)] == [job_id]
        assert harness.store.called("settle") == []
        job = await harness.job(job_id)
        assert (job.state, job.attempts) == (State.PROCESSING, 1)


async def test_the_deadline_counts_from_the_sending_of_the_claim_and_not_from_its_reply() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock, lease=30.0) as harness:
        harness.store.gates["claim"] = asyncio.Event()
        await harness.add()
        await clock.settle()
        sent = clock.monotonic()
        harness.store.down.update({"beat", "foreign"})
        await clock.advance(20)
        harness.store.gates.pop("claim").set()
        await clock.settle()
        assert harness.worker.running == 1
        await clock.advance(sent + 29.9 - clock.monotonic())
        assert harness.worker.running == 0


async def test_the_deadline_counts_from_the_sending_of_a_beat_and_not_from_its_reply() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock, lease=30.0) as harness:
        await harness.add()
        slow = harness.store.after

        def answer_late(name: str) -> None:
            if name == "beat":
                clock._elapsed += 5.0
                harness.store.down.update({"beat", "foreign"})
            slow(name)

        harness.store.after = answer_late  # type: ignore[method-assign]
        await clock.advance(12)
        (sent,) = harness.store.moments("beat")
        await clock.advance(sent + 28.5 - clock.monotonic())
        assert harness.worker.running == 1
        await clock.advance(sent + 29.9 - clock.monotonic())
        assert harness.worker.running == 0


async def test_a_handler_that_ignores_its_lost_lease_changes_nothing() -> None:
    """The store answers again, and would even renew the row: what was given up stays given up."""
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> None:
        while clock.monotonic() < 200:
            try:
                await clock.sleep(200)
            except asyncio.CancelledError:
                assert control_of(attempt).lost

    async with at_work(act, clock=clock, lease=30.0) as harness:
        job_id = await harness.add()
        harness.store.down.update({"beat", "foreign"})
        await clock.advance(29.9)
        assert len(harness.events(LeaseExpiring)) == 1
        harness.store.down.clear()
        harness.store.calls.clear()
        await clock.advance(10)  # taken back meanwhile, and claimed anew: that lease is not due to be renewed yet
        assert job_id not in [one for ids in harness.store.called("beat") for one in ids]
        assert len(harness.events(LeaseExpiring)) == 1
        await clock.advance(400)
        assert harness.store.called("settle") == [([job_id], False)], "only the second claim's outcome is written"
        assert [event.job_id for event in harness.events(JobLost)] == [job_id]


async def test_a_lost_answer_stops_the_handler_and_writes_nothing() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock, tasks=("act",)) as harness:
        job_id = await harness.add()
        await clock.advance(1)
        await harness.store.heartbeats().reset_worker("w")
        await harness.store.claim(ClaimRequest(worker="other", token="t", limit=1, lease=1000.0))
        await clock.advance(12)
        assert harness.worker.running == 0
        assert [event.job_id for event in harness.events(JobLost)] == [job_id]
        assert harness.store.called("settle") == []
        assert harness.row(job_id).token == "t"


async def test_a_cancellation_request_takes_effect_at_the_next_beat() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock) as harness:
        job_id = await harness.add()
        await clock.advance(1)
        await harness.store.admin.cancel(job_id)
        await clock.advance(11)
        job = await harness.job(job_id)
        assert (job.state, job.last_error) == (State.CANCELED, "canceled while running")


async def test_a_handler_that_completes_despite_a_cancellation_request_has_completed() -> None:
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> None:
        await attempt.until_canceled()

    async def stubborn(attempt: Attempt[Job]) -> None:
        try:
            await act(attempt)
        except asyncio.CancelledError:
            await clock.sleep(1)

    async with at_work(stubborn, clock=clock) as harness:
        job_id = await harness.add()
        await clock.advance(1)
        await harness.store.admin.cancel(job_id)
        await clock.advance(13)
        assert (await harness.job(job_id)).state is State.COMPLETED


async def test_answers_about_leases_no_longer_held_are_ignored() -> None:
    clock = FakeClock()

    class LateHeart(FaultyHeartbeats):
        """Every beat's answer also names leases of the same jobs that were settled long ago."""

        async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
            await super().beat(leases, lease)
            old = frozenset((one, "an old token") for one in range(1, 10))
            return Pulse(lost=old, canceled=old, busy=old)

    class LateStore(FaultyStore):
        def heartbeats(self) -> FaultyHeartbeats:
            return LateHeart(self)

    async with at_work(taking(clock, 45), clock=clock, store=LateStore(clock)) as harness:
        job = await harness.does(seconds=44)
        assert job.state is State.PROCESSING
        await clock.advance(2)
        assert (await harness.job(job.id)).state is State.COMPLETED


async def test_busy_rows_stay_alive_beyond_their_lease_and_the_others_are_renewed() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 200), clock=clock, lease=9.0, concurrency=3) as harness:
        await harness.add(count=3)
        harness.store.locked.add(2)
        await clock.advance(100)
        assert harness.worker.running == 3
        harness.store.locked.clear()
        await clock.advance(1)
        until = harness.row(2).lease_until
        assert until is not None
        assert (until - clock.now()).total_seconds() > 7, "renewed as soon as it could be, not a beat later"
        await clock.advance(100)
        assert len(harness.events(JobEnded)) == 3


async def test_a_stopped_handler_that_hangs_is_not_kept_alive_for_ever() -> None:
    clock = FakeClock()

    async def act(attempt: Attempt[Job]) -> None:
        while clock.monotonic() < 300:
            with suppress(asyncio.CancelledError):
                await clock.sleep(300)

    async with at_work(act, clock=clock, lease=10.0, timeout=5.0, concurrency=1) as harness:
        job_id = await harness.add()
        await clock.advance(34)
        assert harness.row(job_id).token is not None
        assert clock.monotonic() - max(harness.store.moments("beat")) < 5, "so far it is kept"
        await clock.advance(40)
        assert harness.row(job_id).state is not State.PROCESSING, "after three leases more it was given back"
        assert harness.row(job_id).resets == 1
        await clock.advance(300)
        assert [event.job_id for event in harness.events(JobLost)] == [job_id]


async def test_a_job_claimed_ahead_is_not_lost_by_the_beat() -> None:
    async with at_work(nothing) as harness:
        await harness.add(count=500)
        await harness.clock.advance(5)
        assert len(harness.events(JobEnded)) == 500
        assert harness.events(JobLost) == []


async def test_jobs_of_lost_workers_are_reset_and_run() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    async with at_work(nothing, clock=clock, store=store, tasks=("act",)) as harness:
        await clock.advance(1)
        await harness.add("other")
        await store.claim(ClaimRequest(worker="dead", token="t", limit=1, lease=5.0))
        change(store, 1, task="act")
        await clock.advance(60)
        assert (await harness.job(1)).state is State.COMPLETED


async def test_an_expired_lease_of_a_locked_row_is_checked_at_the_interval_only() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    async with at_work(nothing, clock=clock, store=store, tasks=("act",), lease=30.0) as harness:
        job = await harness.add("other")
        await store.claim(ClaimRequest(worker="dead", token="t", limit=1, lease=30.0))
        store.locked.add(job)
        await clock.advance(100)
        looks = [moment for moment in store.moments("foreign") if moment > 40]
        assert all(4.9 <= later - earlier <= 6 for earlier, later in pairwise(looks)), looks
        store.locked.clear()
        await clock.advance(6)
        assert (await harness.job(job)).state is State.QUEUED


async def test_a_short_lived_worker_also_prunes_the_history() -> None:
    """One that a timer starts with ``--once``, say: none of them lives for ten minutes."""
    clock = FakeClock()
    store = FaultyStore(clock)
    old = await store.jobs.enqueue(NewJob(task="t"))
    await store.admin.complete_jobs([old.id])
    await clock.advance(3 * 86_400)
    async with at_work(nothing, clock=clock, store=store):
        await clock.advance(1)
    assert await store.jobs.get(old.id) is None


async def test_the_stores_terms_are_read_when_the_worker_starts() -> None:
    """Not when it is made: the store may not be open yet."""
    clock = FakeClock()

    class Late(FaultyStore):
        def __init__(self, clock: FakeClock) -> None:
            super().__init__(clock)
            self.enclosing = self

        async def validate(self, events: object = None) -> None:
            self.terms = Terms(lease=6.0, polls=True)

        def around(self, attempt: object) -> None: ...

    store = Late(clock)
    async with at_work(taking(clock, 20), clock=clock, store=store, jobs=[NewJob(task="act")]) as harness:
        assert harness.worker.options.lease == 6
        await clock.advance(0.1)
        until = harness.row(1).lease_until
        assert until is not None
        assert (until - clock.now()).total_seconds() <= 6
        await clock.advance(21)
        assert [event.attempt for event in harness.events(JobEnded)] == [1]
        assert len(store.moments("beat")) >= 9


# -- cancellations -----------------------------------------------------------------------------------


async def test_a_running_job_receives_its_cancellation_within_a_second() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock, concurrency=2) as harness:
        canceled, other = await harness.add(), await harness.add()
        await clock.advance(3)
        beats = len(harness.store.called("beat"))
        await harness.store.admin.cancel(canceled)
        await clock.advance(1)
        assert (await harness.job(canceled)).state is State.CANCELED
        assert (await harness.job(other)).state is State.PROCESSING
        assert len(harness.store.called("beat")) == beats, "no lease was renewed for it"


async def test_an_idle_worker_looks_for_no_cancellations() -> None:
    async with at_work(nothing) as harness:
        await harness.clock.advance(1)
        await harness.does(seconds=1)
        for _ in range(5):
            harness.worker.wake()
            await harness.add(delay=600.0)
            await harness.clock.advance(1)
        assert harness.store.called("find_canceled") == []


async def test_a_busy_worker_that_is_not_woken_looks_for_no_cancellations() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock) as harness:
        await harness.add()
        await clock.advance(2)
        looks = len(harness.store.called("find_canceled"))
        await clock.advance(60)
        assert len(harness.store.called("find_canceled")) == looks


async def test_a_look_for_cancellations_that_fails_is_repeated() -> None:
    clock = FakeClock()
    async with at_work(taking(clock, 1000), clock=clock) as harness:
        job_id = await harness.add()
        await clock.advance(2)
        harness.store.down.add("find_canceled")
        await harness.store.admin.cancel(job_id)
        await clock.advance(1)
        assert (await harness.job(job_id)).state is State.PROCESSING
        harness.store.down.clear()
        await clock.advance(2)
        assert (await harness.job(job_id)).state is State.CANCELED
