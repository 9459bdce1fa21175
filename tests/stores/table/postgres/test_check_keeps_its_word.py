"""What a check calls clean is served: every write of a worker passes, into columns of any type that is accepted."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from stowhand.errors import TableUnsuitable
from stowhand.jobs.lease import Lease
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import ClaimRequest, Verdict
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.ddl import DdlOptions, full_ddl
from stowhand.stores.table.names import read_shape
from stowhand.table import TableOptions, TableStore
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
      id text, state text check (state in ('queued', 'processing', 'done')),
      failure_message varchar(9) not null default '', queued_at date,
      started_at timestamptz not null default now(), finished_at text, process_after bigint, num_resets text,
      execution_logs json, worker_hostname varchar(20), cancel text
    )
"""


@pytest.mark.parametrize(("made", "mapped"), [(UNUSUAL, {"lease_token": "token"}), (POOR, {})])
def test_every_write_passes(postgres_url: str, run: Run, made: str, mapped: dict[str, str]) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(made.encode())
        for _ in range(2):  # the second check knows the columns that the first one says to map
            for finding in run(checked(store_of(postgres_url, mapped))):
                for statement in filter(None, finding.fix.split(";\n")):
                    connection.execute(statement.encode())
                mapped = {**mapped, **dict(re.findall(r"\(--column (\w+)=(\w+)\)", finding.problem))}
        run(work(connection, store_of(postgres_url, mapped)))


PARTITIONED = full_ddl(DdlOptions(shape=read_shape("jobs", None, {}), key="text")).replace(" PRIMARY KEY", " not null")
CUT = {
    "by day": (
        "range (created_at)",
        [f"create table jobs_{day} partition of jobs for values from ('2026-01-0{day}') to ('2026-01-0{day + 1}')"
         for day in (1, 2, 3)],
    ),
    "by hash of a tenant": (
        "hash (tenant)",
        [f"create table jobs_{n} partition of jobs for values with (modulus 3, remainder {n})" for n in range(3)],
    ),
    "by hash of the id": (
        "hash (id)",
        [f"create table jobs_{n} partition of jobs for values with (modulus 3, remainder {n})" for n in range(3)],
    ),
    "by range of the id, and each by hash": (
        "range (id)",
        ["create table jobs_low partition of jobs for values from (minvalue) to ('5') partition by hash (tenant)",
         "create table jobs_high partition of jobs for values from ('5') to (maxvalue)",
         *(f"create table jobs_low_{n} partition of jobs_low for values with (modulus 2, remainder {n})"
           for n in (0, 1))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("by", CUT)
def test_every_write_passes_in_a_partitioned_table_whose_ids_are_declared_unique(
    postgres_url: str, run: Run, by: str
) -> None:
    key, partitions = CUT[by]
    parted = PARTITIONED.replace(
        "\n);",
        ",\n created_at timestamptz default '2026-01-02', tenant int default floor(random() * 99)\n"
        f") partition by {key};",
        1,
    )
    store = TableStore[Any](
        postgres_url, TableOptions(name="t", table_name="jobs", unique_ids=True, max_num_retries=3, retry_after=0.001)
    )
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(parted.encode())
        for statement in partitions:
            connection.execute(statement.encode())
        unsaid = TableStore[Any](postgres_url, TableOptions(name="t", table_name="jobs"))
        with pytest.raises(TableUnsuitable, match="unique_ids=True, --unique-ids"):
            run(unsaid.open())
        assert not any(finding.fatal for finding in run(checked(store)))
        run(work(connection, store))


async def checked(store: TableStore[Any]) -> list[Finding]:
    """And no connection stays open."""
    try:
        return await store.check()
    finally:
        await store.close()


def store_of(url: str, mapped: dict[str, str]) -> TableStore[Any]:
    options: TableOptions[Any] = TableOptions(
        name="t", table_name="jobs", alternate_column_names=mapped, max_num_retries=3, retry_after=0.001
    )
    return TableStore(url, options)


async def work(connection: psycopg.Connection[Any], store: TableStore[Any]) -> None:
    assert [one.problem for one in await store.check() if one.fatal or one.fix] == []
    connection.execute("insert into jobs (id) select n::text from generate_series(1, 9) as n")
    async with store:
        for settlement in (*SETTLEMENTS.values(), FAILED, CANCELED):
            lease = await take(store)
            assert await store.settle([(lease, settlement)]) == [Verdict.SETTLED]
        lease = await take(store)
        assert (await store.requeue(lease.job_id)).result is ActionResult.DONE
        assert await store.settle([(lease, ERRORED)]) == [Verdict.LOST]
        lease = await take(store)
        heartbeats = store.heartbeats()
        try:
            assert not (await heartbeats.beat([lease], 30)).lost
            assert [job.job_id for job in await heartbeats.reset_lease(lease)] == [lease.job_id]
            assert not await heartbeats.release([await take(store)])
            named = {name: store.options.alternate_column_names.get(name, name) for name in ("cancel", "state")}
            connection.execute(f"update jobs set {named['cancel']} = true where {named['state']} = 'queued'".encode())
            assert await store.claim(request(100)) == []
            await heartbeats.maintain()  # the snoozed one is canceled before it is due
        finally:
            await heartbeats.close()
        assert await store.queued_count() == 1  # the errored one is not due for a minute


async def take(store: TableStore[Any]) -> Lease:
    (claim,) = await store.claim(request(1))
    return claim.lease


def request(limit: int) -> ClaimRequest:
    return ClaimRequest(worker="worker", token=new_token(), limit=limit, lease=30)
