"""The functions of limits as people call them in SQL. What limits do to jobs is in the contract suite."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import NewJob
from stowhand.jobs.task_limits import LimitValues, TaskDeclarations, TaskLimits, starts_allowed
from stowhand.protocols.operator import WorkerList
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.test_pausing import blocked
from tests.stores.postgres.verbs import claim


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


def test_a_settlement_waits_for_a_limit_before_it_locks_a_key(
    store: PostgresStore, sql: Sql, postgres_url: str, run: Any
) -> None:
    """A declaration locks limits before keys. In another order, both would wait for each other."""

    async def claimed() -> list[tuple[int, str]]:
        await store.open()
        heartbeats = store.heartbeats()
        assert isinstance(heartbeats, WorkerList)
        limits = {"refused": LimitValues(concurrency=1), "keyed": LimitValues(key_concurrency=1)}
        own = {"refused": TaskLimits(concurrency="refused"), "keyed": TaskLimits(key_limit="keyed", key="k")}
        await heartbeats.declare_tasks(TaskDeclarations(dict.fromkeys(own, "default"), own, limits))
        await heartbeats.close()
        await store.jobs.enqueue_many(NewJob(task=task) for task in own)
        leases = [one.lease for one in await claim(store, limit=2)]
        await store.close()
        return [(lease.job_id, lease.token) for lease in leases]

    leases = run(claimed())
    assert len(leases) == 2
    settle = """select state from stowhand.settle_attempts(%s, %s::uuid[], '{queued,errored}', '{9,9}', '{t,f}',
        '{null,null}', '{null,null}', '{null,null}', '{null,null}', true, null, '{t,f}')"""
    with psycopg.connect(postgres_url) as declaring:
        declaring.execute("select from stowhand.limits where name = 'refused' for update")
        thread, states = blocked(postgres_url, settle, ([job for job, _ in leases], [token for _, token in leases]))
        assert len(declaring.execute("select name from stowhand.limit_keys for update nowait").fetchall()) == 1
        declaring.commit()
        thread.join(60)
    assert sorted(states) == [("errored",), ("queued",)]
    assert sql("select name from stowhand.limits where held_until is not null") == [("refused",)]


@pytest.mark.parametrize(("ahead", "allowed"), [(0.35, 0), (5.1, 0), (5.2, 3)])
def test_a_slow_claim_does_not_exceed_the_rate(sql: Sql, ahead: float, allowed: int) -> None:
    """A claim that has read the clock later has moved the next start, which a claim ignores only if it is far ahead.

    The rate is of 20 jobs per second with a burst of three.
    """
    values = LimitValues(rate=20, rate_seconds=1.0, burst=3)
    stored = f"timestamptz 'epoch' + {ahead} * interval '1 second'"
    assert sql(f"select stowhand.starts_allowed({stored}, 20, 1, 3, timestamptz 'epoch')") == [(allowed,)]
    assert starts_allowed(values, ahead, 0.0) == allowed


def test_a_limit_that_a_worker_declares_at_this_moment_is_not_removed(sql: Sql, postgres_url: str) -> None:
    sql("""insert into stowhand.limits (name, declared, override)
           values ('t', '{"concurrency": 1}', '{"concurrency": 2}')""")
    with psycopg.connect(postgres_url) as declaring:
        declaring.execute("""select stowhand.declare_tasks('{"queues": {"t": "default"},
            "tasks": {"t": {"concurrency": "t"}}, "limits": {"t": {"concurrency": 1}}}')""")
        thread, resets = blocked(postgres_url, "select stowhand.reset_limit('t')")
        declaring.commit()
        thread.join(60)
    assert resets == [(True,)]
    assert sql("select name, concurrency from stowhand.limits") == [("t", 1)]
