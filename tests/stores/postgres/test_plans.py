"""The plans of the hot path do not depend on statistics, which are wrong at the worst of times."""

from __future__ import annotations

import uuid

import psycopg

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.store import ClaimRequest, StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.conftest import Run
from tests.stores.postgres.verbs import wait_until_closed

JOBS = 2_000
BATCH = 100
READS_PER_JOB = 30
"""Index entries of the primary key that a job may cost from claim to history: about ten, and never the table's size."""

RETRY = Settlement(State.ERRORED, AttemptOutcome.RETRY, delay=3600.0, error="no")


async def work_off(store: PostgresStore, settlement: Settlement) -> None:
    await store.jobs.enqueue_many(NewJob(task="t") for _ in range(JOBS))
    heartbeats = store.heartbeats()
    while True:
        request = ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=BATCH, lease=30.0)
        claims = await store.claim(request)
        if not claims:
            break
        leases = sorted((claim.lease for claim in claims), key=lambda lease: lease.job_id)
        await heartbeats.beat(leases, 30.0)
        await store.settle([(lease, settlement) for lease in leases])
    await heartbeats.close()


def reads(connection: psycopg.Connection[tuple[int]]) -> int:
    connection.execute("select pg_stat_clear_snapshot()")
    row = connection.execute(
        "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'live_pkey'"
    ).fetchone()
    assert row is not None
    return row[0]


def test_wrong_statistics_cause_no_table_scan_for_each_batch(run: Run, postgres_url: str) -> None:
    """Analyzed when a burst had just been worked off, it says: pages, but no rows. Then the next burst comes."""

    async def scenario() -> None:
        store = PostgresStore(postgres_url, StoreOptions(history=None))
        await store.schema.install()
        await store.open()
        await work_off(store, COMPLETED)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("vacuum (analyze, truncate off) stowhand.live")
        await store.close()
        for settlement in (RETRY, COMPLETED):
            before = reads_after_close(postgres_url)
            await store.open()
            await work_off(store, settlement)
            await store.close()
            cost = (reads_after_close(postgres_url) - before) / JOBS
            assert cost < READS_PER_JOB, f"{settlement.state}: {cost:.0f} entries read a job"

    run(scenario(), 60)


def reads_after_close(url: str) -> int:
    """Sessions report what they read at the latest when they end."""
    with psycopg.connect(url, autocommit=True) as connection:
        wait_until_closed(connection)
        return reads(connection)
