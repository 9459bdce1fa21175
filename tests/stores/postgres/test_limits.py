"""The functions of limits as people call them in SQL. What limits do to jobs is in the contract suite."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from stowhand.jobs.task_limits import LimitValues, TaskDeclarations, TaskLimits
from stowhand.protocols.operator import WorkerList
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql


def test_limits_are_changed_in_sql(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def declare() -> None:
        heartbeats = store.heartbeats()
        assert isinstance(heartbeats, WorkerList)
        values = LimitValues(concurrency=5, rate=1, rate_seconds=1.0)
        own = TaskLimits(concurrency="t", rate="t")
        await heartbeats.declare_tasks(TaskDeclarations({"t": "default"}, {"t": own}, {"t": values}))
        await heartbeats.close()

    run(declare())
    assert sql("select stowhand.set_limit('t', 0)") == [(True,)]
    assert sql("select stowhand.set_limit('t', rate => 2, per => '90 seconds')") == [(True,)]
    assert sql("select stowhand.set_limit('t', rate => 2)") == [(False,)]
    values = "select concurrency, rate, rate_seconds, burst from stowhand.limits"
    assert sql(values) == [(0, 2, 90.0, None)]
    assert sql("select stowhand.reset_limit('t')") == [(True,)]
    assert sql("select stowhand.reset_limit('t')") == [(False,)]
    assert sql(values) == [(5, 1, 1.0, None)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("set_limit('t', 1)", 'There is no limit "t": a worker declares limits when it starts.'),
        ("reset_limit('t')", 'There is no limit "t": a worker declares limits when it starts.'),
        ("set_limit('c', rate => 1)", 'Limit "c" has no rate: its tasks declare none.'),
        ("set_limit('r', 1)", 'Limit "r" has no concurrency: its tasks declare none.'),
        ("set_limit('c', key_concurrency => 1)", 'Limit "c" has no concurrency per key: its tasks declare none.'),
        ("set_limit('c', key_per => '1 s')", 'Limit "c" has no rate per key: its tasks declare none.'),
        ("set_limit('c', -1)", 'Limit "c": use a concurrency of 0 to 1000000'),
        ("set_limit('r', rate => 0)", 'Limit "r": use a concurrency of 0 to 1000000'),
        ("set_limit('r', per => '-1 s')", 'Limit "r": use a concurrency of 0 to 1000000'),
    ],
)
def test_an_invalid_change_of_a_limit_is_refused_in_sql(sql: Sql, call: str, message: str) -> None:
    sql("""insert into stowhand.limits (name, declared)
           values ('c', '{"concurrency": 1}'), ('r', '{"rate": 1, "rate_seconds": 1, "burst": 1}')""")
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refusal:
        sql(f"select stowhand.{call}")
    assert message in str(refusal.value)
