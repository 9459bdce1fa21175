"""A dead worker's job starts elsewhere within its lease and two seconds, and nobody is asked more often for it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stowhand.events import Events, JobStarted
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import ClaimRequest, Foreign
from stowhand.stores.sqlite.queue.moment import to_datetime
from stowhand.testing import FakeClock
from stowhand.worker.resetter import Sweeper, SweepTimes
from tests.support.memory_rows import change
from tests.worker.worker_harness import FaultyStore, at_work, nothing, taking


class SilentStore(FaultyStore):
    """As a table: claims say nothing of foreign leases, only the heartbeat thread looks at them."""

    def foreign(self) -> Foreign | None:
        return None


async def dies(store: FaultyStore, lease: float) -> None:
    """Another worker takes a job and is killed at once. Nobody hears of it: the job is of a task that both serve."""
    await store.jobs.enqueue(NewJob(task="act"))
    (claim,) = await store.claim(ClaimRequest(worker="dead", token=f"t{lease}", limit=1, lease=lease))
    assert claim.task == "act"


@pytest.mark.parametrize("kind", [FaultyStore, SilentStore])
@pytest.mark.parametrize("lease", [3.0, 15.0, 30.0])
@pytest.mark.parametrize("since", [0.1, 4.9, 7.3, 9.9])
@pytest.mark.parametrize("is_listening", [True, False])
async def test_a_dead_workers_job_starts_elsewhere_within_its_lease_and_two_seconds(
    kind: type[FaultyStore], lease: float, since: float, is_listening: bool
) -> None:
    """Whenever it dies: shortly after a look of the idle worker's, or just before the next."""
    clock = FakeClock()
    store = kind(clock)
    store.is_listening = is_listening
    async with at_work(nothing, clock=clock, store=store, lease=lease) as harness:
        harness.worker.controls.set_tasks(("nothing",))
        await clock.advance(120 + since)
        await dies(store, lease)
        harness.worker._state.set_tasks(("act",))  # as if it had served it all along, and had not been woken
        await clock.advance(lease)
        assert harness.events(JobStarted) == [], "its lease is respected"
        await clock.advance(2)
        assert [event.job_id for event in harness.events(JobStarted)] == [1]


async def test_a_busy_worker_with_a_free_slot_takes_it_as_soon() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    async with at_work(taking(clock, 1000), clock=clock, store=store, lease=30.0, concurrency=2) as harness:
        await harness.add()
        await clock.advance(61)
        change(store, 1, task="long")
        await dies(store, 30.0)
        await clock.advance(32)
        assert [event.job_id for event in harness.events(JobStarted)] == [1, 2]


async def test_what_this_worker_does_not_renew_itself_is_foreign_too() -> None:
    """The reply to its own claim was lost, and in a long outage the token that was to be given back was forgotten."""
    clock = FakeClock()
    store = FaultyStore(clock)
    async with at_work(nothing, clock=clock, store=store, lease=30.0) as harness:
        await clock.advance(20)
        store.mute.append("claim")
        harness.worker._heartbeater.abandon = lambda token, on_abandoned=None: None  # type: ignore[method-assign]
        await harness.add()
        await clock.advance(32.5)
        assert [event.job_id for event in harness.events(JobStarted)] == [1]
        assert (await harness.job(1)).state is State.COMPLETED


async def test_without_foreign_leases_an_idle_worker_sweeps_at_most_every_half_minute() -> None:
    clock = FakeClock()
    async with at_work(nothing, clock=clock, lease=30.0) as harness:
        await clock.advance(601)
        assert len(harness.store.moments("foreign")) <= 601 / 30 + 1
        assert len(harness.store.called("claim")) <= 2 * (601 / 10 + 1), "as ever"


async def test_a_lease_that_is_renewed_again_and_again_is_not_looked_at_more_often_than_it_is_long() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    async with at_work(nothing, clock=clock, store=store, lease=30.0) as harness:
        await dies(store, 30.0)
        heartbeats, lease = store.heartbeats(), Lease(1, "t30.0", 1)
        for _ in range(60):
            await clock.advance(10)
            await heartbeats.beat([lease], 30.0)
        assert len(store.moments("foreign")) <= 600 / 30 + 2
        assert harness.events(JobStarted) == []


class TellingStore(FaultyStore):
    """As PostgreSQL: a poll says, too, whether a lease is over."""

    def foreign(self) -> Foreign | None:
        seen = super().foreign()
        if seen is None:
            return None
        now = to_datetime(self._connections.now().ticks)
        late = any(row.lease_until is not None and row.lease_until < now for row in self.rows())
        return Foreign(expires_in=seen.expires_in, none_expired=not late)


async def test_if_polls_report_no_expired_lease_an_idle_worker_does_not_sweep() -> None:
    clock = FakeClock()
    store = TellingStore(clock)
    async with at_work(nothing, clock=clock, store=store, lease=30.0) as harness:
        await harness.does()
        await clock.advance(11)
        store.calls.clear()
        await clock.advance(600)
        assert store.moments("foreign") == []
        assert len([asked for asked in store.called("claim") if not asked.suspects]) <= 61


async def test_an_expired_lease_reported_by_polls_is_swept() -> None:
    clock = FakeClock()
    store = TellingStore(clock)
    async with at_work(nothing, clock=clock, store=store, lease=30.0) as harness:
        harness.worker.controls.set_tasks(("nothing",))
        await clock.advance(61)
        await dies(store, 1.0)  # shorter than the time between two polls: none of them sees it alive
        await clock.advance(32)
        assert (await harness.job(1)).state is State.QUEUED


def test_workers_that_know_the_same_moment_come_at_different_ones() -> None:
    clock = FakeClock()
    heartbeats = FaultyStore(clock).heartbeats()
    times = SweepTimes(interval=5.0, slack=1.0)
    sweeps = [Sweeper(heartbeats, Events(), clock, f"worker {n}", times) for n in range(60)]
    for sweep in sweeps:
        sweep.note_foreign(Foreign(expires_in=2.0))
    moments = sorted(sweep.next_end_at for sweep in sweeps)
    assert clock.monotonic() + 2.0 <= moments[0] < moments[-1] <= clock.monotonic() + 2.5
    assert len(set(moments)) == 60


async def test_claims_ask_about_foreign_leases_once_a_second_at_most() -> None:
    clock = FakeClock()
    async with at_work(nothing, clock=clock) as harness:
        for _ in range(50):
            await harness.add()
            await clock.advance(0.1)
        calls = [
            moment
            for name, moment, request in harness.store.calls
            if name == "claim" and not request.suspects and request.own_leases is not None
        ]
        assert 3 <= len(calls) <= 7
        assert all(later - earlier >= 1.0 for earlier, later in pairwise(calls))


async def test_the_answer_of_a_claim_does_not_put_off_the_look_at_a_lease_that_has_just_ended() -> None:
    """A past end is not spoken of: the poll that comes between its end and the look says nothing of it."""
    clock = FakeClock()
    store = FaultyStore(clock)
    async with at_work(nothing, clock=clock, store=store, lease=30.0) as harness:
        await dies(store, 30.0)
        sweep = harness.worker._heartbeater._sweeper
        sweep._jitter = 0.5
        await clock.advance(11)
        ends = sweep.next_end_at
        await clock.advance(ends - 0.4 - clock.monotonic())
        sweep.note_foreign(Foreign(expires_in=None))
        await clock.advance(0.5)
        assert [event.job_id for event in harness.events(JobStarted)] == [1]


async def test_settled_leases_name_nothing() -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    async with at_work(nothing, clock=clock, store=store, lease=30.0) as harness:
        await dies(store, 30.0)
        await clock.advance(11)
        await store.settle([(Lease(1, "t30.0", 1), COMPLETED)])
        await clock.advance(11)
        assert harness.worker._heartbeater._sweeper.next_end_at == float("inf")
