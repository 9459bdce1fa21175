"""One job for which an application's trigger on our tables raises: it alone is at fault, whatever it raises."""

from __future__ import annotations

from typing import Any

import pytest

from stowhand.errors import StoreError
from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import RefusedSettlement, Verdict
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import claim

CODES = ("P0001", "42501", "23514", "08006", "40001", "53100")


def refuse(sql: Sql, bad: int, code: str, *events: str) -> None:
    sql(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF {bad} IN (0, coalesce(new.id, old.id)) THEN RAISE 'not this one' USING ERRCODE = '{code}'; END IF;"
        " RETURN new; END $$"
    )
    for event, table in (("UPDATE", "live"), ("INSERT", "history")):
        sql(f"CREATE TRIGGER refuse BEFORE {event} ON stowhand.{table} FOR EACH ROW EXECUTE FUNCTION refuse()")


@pytest.fixture
def refusing(sql: Sql) -> Any:
    yield refuse
    sql("DROP FUNCTION IF EXISTS refuse() CASCADE")


@pytest.mark.parametrize("code", CODES)
def test_other_jobs_are_renewed_and_settled(store: PostgresStore, sql: Sql, run: Any, refusing: Any, code: str) -> None:
    async def story() -> None:
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(8))
        leases = [each.lease for each in await claim(store, 8)]
        refusing(sql, leases[2].job_id, code)
        heartbeats = store.heartbeats()
        pulse = await heartbeats.beat(leases, 30.0)
        assert pulse.refused == {leases[2].pair}
        assert not pulse.lost | pulse.busy
        replies = await store.settle([(one, COMPLETED) for one in leases])
        assert isinstance(replies[2], RefusedSettlement)
        assert {reply for number, reply in enumerate(replies) if number != 2} == {Verdict.SETTLED}
        await heartbeats.close()
        await store.close()

    run(story())


@pytest.mark.parametrize("code", CODES)
def test_other_jobs_are_reset(store: PostgresStore, sql: Sql, run: Any, refusing: Any, code: str) -> None:
    async def story() -> None:
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(4))
        claims = await claim(store, 4)
        bad = claims[1].lease.job_id
        refusing(sql, bad, code)
        heartbeats = store.heartbeats()
        taken = await heartbeats.reset_worker("w")
        assert sorted(one.job_id for one in taken) == [each.lease.job_id for each in claims if each.lease.job_id != bad]
        await heartbeats.close()
        await store.close()

    run(story())


def test_the_store_is_at_fault_if_all_of_several_settlements_are_refused(
    store: PostgresStore, sql: Sql, run: Any, refusing: Any
) -> None:
    async def story() -> None:
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(3))
        batch = [(each.lease, COMPLETED) for each in await claim(store, 3)]
        refusing(sql, 0, "42501")
        with pytest.raises(StoreError, match="not this one"):
            await store.settle(batch)
        sql("DROP FUNCTION refuse() CASCADE")
        assert await store.settle(batch, repeat=True) == [Verdict.SETTLED] * 3
        await store.close()

    run(story())


@pytest.mark.parametrize("code", [*CODES, "42P01"])
def test_other_jobs_are_claimed(store: PostgresStore, sql: Sql, run: Any, refusing: Any, code: str) -> None:
    async def story() -> None:
        warnings: list[str] = []
        store.notices.on_warning(lambda warning, fix: warnings.append(warning))
        jobs = await store.jobs.enqueue_many(NewJob(task="t", serial="serial" if n == 5 else None) for n in range(6))
        bad, *good = jobs
        refusing(sql, bad, code)
        assert [each.lease.job_id for each in await claim(store, 1)] == good[:1]
        assert [each.lease.job_id for each in await claim(store, 9)] == good[1:]
        assert await claim(store, 9) == []
        (warning,) = warnings
        assert f"job {bad} cannot be claimed: not this one" in warning
        await store.close()

    run(story())


def test_a_job_that_a_trigger_keeps_as_it_is_does_not_stop_the_others(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        bad, good = await store.jobs.enqueue_many(NewJob(task="t") for _ in range(2))
        sql(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" RETURN CASE WHEN new.id <> {bad} THEN new END; END $$"
        )
        sql("CREATE TRIGGER refuse BEFORE UPDATE ON stowhand.live FOR EACH ROW EXECUTE FUNCTION refuse()")
        assert [each.lease.job_id for each in await claim(store, 1)] == [good]
        await store.close()

    try:
        run(story())
    finally:
        sql("DROP FUNCTION IF EXISTS refuse() CASCADE")


def test_the_store_is_at_fault_if_none_of_several_jobs_can_be_claimed(
    store: PostgresStore, sql: Sql, run: Any, refusing: Any
) -> None:
    async def story() -> None:
        await store.jobs.enqueue_many(NewJob(task="t") for _ in range(3))
        refusing(sql, 0, "42501")
        with pytest.raises(StoreError, match=r"none of 3 jobs can be claimed: .* not this one"):
            await claim(store, 3)
        await store.close()

    run(story())
