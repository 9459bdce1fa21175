"""Settling where the database says no, or says nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest

from stowhand.errors import StoreUnreachable
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.store import RefusedSettlement, Verdict
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import claim, cut_off, take


def completed(result: str | None = None, *then: NewJob) -> Settlement:
    return Settlement(State.COMPLETED, AttemptOutcome.OK, result=result, then=then)


@pytest.mark.parametrize(
    "bad",
    [
        completed("{not json"),
        completed('"\ud800"'),
        completed("1", NewJob(task="")),
        completed("1", NewJob(task="t", payload="{not json")),
        Settlement(State.ERRORED, AttemptOutcome.RETRY, error="NUL \x00"),
    ],
    ids=["result", "surrogate", "then", "then payload", "error"],
)
def test_one_refused_settlement_in_a_hundred_is_the_only_unwritten_one(
    store: PostgresStore, run: Any, bad: Settlement
) -> None:
    async def story() -> None:
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(100))
        claims = await claim(store, 100)
        good = completed("2", NewJob(task="next", delay=60.0))
        verdicts = await store.settle(
            [(each.lease, bad if number == 42 else good) for number, each in enumerate(claims)]
        )
        assert isinstance(verdicts[42], RefusedSettlement)
        assert {reply for place, reply in enumerate(verdicts) if place != 42} == {Verdict.SETTLED}
        unwritten = await store.jobs.get(claims[42].lease.job_id)
        assert unwritten is not None
        assert (unwritten.state, unwritten.result_text) == (State.PROCESSING, None)
        assert (await store.inspect.counts())[State.COMPLETED] == 99
        followed = Counter(job.task for job in await store.inspect.list(JobFilter(limit=1000)))
        assert followed == {"next": 99, "t": 1}
        await store.close()

    run(story())


def test_values_that_cannot_be_sent_are_no_outage(store: PostgresStore, run: Any) -> None:
    """However many there are, and none beside them passes."""

    async def story() -> None:
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(2))
        bad = completed('"\ud800"')
        replies = await store.settle([(each.lease, bad) for each in await claim(store, 2)])
        assert all(isinstance(reply, RefusedSettlement) for reply in replies)
        await store.close()

    run(story())


def test_a_row_locked_by_an_application_is_busy_and_settled_afterwards(
    store: PostgresStore, postgres_url: str, run: Any
) -> None:
    async def story() -> None:
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(3))
        leases = [each.lease for each in await claim(store, 3)]
        heartbeats = store.heartbeats()
        with psycopg.connect(postgres_url) as application:
            application.execute("select from stowhand.live where id = %s for update", (leases[1].job_id,))
            verdicts = await store.settle([(lease, COMPLETED) for lease in leases])
            assert verdicts == [Verdict.SETTLED, Verdict.BUSY, Verdict.SETTLED]
            pulse = await heartbeats.beat([leases[1]], 30.0)
            assert pulse.busy == {(leases[1].job_id, leases[1].token)}
            assert not pulse.lost
            assert list(await heartbeats.reset_stalled(-60.0)) == []
        await heartbeats.close()
        assert await store.settle([(leases[1], COMPLETED)]) == [Verdict.SETTLED]
        await store.close()

    run(story())


@pytest.mark.parametrize(
    "settlement", [COMPLETED, completed("1"), Settlement(State.FAILED, AttemptOutcome.FAILED, error="x")]
)
def test_a_settlement_repeated_after_a_lost_connection_is_recognized(
    store: PostgresStore, connection: psycopg.Connection[Any], run: Any, settlement: Settlement
) -> None:
    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t"))
        lease = await take(store)
        assert await store.settle([(lease, settlement)]) == [Verdict.SETTLED]
        assert cut_off(connection, "stowhand:settle%") == 1
        assert await store.settle([(lease, settlement)], repeat=True) == [Verdict.ALREADY_SETTLED]
        await store.close()

    run(story())


def test_without_a_history_a_repeat_without_trace_is_unknown(forgetful_store: PostgresStore, run: Any) -> None:
    async def story() -> None:
        await forgetful_store.jobs.enqueue(NewJob(task="t"))
        lease = await take(forgetful_store)
        await forgetful_store.settle([(lease, COMPLETED)])
        assert await forgetful_store.settle([(lease, COMPLETED)], repeat=True) == [Verdict.UNKNOWN]
        assert await forgetful_store.settle([(lease, COMPLETED)]) == [Verdict.LOST]
        await forgetful_store.close()

    run(story())


def test_one_id_under_two_tokens_is_settled_by_the_one_that_holds(store: PostgresStore, run: Any) -> None:
    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t"))
        zombie = await take(store)
        heartbeats = store.heartbeats()
        await heartbeats.reset_lease(zombie)
        await heartbeats.close()
        holder = await take(store)
        verdicts = await store.settle([(zombie, COMPLETED), (holder, COMPLETED)])
        assert verdicts == [Verdict.LOST, Verdict.SETTLED]
        await store.close()

    run(story())


def test_a_settlement_on_a_read_only_server_can_be_repeated(
    store: PostgresStore, sql: Sql, postgres_url: str, run: Any
) -> None:
    name = postgres_url.partition("?")[0].rpartition("/")[2]

    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t"))
        lease = await take(store)
        sql(f'alter database "{name}" set default_transaction_read_only = on')
        with pytest.raises(StoreUnreachable):
            await store.settle([(lease, COMPLETED)])
        sql("set default_transaction_read_only = off")
        sql(f'alter database "{name}" reset default_transaction_read_only')
        assert await store.settle([(lease, COMPLETED)], repeat=True) == [Verdict.SETTLED]
        await store.close()

    run(story())
