"""Workflows on PostgreSQL: races of real connections, events of SQL callers, and what other jobs pay."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Complete, Settlement, Wait, Waiting
from stowhand.protocols.store import ClaimRequest
from stowhand.protocols.workflows import NewStep
from stowhand.stores.postgres.queue import PostgresStore
from tests.contract.store_harness import judged, new_token

RACES = 200
"""A thousand of each were run without a loss."""
RESULT = Settlement(State.COMPLETED, judged(Complete()).ended, result="1")


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


async def opened(url: str) -> PostgresStore:
    store = PostgresStore(url)
    await store.schema.install()
    await store.open()
    return store


async def claim(store: PostgresStore, number: int, *tasks: str) -> list[Lease]:
    request = ClaimRequest(worker="w", token=new_token(), limit=number, lease=600.0, tasks=tasks)
    return [claim.lease for claim in await store.claim(request)]


async def awaited(result: bool | Awaitable[bool]) -> bool:
    """Return the result of a call on an asynchronous connection."""
    assert isinstance(result, Awaitable)
    return bool(await result)


def race(first: Callable[[], Any], second: Callable[[], Any]) -> None:
    """Run both at the same time, each on a thread and a loop of its own."""
    barrier, errors = threading.Barrier(2), []

    def run(call: Callable[[], Any]) -> None:
        try:
            barrier.wait()
            call()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


SETTLE = """
select state from stowhand.settle_attempts(%s::bigint[], %s::uuid[], '{queued}', '{0}', '{t}', '{null}', '{null}',
  '{null}', '{null}', true, null, null, %s::json[])
"""


def test_no_wake_up_is_lost_in_races_of_an_event_and_a_wait(postgres_url: str) -> None:
    async def prepare() -> list[Lease]:
        store = await opened(postgres_url)
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(RACES))
        leases = [lease for _ in range(10) for lease in await claim(store, RACES // 10, "t")]
        await store.close()
        return leases

    leases = asyncio.run(prepare())
    assert len(leases) == RACES
    with (
        psycopg.connect(postgres_url, autocommit=True) as waiter,
        psycopg.connect(postgres_url, autocommit=True) as emitter,
    ):
        for lease in leases:
            event = f"e{lease.job_id}"
            wait = json.dumps({"step": f"event:{event}", "event": event, "children": 0, "attempts": 0})

            def start_to_wait(lease: Lease = lease, wait: str = wait) -> None:
                waiter.execute(SETTLE, ([lease.job_id], [lease.token], [wait]))

            def emit(event: str = event) -> None:
                emitter.execute("select stowhand.emit_event(%s, '1')", (event,))

            race(start_to_wait, emit)
        lost = waiter.execute("select count(*) from stowhand.live where state = 'queued' and run_at > now()").fetchone()
        told = waiter.execute("select count(*) from stowhand.steps where value::text = '1'").fetchone()
    assert (lost, told) == ((0,), (RACES,))


def test_no_wake_up_is_lost_in_races_of_two_last_children(postgres_url: str) -> None:
    wait = Wait(step="s", children=(NewJob(task="child"),) * 2, places=(0, 1), value='{"size": 2}')

    async def prepare() -> dict[int, list[Lease]]:
        store = await opened(postgres_url)
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(RACES))
        families: dict[int, list[Lease]] = {}
        for _ in range(10):
            leases = await claim(store, RACES // 10, "t")
            await store.settle([(lease, judged(Waiting(wait))) for lease in leases])
            for child in await claim(store, RACES // 5, "child"):
                job = await store.jobs.get(child.job_id)
                assert job is not None
                assert job.parent_id is not None
                families.setdefault(job.parent_id, []).append(child)
        await store.close()
        return families

    families = asyncio.run(prepare())
    assert {len(children) for children in families.values()} == {2}
    complete = "select stowhand.settle_completed(%s::bigint[], %s::uuid[], true)"
    with (
        psycopg.connect(postgres_url, autocommit=True) as one,
        psycopg.connect(postgres_url, autocommit=True) as other,
    ):
        for first, second in families.values():
            race(
                functools.partial(one.execute, complete, ([first.job_id], [first.token])),
                functools.partial(other.execute, complete, ([second.job_id], [second.token])),
            )
        lost = one.execute("select count(*) from stowhand.live where run_at > now()").fetchone()
        remaining = one.execute("select count(*) from stowhand.steps where remaining <> 0").fetchone()
    assert (lost, remaining) == ((0,), (0,))


@on_a_loop
async def test_an_event_that_is_rolled_back_wakes_nobody(postgres_url: str) -> None:
    store = await opened(postgres_url)
    job = await store.jobs.enqueue(NewJob(task="t"))
    (lease,) = await claim(store, 1, "t")
    await store.settle([(lease, judged(Waiting(Wait(step="event:e", event="e"))))])
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        assert await awaited(store.workflows.emit_in(connection, "e", '{"a":1}'))
        await connection.rollback()
        assert not await claim(store, 1, "t")
        await connection.execute("select stowhand.emit_event('e', '{\"a\":2}')")
        assert not await claim(store, 1, "t"), "the emitter has not committed"
        await connection.commit()
    (again,) = await claim(store, 1, "t")
    assert again.job_id == job.id
    (step,) = await store.workflows.read(job.id)
    assert step.value == '{"a":2}'
    await store.close()


@on_a_loop
async def test_a_step_in_a_transaction_is_recorded_by_its_commit_and_keeps_the_lease(postgres_url: str) -> None:
    store = await opened(postgres_url)
    await store.jobs.enqueue(NewJob(task="t"))
    (lease,) = await claim(store, 1, "t")
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        assert await awaited(store.workflows.record_in(connection, lease, NewStep("s", "1")))
        heartbeats = store.heartbeats()
        pulse = await heartbeats.beat([lease], 600.0)
        assert not pulse.lost, "the job is busy, and its lease holds"
        assert not await heartbeats.reset_lease(lease), "the transaction keeps others from the job"
        await heartbeats.close()
        assert not await store.workflows.read(lease.job_id)
        await connection.commit()
    assert [step.value for step in await store.workflows.read(lease.job_id)] == ["1"]
    await store.settle([(lease, RESULT)])
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        assert not await awaited(store.workflows.record_in(connection, lease, NewStep("late", "1")))
    await store.close()


@pytest.mark.parametrize("analyzed", [False, True])
@on_a_loop
async def test_jobs_asleep_cost_a_claim_nothing(postgres_url: str, *, analyzed: bool) -> None:
    store = await opened(postgres_url)

    def blocks() -> int:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("select stowhand.add_job('free')")
            row = connection.execute(
                "explain (analyze, buffers, format json)"
                " select * from stowhand.claim('w', gen_random_uuid(), 10, 60, null, null, false)"
            ).fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    before = [blocks() for _ in range(3)][-1]
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute(
            "insert into stowhand.live (task, run_at, waits_for) select 'sleeper', now() + '1 day', 'time:sleep'"
            " from generate_series(1, 20000)"
        )
        if analyzed:
            await connection.execute("vacuum analyze stowhand.live")
    after = [blocks() for _ in range(3)][-1]
    assert after <= before * 1.1 + 5, (before, after)
    await store.close()


@on_a_loop
async def test_the_indexes_of_workflows_are_used(postgres_url: str) -> None:
    store = await opened(postgres_url)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute(
            "insert into stowhand.live (task, run_at, waits_for, parent_id, parent_step, parent_place)"
            " select 'sleeper', now() + '1 day', 'event:' || n, n, 's', 0 from generate_series(1, 5000) n"
        )
        for condition, index in (
            ("waits_for = 'event:7' and waits_for is not null and state = 'queued'", "live_waiting"),
            ("parent_id = any('{7,8}') and parent_id is not null", "live_children"),
        ):
            await connection.execute("set enable_seqscan = off")
            rows = await (
                await connection.execute(f"explain select id from stowhand.live where {condition}")
            ).fetchall()
            assert index in str(rows), rows
    await store.close()
