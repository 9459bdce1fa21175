"""Chaos on a user's table whose handlers run in their record's transaction: every effect is there exactly once."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.chaos.nemesis import Fault, Fleet, Plan
from tests.chaos.test_chaos import restart, terminate_backend
from tests.support.jobs_table import jobs_table
from tests.support.servers import PostgresServer

RECORDS = 900
KILLS, FREEZES, TERMINATED = 5, 2, 6
DEADLINE = 200.0
TABLES = f"""
{jobs_table("records")};
create table effects (record bigint not null, part text not null);
insert into records (state) select 'queued' from generate_series(1, %d);
"""


@pytest.mark.durable
@pytest.mark.timeout(300)
def test_effects_in_the_records_transaction_happen_exactly_once_whatever_dies(
    tmp_path: Path, seed: int, durable_postgres: PostgresServer
) -> None:
    url, rng = durable_postgres.url("postgres"), random.Random(seed)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((TABLES % RECORDS).encode())
    fleet = Fleet(
        url, tmp_path, dict(os.environ), rng, size=2, freeze=2.0, program=("-m", "tests.chaos.table_work", url)
    )
    faults: list[Fault] = [fleet.kill_one] * KILLS + [fleet.freeze_one] * FREEZES
    faults += [lambda: terminate_backend(durable_postgres, rng)] * TERMINATED + [lambda: restart(durable_postgres)]
    try:
        rage(fleet, url, Plan(rng, faults))
        fleet.keep()  # the last fault may have killed one
        codes = fleet.stop(grace=60.0)
        assert set(codes) == {0}, f"{codes}\n{fleet.logs()[-4000:]}"
    finally:
        fleet.destroy()
    assert asked(url, "select state, count(*) from records group by state") == [("completed", RECORDS)]
    assert asked(url, "select part, count(*), count(distinct record) from effects group by part order by part") == [
        ("begun", RECORDS, RECORDS),
        ("ended", RECORDS, RECORDS),
    ]
    assert asked(url, "select count(*) > 0 from records where num_resets > 0 or num_failures > 0") == [(True,)]


def rage(fleet: Fleet, url: str, plan: Plan) -> None:
    """Until every record is done and every fault has struck."""
    messages: list[str] = []
    while plan.seconds < DEADLINE:
        fleet.keep()
        ((done,),) = asked(url, "select count(*) from records where state = 'completed'")
        messages += plan.strike(fleet, done / RECORDS)
        if not plan and not fleet.frozen and done == RECORDS:
            return
        time.sleep(0.1)
    left = asked(url, "select id, state, num_resets, failure_message from records where state <> 'completed' limit 9")
    raise AssertionError(f"not done in time: {left}\n{messages}\n{fleet.logs()[-4000:]}")


def asked(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Its rows; the server may just be starting."""
    end = time.monotonic() + 60
    while True:
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                return connection.execute(statement.encode()).fetchall()
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
