"""What a check calls clean is served: every write of a worker passes, into columns of any type that is accepted."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from stowhand.queue_store import Done
from stowhand.store import ClaimRequest, Lease, Verdict
from stowhand.stores.table import TableOptions, TableStore
from tests.conftest import Run
from tests.stores.table.postgres.jobs import CANCELED, ERRORED, FAILED, SETTLEMENTS, new_token

UNUSUAL = """
    create type job_state as enum ('queued', 'processing', 'errored', 'completed', 'failed', 'canceled', 'odd');
    create domain few as smallint check (value >= 0);
    create domain short as varchar(5);
    create table jobs (
      id char varying(40) primary key, state job_state not null default 'queued', failure_message short,
      queued_at timestamp(3) default now(), started_at timestamp, finished_at timestamptz(3), process_after timestamp,
      num_resets few, num_failures bigint, last_heartbeat_at timestamp, execution_logs jsonb[],
      worker_hostname varchar(300), cancel boolean, token uuid,
      check ((state in ('queued', 'processing')) or finished_at is not null)
    )
"""
POOR = """
    create table jobs (
      id text, state text check (state in ('queued', 'processing', 'done')), failure_message varchar(9) not null,
      queued_at date, started_at timestamptz not null, finished_at text, process_after bigint, num_resets text,
      execution_logs json, worker_hostname varchar(20), cancel text
    )
"""


@pytest.mark.parametrize(("made", "mapped"), [(UNUSUAL, {"lease_token": "token"}), (POOR, {})])
def test_every_write_passes(postgres_url: str, run: Run, made: str, mapped: dict[str, str]) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(made.encode())
        run(work(connection, TableStore(postgres_url, TableOptions(
            name="t", table_name="jobs", alternate_column_names=mapped, max_num_retries=3, retry_after=0.001
        ))))  # fmt: skip


async def work(connection: psycopg.Connection[Any], store: TableStore[Any]) -> None:
    for finding in await store.check():
        connection.execute(finding.mend.encode())
    assert [finding.problem for finding in await store.check()] == []
    connection.execute("insert into jobs (id) select n::text from generate_series(1, 9) as n")
    async with store:
        for settlement in (*SETTLEMENTS.values(), FAILED, CANCELED):
            lease = await take(store)
            assert await store.settle([(lease, settlement)]) == [Verdict.SETTLED]
        lease = await take(store)
        assert (await store.requeue(lease.job_id)).done is Done.DONE
        assert await store.settle([(lease, ERRORED)]) == [Verdict.LOST]
        lease = await take(store)
        heart = store.heart()
        try:
            assert not heart.beat([lease], 30).lost
            assert [job.job_id for job in heart.reset_lease(lease)] == [lease.job_id]
            assert not heart.release([await take(store)])
        finally:
            heart.close()
        connection.execute("update jobs set cancel = true where state = 'queued'")
        assert await store.claim(request(100)) == []
        assert await store.queued_count() == 1  # the errored one is not due for a minute


async def take(store: TableStore[Any]) -> Lease:
    (claim,) = await store.claim(request(1))
    return claim.lease


def request(limit: int) -> ClaimRequest:
    return ClaimRequest(worker="worker", token=new_token(), limit=limit, lease=30)
