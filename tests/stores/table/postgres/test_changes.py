"""What others do at the same time: to the rows, to the table, to the connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from stowhand.clock import SystemClock, stopwatch
from stowhand.errors import StoreError, StoreUnreachable
from stowhand.jobs.conditions import sql
from stowhand.protocols.store import Verdict
from tests.stores.table.postgres.jobs import ERRORED, FAILED, TABLE, Jobs, Served, new_token, until
from tests.stores.table.postgres.test_shapes import through_its_life
from tests.support.pgbouncer import PgBouncer, find_pgbouncer
from tests.support.proxy import Proxy

HELD_UP = sql("jobs.id <> 1 or pg_advisory_xact_lock_shared(42) is not null")
"""Record 1 is judged only when the lock is free; what the claim sees, it has seen by then."""


CHANGES = (
    "state = 'processing', worker_hostname = 'executor-1'",
    "state = 'completed'",
    "process_after = now() + interval '1 hour'",
    "num_resets = 2",
)


@pytest.mark.parametrize("view", [None, "shown jobs"])
async def test_a_record_that_changes_before_it_is_locked_is_checked_again(jobs: Jobs, view: str | None) -> None:
    jobs.sql("create view shown as select *, size * 2 as twice from jobs")
    jobs.add(6)
    async with jobs.served(view_name=view) as served:
        with jobs.transaction() as other:
            other.execute("select pg_advisory_xact_lock(42)")
            claiming = asyncio.create_task(served.claim(conditions=(HELD_UP,)))
            await until(lambda: jobs.sql("select 1 from pg_locks where not granted and locktype = 'advisory'"))
            for number, change in enumerate(CHANGES):
                jobs.sql(f"update jobs set {change} where id = {number + 2}")
            before = [jobs.row(number + 2) for number, _ in enumerate(CHANGES)]
        assert [taken.lease.job_id for taken in await claiming] == [1, 6]
    assert [jobs.row(number + 2) for number, _ in enumerate(CHANGES)] == before


async def test_the_owner_may_alter_the_table_while_a_worker_runs(jobs: Jobs) -> None:
    jobs.make(TABLE.replace("bigserial", "serial"))
    jobs.add(2)
    async with jobs.served(column_expressions=["id", "path"], max_num_retries=1, retry_after=60) as served:
        for _ in range(7):  # more often than a driver asks before it prepares
            await served.heartbeats.release([taken.lease for taken in await served.claim()])
        jobs.sql("alter table jobs alter id type bigint, add more text, alter path type varchar(50)")
        jobs.sql("update jobs set id = id + 9e15::bigint")
        await through_its_life(served)


async def test_a_message_is_cut_to_the_length_of_its_column(jobs: Jobs) -> None:
    jobs.sql("alter table jobs alter failure_message type varchar(4)")
    jobs.add(2)
    async with jobs.served(max_resets=0) as served:
        lease = await served.take()
        assert await served.settle(lease, ERRORED) is Verdict.SETTLED
        assert await served.settle(lease, ERRORED) is Verdict.ALREADY_SETTLED
        await served.heartbeats.reset_lease(await served.take())
    assert [jobs.row(one)["failure_message"] for one in (1, 2)] == ["it f", "job "]


async def test_a_refused_claim_claims_nothing_and_leaves_the_store_usable(jobs: Jobs) -> None:
    jobs.add(2)
    async with jobs.served() as served:
        with pytest.raises(StoreError, match="division by zero"):
            await served.claim(conditions=(sql("size / (size - 1) > 0"),))
        assert jobs.states() == ["queued", "queued"]
        assert len(await served.ids()) == 2


async def test_lost_connections_are_reopened(jobs: Jobs) -> None:
    jobs.add(3)
    async with jobs.served() as served:
        lease = await served.take()
        await served.table.queries.next_due()
        await served.settle(lease, FAILED)
        jobs.hang_up("")
        lease = await served.take()
        assert await served.table.queries.next_due() == 0
        assert await served.settle(lease) is Verdict.SETTLED


@pytest.fixture
def proxy(jobs: Jobs) -> Iterator[Proxy]:
    """Between the store and the database."""
    with Proxy(jobs.url) as proxy:
        direct, jobs.url = jobs.url, proxy.url
        yield proxy
        jobs.url = direct


@pytest.mark.parametrize("lease_time", [4.0, 300.0])
async def test_a_heartbeat_on_a_silently_lost_connection_costs_no_lease(
    jobs: Jobs, proxy: Proxy, lease_time: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up after a quarter of the lease, of a long one after a while; the server is not asked to cancel."""
    monkeypatch.setattr("stowhand.stores.database.link.MAX_ANSWER_SECONDS", 1.0)
    jobs.add()
    async with jobs.served(stalled_max_age=lease_time, heartbeat_interval=1.0) as served:
        lease = await served.take()
        await served.heartbeats.beat([lease], 4.0)
        proxy.silence_next_request("heart")
        began = stopwatch()
        with pytest.raises(StoreUnreachable, match="no answer in time"):
            await served.heartbeats.beat([lease], 4.0)
        assert 1.0 <= stopwatch() - began < 4.0
        await served.heartbeats.beat([lease], 4.0)


async def test_a_hanging_heartbeat_leaves_no_connection_at_the_end(jobs: Jobs, proxy: Proxy) -> None:
    jobs.add()
    async with jobs.served() as served:
        lease = await served.take()
        heartbeats = served.table.heartbeats()

        async def beat() -> float:
            await heartbeats.beat([lease], 30.0)
            return 0.0

        proxy.silence_next_request("heart")
        ticker = SystemClock().ticker("a hanging beat", beat, on_end=heartbeats.close)
        await asyncio.to_thread(proxy.lost.wait, 20)
        ticker.stop(0.01)
        began = stopwatch()
        await ticker.ended()
        assert stopwatch() - began < 4.0
        await until(lambda: all(thread.name != "a hanging beat" for thread in threading.enumerate()))
        assert not heartbeats._link.connected  # type: ignore[attr-defined]


@pytest.mark.parametrize("reply", [b"skip locked", b"COMMIT\0"])
async def test_a_claim_whose_reply_is_lost_is_abandoned(jobs: Jobs, proxy: Proxy, reply: bytes) -> None:
    jobs.add(2)
    token = new_token()
    async with jobs.served() as served:
        proxy.lose_next_reply("claim", reply)
        with pytest.raises(StoreUnreachable):
            await served.claim(token=token)
        await abandoned(served, token)
        assert jobs.states() == ["queued", "queued"]
        assert len(await served.ids()) == 2


async def abandoned(served: Served, token: str) -> None:
    """Again and again, as a worker does."""
    while not await served.heartbeats.abandon(token):  # noqa: ASYNC110 - what it waits for happens in a server
        await asyncio.sleep(0.005)


async def test_abandoning_a_token_waits_for_its_commit(jobs: Jobs, proxy: Proxy) -> None:
    """Else the token would be forgotten, and its claim come true afterwards."""
    jobs.add(2)
    token = new_token()
    async with jobs.served() as served:
        go = proxy.hold_next_request("claim", b"COMMIT\0")
        with pytest.raises(StoreUnreachable):
            await served.claim(token=token)
        assert not await served.heartbeats.abandon(token)
        go.set()
        await abandoned(served, token)
        assert jobs.states() == ["queued", "queued"]


async def test_a_settlement_whose_reply_is_lost_is_recognized_when_repeated(jobs: Jobs, proxy: Proxy) -> None:
    jobs.add()
    async with jobs.served() as served:
        lease = await served.take()
        proxy.lose_next_reply("settle")
        with pytest.raises(StoreUnreachable):
            await served.settle(lease, ERRORED)
        assert await served.settle(lease, ERRORED, repeat=True) is Verdict.ALREADY_SETTLED


@pytest.fixture
def bouncer(jobs: Jobs) -> Iterator[PgBouncer]:
    program = find_pgbouncer()
    if isinstance(program, str):
        pytest.skip(f"PgBouncer: {program}")
    with PgBouncer(program, jobs.url) as bouncer:
        yield bouncer


async def test_the_store_works_behind_a_pooler(jobs: Jobs, bouncer: PgBouncer) -> None:
    jobs.add(2)
    direct, jobs.url = jobs.url, bouncer.url
    try:
        async with jobs.served(max_num_retries=1, retry_after=60, notify_channel="jobs") as served:
            await through_its_life(served)
            assert not await served.table.wait(0.01)
            assert not served.table.is_listening
    finally:
        jobs.url = direct
