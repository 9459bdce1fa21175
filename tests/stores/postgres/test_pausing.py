"""Pauses under many hands: against claims, settlements and each other; and that they cost others nothing."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from stowhand.errors import StoreUnreachable
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.store import Claim, Verdict
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.test_serials import HELD, UNFINDABLE, WRONGLY_HELD
from tests.stores.postgres.verbs import claim, take, wait_for_a_waiter

CLAIM = "select id from stowhand.claim('w', %s, 10, 30, null, null, false) where id > 0"


def blocked(url: str, statement: str, values: tuple[object, ...] = ()) -> tuple[threading.Thread, list[Any]]:
    """A statement in another session that waits for somebody's lock; and, once it has ended, its rows."""
    rows: list[Any] = []

    def execute() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            rows.extend(connection.execute(statement.encode(), values).fetchall())

    thread = threading.Thread(target=execute)
    thread.start()
    with psycopg.connect(url, autocommit=True) as connection:
        wait_for_a_waiter(connection)
    return thread, rows


def test_a_pause_waits_for_a_concurrent_claim_whose_job_continues(
    store: PostgresStore, sql: Sql, postgres_url: str, run: Any
) -> None:
    ids = run(with_two(store))
    with psycopg.connect(postgres_url) as claiming:
        assert claiming.execute(CLAIM, (uuid.uuid4(),)).fetchall() == [(ids[0],)]
        thread, paused = blocked(postgres_url, "select stowhand.pause_serial('q')")
        claiming.commit()
        thread.join(60)
    assert paused == [(True,)]
    assert sql("select paused_at is not null from stowhand.limit_keys") == [(True,)]
    assert sql(HELD) == [("q", ids[0])]


def test_a_claim_during_an_uncommitted_pause_takes_nothing_and_does_not_wait(
    store: PostgresStore, postgres_url: str, run: Any
) -> None:
    run(with_two(store))
    for existing in (False, True):  # the queue's row: first made by the pause, then there
        with psycopg.connect(postgres_url) as pausing:
            assert pausing.execute("select stowhand.pause_serial('q')").fetchall() == [(True,)]
            with psycopg.connect(postgres_url) as claiming:
                claiming.execute("set lock_timeout = '10s'")
                assert claiming.execute(CLAIM, (uuid.uuid4(),)).fetchall() == [], existing
            pausing.commit()
        with psycopg.connect(postgres_url) as resuming:
            resuming.execute("select stowhand.resume_serial('q')")


@pytest.mark.parametrize("settlement", [COMPLETED, Settlement(State.FAILED, AttemptOutcome.FAILED, error="no")])
def test_an_uncommitted_pause_delays_only_its_own_serial_key(
    store: PostgresStore, sql: Sql, postgres_url: str, run: Any, settlement: Settlement
) -> None:
    async def story() -> None:
        await store.jobs.enqueue_many(NewJob(task="t", serial=name) for name in ("q", "other", None, "q"))
        leases = {one.serial: one.lease for one in await claim(store, 3)}
        batch = [(lease, settlement) for lease in leases.values()]
        heartbeats = store.heartbeats()
        with psycopg.connect(postgres_url) as pausing:
            pausing.execute("select stowhand.pause_serial('q')")
            verdicts = dict(zip(leases, await store.settle(batch, repeat=False), strict=True))
            assert verdicts == {"q": Verdict.BUSY, "other": Verdict.SETTLED, None: Verdict.SETTLED}
            assert await heartbeats.release([leases["q"]]) == [leases["q"]], "it is asked again, until it can be done"
            assert await heartbeats.reset_lease(leases["q"]) == []
            assert not await heartbeats.abandon(leases["q"].token)
            assert not (await heartbeats.beat([leases["q"]], 30.0)).lost
            pausing.commit()
        assert await store.settle([(leases["q"], settlement)], repeat=False) == [Verdict.SETTLED]
        await heartbeats.close()

    run(story())
    assert sql("select paused_at is not null from stowhand.limit_keys where name = 'q'") == [(True,)]
    assert sql(HELD) == []
    assert run(claimed(store)) == []


def test_a_resume_concurrent_with_a_settlement_leaves_the_serial_key_free(
    store: PostgresStore, sql: Sql, postgres_url: str, run: Any
) -> None:
    async def begin() -> tuple[Any, list[int]]:
        ids = await store.jobs.enqueue_many(NewJob(task="t", serial="q") for _ in range(2))
        lease = await take(store)
        await store.operate.pause_serial("q")
        await store.close()
        return lease, ids

    lease, ids = run(begin())
    settle = "select * from stowhand.settle_completed(array[%s::bigint], array[%s::uuid], true)"
    with psycopg.connect(postgres_url) as settling:
        settling.execute(settle, (lease.job_id, lease.token))
        thread, resumed = blocked(postgres_url, "select stowhand.resume_serial('q')")
        settling.commit()
        thread.join(60)
    assert resumed == [(True,)]
    assert sql("select paused_at from stowhand.limit_keys") == [(None,)]
    assert run(claimed(store)) == [ids[1]]


def test_only_one_of_two_concurrent_pauses_changes_the_key(store: PostgresStore, sql: Sql, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as first:
        assert first.execute("select stowhand.pause_serial('q')").fetchall() == [(True,)]
        thread, second = blocked(postgres_url, "select stowhand.pause_serial('q')")
        first.commit()
        thread.join(60)
    assert second == [(False,)]
    assert sql("select paused_at is not null from stowhand.limit_keys") == [(True,)]


def test_a_resume_waits_for_a_transaction_within_the_timeout(own_url: str, run: Any) -> None:
    async def refused() -> None:
        store = PostgresStore(own_url)
        await store.operate.pause_serial("q")
        with psycopg.connect(own_url) as holding:
            holding.execute("select from stowhand.limit_keys where name = 'q' for update")
            with psycopg.connect(own_url) as changing:
                changing.execute("alter function stowhand.resume_serial set lock_timeout = '100ms'")
            with pytest.raises(StoreUnreachable, match="holds the queue; try again"):
                await store.operate.resume_serial("q")
        await store.close()

    run(refused())


def test_serial_keys_that_are_paused_and_resumed_under_load_lose_no_job_and_stay_serial(
    postgres_url: str, run: Any
) -> None:
    names = [f"q{number}" for number in range(130)]

    async def race() -> None:
        stores = [PostgresStore(postgres_url) for _ in range(4)]
        await stores[0].jobs.enqueue_many(NewJob(task="t", serial=names[number % 130]) for number in range(780))
        done: dict[str, list[int]] = {name: [] for name in names}
        running: set[str] = set()

        async def serve(store: PostgresStore) -> None:
            while sum(map(len, done.values())) < 780:
                claims = await claim(store, 20)
                for one in claims:
                    assert one.serial not in running, f"two jobs of {one.serial} at once"
                    running.add(str(one.serial))
                    done[str(one.serial)].append(one.lease.job_id)
                running.difference_update(str(one.serial) for one in claims)
                await complete(store, claims)

        async def meddle() -> None:
            for round_ in range(3):
                for name in names[round_::4]:
                    await stores[3].operate.pause_serial(name)
                for name in names[round_::4]:
                    await stores[3].operate.resume_serial(name)

        await asyncio.gather(*(serve(store) for store in stores[:3]), meddle())
        assert all(len(ids) == 6 and ids == sorted(ids) for ids in done.values())
        for store in stores:
            await store.close()

    run(race())
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(WRONGLY_HELD.encode()).fetchall() == []
        assert connection.execute(UNFINDABLE.encode()).fetchall() == []


def test_jobs_absorbed_during_a_pause_are_found_again(store: PostgresStore, sql: Sql, run: Any) -> None:
    """Behind many paused serial keys scouts are absorbed, as behind busy ones; a resume leaves a hint."""

    async def story() -> None:
        ids = await store.jobs.enqueue_many(NewJob(task="t", serial=f"q{number % 150}") for number in range(3000))
        for number in range(150):
            await store.operate.pause_serial(f"q{number}")
        (other,) = await store.jobs.enqueue_many([NewJob(task="t", serial="other")])
        rows: list[int] = []
        while not rows:
            rows = [each.lease.job_id for each in await claim(store, 5)]
        assert rows == [other]
        ((scouts,),) = sql(
            "select count(*) from stowhand.live where serial is not null and not absorbed and worker is null"
        )
        assert scouts < 100
        assert sql("select count(*) from stowhand.limit_keys where hint_id is not null") == [(0,)]
        await store.operate.resume_serial("q7")
        assert sql(UNFINDABLE) == []
        assert sql(WRONGLY_HELD) == []
        assert (await take(store)).job_id == ids[7]
        await store.close()

    run(story())


async def complete(store: PostgresStore, claims: Sequence[Claim[Any]]) -> None:
    """A pause that is just being committed has the queue's row, and may keep it for a moment: busy, so once more."""
    while claims:
        verdicts = await store.settle([(one.lease, COMPLETED) for one in claims])
        claims = [one for one, found in zip(claims, verdicts, strict=True) if found is Verdict.BUSY]


async def with_two(store: PostgresStore) -> list[int]:
    ids = await store.jobs.enqueue_many(NewJob(task="t", serial="q") for _ in range(2))
    await store.close()
    return ids


async def claimed(store: PostgresStore) -> list[int]:
    rows = [each.lease.job_id for each in await claim(store, 10)]
    await store.close()
    return rows
