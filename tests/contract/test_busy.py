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
from tests.contract.backends import SCHEMA, PostgresBackend
from tests.contract.lent_backend import LentBackend
from tests.contract.needs import excepted
from tests.contract.store_harness import ERRORED, StoreHarness
from tests.contract.table_backend import TableBackend

STORES = ("postgres", "table", "lent_postgres")
"""Where another transaction may lock a row."""


@contextmanager
def locked(harness: StoreHarness, lease: Lease) -> Iterator[None]:
    """Somebody looks at the row, for update, and goes to lunch."""
    backend = harness.backend.inner if isinstance(harness.backend, LentBackend) else harness.backend
    assert isinstance(backend, PostgresBackend | TableBackend)
    url, table = (backend.url, f"{SCHEMA}.live") if isinstance(backend, PostgresBackend) else (backend.rows.url, "jobs")
    with psycopg.connect(url) as connection:
        statement = f"SELECT 1 FROM {table} WHERE id = {lease.job_id:d} FOR UPDATE"
        connection.execute(statement.encode())
        yield


async def test_a_locked_row_is_busy_and_the_others_are_settled(harness: StoreHarness) -> None:
    stuck, free = await harness.start("a"), await harness.start("b")
    with locked(harness, stuck):
        verdicts = await harness.store.settle([(stuck, ERRORED), (free, COMPLETED)])
        assert list(verdicts) == [Verdict.BUSY, Verdict.SETTLED]
    assert (await harness.job(stuck.job_id)).state is State.PROCESSING
    assert await harness.settle(stuck, ERRORED, repeat=True) is Verdict.SETTLED


@pytest.mark.parametrize("repeat", [False, True])
async def test_a_plain_completion_of_a_locked_row_is_busy_too(harness: StoreHarness, repeat: bool) -> None:
    stuck, free = await harness.start("a"), await harness.start("b")
    with locked(harness, stuck):
        verdicts = await harness.store.settle([(stuck, COMPLETED), (free, COMPLETED)], repeat=repeat)
        assert list(verdicts) == [Verdict.BUSY, Verdict.SETTLED]


async def test_a_locked_row_that_is_no_longer_ours_is_lost_and_not_busy(harness: StoreHarness) -> None:
    stale = await harness.start()
    await harness.lose(stale)
    current = await harness.take()
    with locked(harness, current):
        assert await harness.settle(stale) is Verdict.LOST
        assert (await harness.heartbeats.beat([stale], 30)).lost == {(stale.job_id, stale.token)}


async def test_a_beat_calls_a_locked_row_busy_and_renews_the_others(harness: StoreHarness) -> None:
    stuck, free = await harness.start("a"), await harness.start("b")
    await harness.pass_time(20)
    with locked(harness, stuck):
        assert await harness.heartbeats.beat([stuck, free], 30) == Pulse(busy=frozenset({(stuck.job_id, stuck.token)}))
    await harness.pass_time(11)
    assert [reset.job_id for reset in await harness.heartbeats.reset_stalled(0)] == [stuck.job_id]


async def test_a_sweep_passes_over_a_locked_row(harness: StoreHarness) -> None:
    stuck, stalled = await harness.start("a"), await harness.start("b")
    await harness.pass_time(31)
    with locked(harness, stuck):
        assert [reset.job_id for reset in await harness.heartbeats.reset_stalled(0)] == [stalled.job_id]
    assert [reset.job_id for reset in await harness.heartbeats.reset_stalled(0)] == [stuck.job_id]


@excepted(table="limits are the table's, not a record's")
async def test_a_locked_row_is_released_later_and_the_others_at_once(harness: StoreHarness) -> None:
    stuck, free = await harness.start("a", max_attempts=1), await harness.start("b")
    stale = Lease(free.job_id, stuck.token, free.epoch)
    with locked(harness, stuck):
        assert list(await harness.heartbeats.release([stuck, free, stale])) == [stuck]
        assert (await harness.job(stuck.job_id)).state is State.PROCESSING
    assert not await harness.heartbeats.release([stuck])
    for lease in (stuck, free):
        job = await harness.job(lease.job_id)
        assert (job.state, job.attempts, job.resets) == (State.QUEUED, 0, 0)


@excepted(table="limits are the table's, not a record's")
async def test_abandoning_a_token_reports_locked_rows(harness: StoreHarness) -> None:
    job = await harness.add(max_attempts=1)
    (claim,) = await harness.claim()
    with locked(harness, claim.lease):
        assert not await harness.heartbeats.abandon(claim.lease.token)
    assert await harness.heartbeats.abandon(claim.lease.token)
    back = await harness.job(job.id)
    assert (back.state, back.attempts, back.resets) == (State.QUEUED, 0, 0)


async def test_a_claim_passes_over_a_locked_row(harness: StoreHarness) -> None:
    stuck, free = await harness.add(), await harness.add()
    with locked(harness, Lease(stuck.id, "", 0)):
        assert (await harness.take()).job_id == free.id
    assert (await harness.take()).job_id == stuck.id


@excepted(table="a record has no key")
async def test_enqueueing_many_goes_on_beside_a_locked_row(harness: StoreHarness) -> None:
    stuck = await harness.start()
    with locked(harness, stuck):
        assert len(await harness.store.jobs.enqueue_many([NewJob(task="t"), NewJob(task="t", key="k")])) == 2
