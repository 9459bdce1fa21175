"""Busy: an application's open transaction on one row stalls that row, and neither its lease nor any other job.

Only PostgreSQL locks rows: in a file, and in memory, there is one writer at a time and nothing is ever busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import Pulse, Verdict
from tests.contract.bench import ERRORED, Bench, bench_at, in_thread
from tests.contract.lent_place import LentPlace
from tests.contract.places import SCHEMA, PostgresPlace
from tests.contract.table_place import TablePlace


@pytest.fixture(params=["postgres", "table", "lent_postgres"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return bench_at(request.getfixturevalue(f"{request.param}_place"))


@contextmanager
def locked(bench: Bench, lease: Lease) -> Iterator[None]:
    """Somebody looks at the row, for update, and goes to lunch."""
    place = bench.place.inner if isinstance(bench.place, LentPlace) else bench.place
    assert isinstance(place, PostgresPlace | TablePlace)
    url, table = (place.url, f"{SCHEMA}.live") if isinstance(place, PostgresPlace) else (place.rows.url, "jobs")
    with psycopg.connect(url) as connection:
        statement = f"SELECT 1 FROM {table} WHERE id = {lease.job_id:d} FOR UPDATE"
        connection.execute(statement.encode())
        yield


async def test_a_locked_row_is_busy_and_the_others_are_settled(bench: Bench) -> None:
    stuck, free = await bench.start("a"), await bench.start("b")
    with locked(bench, stuck):
        verdicts = await bench.store.settle([(stuck, ERRORED), (free, COMPLETED)])
        assert list(verdicts) == [Verdict.BUSY, Verdict.SETTLED]
    assert (await bench.job(stuck.job_id)).state is State.PROCESSING
    assert await bench.settle(stuck, ERRORED, repeat=True) is Verdict.SETTLED


@pytest.mark.parametrize("repeat", [False, True])
async def test_a_plain_completion_of_a_locked_row_is_busy_too(bench: Bench, repeat: bool) -> None:
    stuck, free = await bench.start("a"), await bench.start("b")
    with locked(bench, stuck):
        verdicts = await bench.store.settle([(stuck, COMPLETED), (free, COMPLETED)], repeat=repeat)
        assert list(verdicts) == [Verdict.BUSY, Verdict.SETTLED]


async def test_a_locked_row_that_is_no_longer_ours_is_lost_and_not_busy(bench: Bench) -> None:
    stale = await bench.start()
    await bench.lose(stale)
    current = await bench.take()
    with locked(bench, current):
        assert await bench.settle(stale) is Verdict.LOST
        assert bench.heart.beat([stale], 30).lost == {(stale.job_id, stale.token)}


async def test_a_beat_calls_a_locked_row_busy_and_renews_the_others(bench: Bench) -> None:
    stuck, free = await bench.start("a"), await bench.start("b")
    await bench.pass_time(20)
    with locked(bench, stuck):
        assert bench.heart.beat([stuck, free], 30) == Pulse(busy=frozenset({(stuck.job_id, stuck.token)}))
    await bench.pass_time(11)
    assert [reset.job_id for reset in bench.heart.reset_stalled(0)] == [stuck.job_id]


async def test_a_sweep_passes_over_a_locked_row(bench: Bench) -> None:
    stuck, stalled = await bench.start("a"), await bench.start("b")
    await bench.pass_time(31)
    with locked(bench, stuck):
        assert [reset.job_id for reset in bench.heart.reset_stalled(0)] == [stalled.job_id]
    assert [reset.job_id for reset in bench.heart.reset_stalled(0)] == [stuck.job_id]


async def test_a_locked_row_is_handed_back_later_and_the_others_at_once(bench: Bench) -> None:
    stuck, free = await bench.start("a", max_attempts=1), await bench.start("b")
    stale = Lease(free.job_id, stuck.token, free.epoch)
    with locked(bench, stuck):
        assert list(await in_thread(bench.heart.release, [stuck, free, stale])) == [stuck]
        assert (await bench.job(stuck.job_id)).state is State.PROCESSING
    assert not bench.heart.release([stuck])
    for lease in (stuck, free):
        job = await bench.job(lease.job_id)
        assert (job.state, job.attempts, job.resets) == (State.QUEUED, 0, 0)


async def test_abandoning_a_token_says_whether_a_locked_row_is_still_held_by_it(bench: Bench) -> None:
    job = await bench.add(max_attempts=1)
    (claim,) = await bench.claim()
    with locked(bench, claim.lease):
        assert not await in_thread(bench.heart.abandon, claim.lease.token)
    assert bench.heart.abandon(claim.lease.token)
    back = await bench.job(job.id)
    assert (back.state, back.attempts, back.resets) == (State.QUEUED, 0, 0)


async def test_a_claim_passes_over_a_locked_row(bench: Bench) -> None:
    stuck, free = await bench.add(), await bench.add()
    with locked(bench, Lease(stuck.id, "", 0)):
        assert (await bench.take()).job_id == free.id
    assert (await bench.take()).job_id == stuck.id


async def test_enqueueing_many_goes_on_beside_a_locked_row(bench: Bench) -> None:
    stuck = await bench.start()
    with locked(bench, stuck):
        assert len(await bench.store.enqueue_many([NewJob(task="t"), NewJob(task="t", key="k")])) == 2
