"""Serial keys under many hands, and the bookkeeping that finds the next one."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.store import Heartbeats, Verdict
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import ask, claim, maintain, take

# Every waiting job of a free serial key can be found: by itself, or by its serial key's hint, no later than it is due.
UNFINDABLE = """
    select j.id from stowhand.live j left join stowhand.limit_keys q on q.name = j.serial
    where j.serial is not null and j.state in ('queued', 'errored') and j.resets < 2 and j.absorbed
      and (q.name is null or (not stowhand.is_held(q.name) and (
        q.hint_run_at is null or q.hint_run_at > greatest(j.run_at, now()))))
"""
# A running job with a serial key has the slot of the key, and a key that is held has no hint.
WRONGLY_HELD = """
    select q.name from stowhand.limit_keys q where q.hint_run_at is not null and stowhand.is_held(q.name)
    union all
    select j.serial from stowhand.live j
    where j.serial is not null and j.state = 'processing' and j.key_slot is distinct from 1
"""
HELD = "select serial, id from stowhand.live where key_slot is not null and worker is not null"
RETRY_AT_ONCE = Settlement(State.ERRORED, AttemptOutcome.RETRY, delay=0.0, error="again")


def test_six_claimers_never_run_two_jobs_of_a_serial_key_at_once(postgres_url: str, run: Any) -> None:
    async def race() -> None:
        stores = [PostgresStore(postgres_url) for _ in range(6)]
        await stores[0].jobs.enqueue_many(NewJob(task="t", serial=f"q{number % 4}") for number in range(120))
        running: Counter[str] = Counter()
        ended: dict[str, list[int]] = {}

        async def serve(store: PostgresStore) -> None:
            while await store.next_due(None) is not None:
                claims = await claim(store, 3)
                for each in claims:
                    running[each.serial or ""] += 1
                    assert running[each.serial or ""] == 1, f"two jobs of {each.serial} at once"
                    ended.setdefault(each.serial or "", []).append(each.lease.job_id)
                await asyncio.sleep(0)
                for each in claims:
                    running[each.serial or ""] -= 1
                verdicts = await store.settle([(each.lease, COMPLETED) for each in claims])
                assert set(verdicts) <= {Verdict.SETTLED}

        await asyncio.gather(*(serve(store) for store in stores))
        assert all(len(ids) == 30 and ids == sorted(ids) for ids in ended.values())
        for store in stores:
            await store.close()

    run(race())


@pytest.mark.usefixtures("patient_claims")
def test_one_claim_finds_jobs_after_all_jobs_of_a_busy_serial_key(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        ids = await store.jobs.enqueue_many(NewJob(task="t", serial="q") for _ in range(3000))
        first = await take(store)
        assert first.job_id == ids[0]
        behind = await store.jobs.enqueue_many(NewJob(task="t", serial=name) for name in ("z", "a", "z", "m"))
        claims = [*await claim(store, 1), *await claim(store, 5)]
        assert [each.lease.job_id for each in claims] == [behind[0], behind[1], behind[3]]
        assert sql("select count(*) from stowhand.live where absorbed") == [(0,)], "so few names need no bookkeeping"
        assert list(await claim(store, 5)) == []
        await store.settle([(first, COMPLETED)])
        assert (await take(store)).job_id == ids[1]
        await store.close()

    run(story())


def test_jobs_of_many_busy_serial_keys_are_passed_once_and_found_again(
    store: PostgresStore, sql: Sql, run: Any
) -> None:
    async def story() -> None:
        ids = await store.jobs.enqueue_many(NewJob(task="t", serial=f"q{number % 150}") for number in range(3000))
        held = await claim(store, 150)
        assert len(held) == 150
        # Behind all of them: another queue's job, and passing them has to come to an end.
        (other,) = await store.jobs.enqueue_many([NewJob(task="t", serial="other")])
        rows: list[int] = []
        while not rows:
            rows = [each.lease.job_id for each in await claim(store, 5)]
        assert rows == [other]
        ((scouts,),) = sql(
            "select count(*) from stowhand.live where serial is not null and not absorbed and worker is null"
        )
        assert scouts < 100
        assert sql(UNFINDABLE) == []
        assert list(await claim(store, 5)) == []
        await store.settle([(held[0].lease, COMPLETED)])
        assert sql(UNFINDABLE) == []
        assert (await take(store)).job_id == ids[150]
        await store.close()

    run(story())


def test_the_scouts_of_a_free_serial_key_are_never_absorbed(store: PostgresStore, sql: Sql, run: Any) -> None:
    """A claim saw the queue held, then its holder settled: the hint was left before, so these must stay scouts."""

    async def story() -> None:
        ids = await store.jobs.enqueue_many(NewJob(task="t", serial="q") for _ in range(3))
        await store.settle([(await take(store), COMPLETED)])
        sql("select stowhand.absorb(%s::bigint[], '{}', now())", ids)
        assert sql("select bool_or(absorbed), count(*) from stowhand.live") == [(False, 2)]
        assert sql(UNFINDABLE) == []
        await store.close()

    run(story())


def test_an_absorbed_job_in_the_future_is_found_when_it_is_due(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t", serial="q"))
        first = await take(store)
        later = await store.jobs.enqueue(NewJob(task="t", serial="q", priority=-5, delay=0.3))
        sql("update stowhand.live set absorbed = true where id = %s", later.id)
        sql("update stowhand.limit_keys set absorbed = true")
        await store.settle([(first, COMPLETED)])
        assert sql(UNFINDABLE) == []
        async with asyncio.timeout(25):
            while await store.next_due(None):
                await store.wait(0.02)
        assert (await take(store)).job_id == later.id
        await store.close()

    run(story())


async def end(store: PostgresStore, heartbeats: Heartbeats, leases: Sequence[Lease], how: Settlement | None) -> None:
    """A keyed enqueue beside us may have one of them locked for a moment: busy, so once more."""
    if how is not None:
        while Verdict.BUSY in await store.settle([(lease, how) for lease in leases]):
            pass
    else:
        while leases := await heartbeats.release(leases):
            pass


async def go_on(store: PostgresStore, leases: list[Lease], limit: int) -> list[Lease]:
    """The same, each serial key going on to its next job in the same call, up to the limit: the leases of these."""
    settle_and_claim = store.capabilities.settle_and_claim
    assert settle_and_claim is not None
    following: list[Lease] = []
    while leases:
        replies, claims = await settle_and_claim([(lease, COMPLETED) for lease in leases], ask(limit))
        following += [each.lease for each in claims]
        leases = [lease for lease, reply in zip(leases, replies, strict=True) if reply is Verdict.BUSY]
    return following


@pytest.fixture
def always_too_many_names(sql: Sql) -> Iterator[None]:
    """Claims absorb scouts, as among more than a hundred serial keys."""
    signature = (
        "stowhand.walk_names(text[], text[], text[], text[], timestamptz, text[], int, int, timestamptz, bigint)"
    )
    ((source,),) = sql(f"select pg_get_functiondef('{signature}'::regprocedure)")
    sql(f"drop function {signature}")
    sql(f"create function {signature} returns text[] language sql as 'select null::text[]'")
    yield
    sql(f"drop function {signature}")
    sql(source)


@pytest.mark.usefixtures("always_too_many_names")
@pytest.mark.parametrize("seed", range(2))
def test_after_any_sequence_of_calls_every_absorbed_job_can_be_found(
    postgres_url: str, sql: Sql, run: Any, seed: int
) -> None:
    any_sequence(postgres_url, sql, run, seed)


def test_after_any_sequence_of_calls_every_waiting_job_can_be_found(postgres_url: str, sql: Sql, run: Any) -> None:
    any_sequence(postgres_url, sql, run, 2)


def any_sequence(postgres_url: str, sql: Sql, run: Any, seed: int) -> None:
    """Random calls of four stores at once, with many jobs in few serial keys."""

    async def one(store: PostgresStore, random: random.Random) -> None:
        heartbeats = store.heartbeats()
        for _ in range(25):
            match random.randrange(7):
                case 0:
                    await store.jobs.enqueue_many(
                        NewJob(task=random.choice("tu"), serial=f"q{random.randrange(4)}", priority=random.randrange(3))
                        for _ in range(random.randrange(80))
                    )
                case 1:
                    await store.jobs.enqueue(
                        NewJob(task="t", serial=f"q{random.randrange(4)}", key=f"k{random.randrange(3)}")
                    )
                case 2:
                    claims = await claim(store, random.randrange(1, 5))
                    following = await go_on(store, [each.lease for each in claims], random.randrange(1, 5))
                    await end(store, heartbeats, following, random.choice([COMPLETED, None]))
                case _:
                    claims = await claim(store, random.randrange(1, 5))
                    how = random.choice([COMPLETED, RETRY_AT_ONCE, None])
                    await end(store, heartbeats, [each.lease for each in claims], how)
        await heartbeats.close()

    async def story() -> None:
        stores = [PostgresStore(postgres_url) for _ in range(4)]
        await asyncio.gather(*(one(store, random.Random(seed * 10 + n)) for n, store in enumerate(stores)))
        assert sql(UNFINDABLE) == []
        assert sql(WRONGLY_HELD) == []
        heartbeats = stores[0].heartbeats()
        await heartbeats.maintain()
        assert sql(UNFINDABLE) == []
        await heartbeats.close()
        async with asyncio.timeout(60):
            while claims := await claim(stores[0], 50):
                await stores[0].settle([(each.lease, COMPLETED) for each in claims])
        kept = "state = 'failed' and loses_retries = 'replaced'"  # errored after a newer job had taken its key
        assert sql(f"select id, state from stowhand.live where ({kept}) is not true") == []
        for store in stores:
            await store.close()

    run(story(), timeout=100)


def test_a_stale_token_neither_resets_a_job_nor_frees_its_serial_key(store: PostgresStore, sql: Sql, run: Any) -> None:
    """Between the look of a sweep and its write, the job may have been settled, and be held by somebody else."""

    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t", serial="q"))
        stale = await take(store)
        await store.settle([(stale, RETRY_AT_ONCE)])
        current = await take(store)
        pair = f"array[{stale.job_id}::bigint], array['{stale.token}'::uuid]"
        assert sql(f"select * from stowhand.reset({pair}, '{{queued}}', '{{null}}', null, true)") == []
        sql("select stowhand.free_serials('{q}', now())")
        assert sql(HELD) == [("q", current.job_id)]
        await store.close()

    run(story())


def test_unneeded_rows_of_serial_keys_are_pruned(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        await store.jobs.enqueue_many(NewJob(task="t", serial=name) for name in ("empty", "waiting", "waiting", "held"))
        for each in await claim(store, 10):
            if each.serial != "held":
                await store.settle([(each.lease, COMPLETED)])
        heartbeats = store.heartbeats()
        await heartbeats.maintain()
        await heartbeats.close()
        assert sql("select name from stowhand.limit_keys order by name") == [("held",), ("waiting",)]
        await store.close()

    run(story())


LOSE = {
    "deleted": "delete from stowhand.live where state = 'processing'",
    "put back": "update stowhand.live set state = 'queued', token = null, worker = null, lease_until = null"
    " where state = 'processing'",
    "claimed by hand": "update stowhand.live set token = gen_random_uuid(), serial = 'elsewhere'"
    " where state = 'processing'",
}


@pytest.mark.parametrize("how", LOSE)
def test_a_claim_frees_a_serial_key_whose_holder_has_lost_it(
    store: PostgresStore, sql: Sql, run: Any, how: str
) -> None:
    async def story() -> None:
        ids = await store.jobs.enqueue_many(NewJob(task="t", serial="q") for _ in range(3))
        assert (await take(store)).job_id == ids[0]
        sql(LOSE[how])
        expected = ids[0] if how == "put back" else ids[1]
        assert (await take(store)).job_id == expected
        assert ("q", expected) in sql(HELD)
        assert list(await claim(store)) == []
        await store.close()

    run(story())


@pytest.mark.usefixtures("always_too_many_names")
def test_maintenance_frees_a_lost_serial_key_without_visible_jobs(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        ids = await store.jobs.enqueue_many(NewJob(task="t", serial=f"q{number % 2}") for number in range(300))
        held = await claim(store, 2)
        await claim(store, 5)
        sql("update stowhand.live set absorbed = true where state = 'queued'")
        sql("update stowhand.limit_keys set absorbed = true")
        sql("delete from stowhand.live where id = %s", held[0].lease.job_id)
        assert list(await claim(store, 5)) == []
        await maintain(store)
        assert (await take(store)).job_id == ids[2]
        assert sql(UNFINDABLE) == sql(WRONGLY_HELD) == []
        await store.close()

    run(story())


def test_a_lost_and_paused_serial_key_is_free_after_a_resume(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        ids = await store.jobs.enqueue_many(NewJob(task="t", serial="q") for _ in range(2))
        await take(store)
        await store.operate.pause_serial("q")
        sql("delete from stowhand.live where id = %s", ids[0])
        assert list(await claim(store)) == []
        await store.operate.resume_serial("q")
        assert (await take(store)).job_id == ids[1]
        await store.close()

    run(story())


def test_a_lost_serial_key_with_a_locked_row_delays_no_claim(
    store: PostgresStore, sql: Sql, connection: psycopg.Connection[Any], run: Any
) -> None:
    async def story() -> None:
        ids = await store.jobs.enqueue_many(NewJob(task="t", serial="q") for _ in range(2))
        await take(store)
        sql("delete from stowhand.live where id = %s", ids[0])
        with connection.transaction():
            connection.execute("select from stowhand.limit_keys for update")
            assert list(await claim(store)) == []
            await maintain(store)
        assert (await take(store)).job_id == ids[1]
        await store.close()

    run(story())


def test_two_concurrent_claims_free_a_lost_serial_key_for_one_of_them(postgres_url: str, sql: Sql, run: Any) -> None:
    async def story() -> None:
        stores = [PostgresStore(postgres_url) for _ in range(4)]
        await stores[0].jobs.enqueue_many(NewJob(task="t", serial="q") for _ in range(40))
        await take(stores[0])
        for _ in range(15):
            sql("delete from stowhand.live where state = 'processing'")
            claims = await asyncio.gather(*(claim(store) for store in stores))
            assert sum(map(len, claims)) == 1
        for store in stores:
            await store.close()

    run(story())


@pytest.mark.parametrize(
    "write",
    [
        "insert into stowhand.live (task, serial) values ('t', 'new')",
        "insert into stowhand.live (task) values ('t'); update stowhand.live set serial = 'new'",
        "insert into stowhand.live (task, serial) values ('t', 'q'); update stowhand.live set serial = 'new'",
        """insert into stowhand.live (task, serial, state, finished_at) values ('t', 'new', 'failed', now());
        update stowhand.live set state = 'queued', finished_at = null""",
    ],
)
def test_a_job_given_a_serial_key_by_hand_is_found(store: PostgresStore, sql: Sql, run: Any, write: str) -> None:
    async def story() -> None:
        for statement in write.split(";"):
            sql(statement)
        assert sql(UNFINDABLE) == []
        (found,) = await claim(store)
        assert found.serial == "new"
        await store.close()

    run(story())


def test_a_job_whose_serial_key_was_removed_by_hand_runs(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t", serial="q"))
        sql("update stowhand.live set serial = null")
        (found,) = await claim(store)
        assert found.serial is None
        await store.close()

    run(story())
