"""A settlement that claims the next job of its serial key: what it may take, what it leaves, and who wins a race with
it."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.store import Claim, Heartbeats, Reply, Verdict
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.worker.heartbeat_thread import HeartbeatThread
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.test_serials import HELD, UNFINDABLE, WRONGLY_HELD
from tests.stores.postgres.verbs import ask, claim, take, wait_for_a_waiter

CALL = (
    "select settled, id from stowhand.settle_and_claim("
    "%s::bigint[], %s::uuid[], true, 'w', %s::uuid, 9, 30, null, null)"
)


async def settle_and_claim(
    store: PostgresStore, *leases: Lease, limit: int = 9, how: Settlement = COMPLETED, **asked: Any
) -> tuple[Sequence[Reply], Sequence[Claim[Job]]]:
    together = store.capabilities.settle_and_claim
    assert together is not None
    return await together([(lease, how) for lease in leases], ask(limit, **asked))


async def add(store: PostgresStore, count: int = 1, **details: Any) -> list[int]:
    return await store.jobs.enqueue_many(NewJob(**({"task": "t", "serial": "q"} | details)) for _ in range(count))


def ids(claims: Sequence[Claim[Job]]) -> list[int]:
    return [one.lease.job_id for one in claims]


def test_the_next_job_of_a_serial_key_is_claimed_in_the_transaction_of_the_settlement(
    store: PostgresStore, sql: Sql, run: Any
) -> None:
    async def story() -> None:
        first, _, third = await add(store, 3)
        urgent = await store.jobs.enqueue(NewJob(task="t", serial="q", priority=-1, delay=600.0))
        assert urgent.id
        (done,) = await claim(store)
        replies, (got,) = await settle_and_claim(store, done.lease, worker="v")
        assert list(replies) == [Verdict.SETTLED]
        assert (got.lease.job_id, got.attempts, got.serial, got.lease.epoch) == (first + 1, 1, "q", 1)
        assert sql(HELD) == [("q", first + 1)]
        assert sql(
            "select worker, lease_until - started_at = '30 s' from stowhand.live where state = 'processing'"
        ) == [("v", True)]
        assert sql(WRONGLY_HELD) == []
        assert list(await claim(store)) == [], "its serial key is held"
        _, (got,) = await settle_and_claim(store, got.lease)
        assert got.lease.job_id == third
        replies, none = await settle_and_claim(store, got.lease)
        assert (list(replies), list(none)) == ([Verdict.SETTLED], [])
        assert sql(HELD) == []
        assert sql(UNFINDABLE) == []
        await store.close()

    run(story())


def test_each_of_several_serial_keys_continues_up_to_the_limit(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        for _ in range(2):
            for name in "abcd":
                await add(store, serial=name)
        (free,) = await add(store, serial=None)
        leases = [one.lease for one in await claim(store, 9)]
        assert free in [lease.job_id for lease in leases]
        replies, claims = await settle_and_claim(store, *leases, limit=2)
        assert list(replies) == [Verdict.SETTLED] * 5
        assert len(claims) == 2
        assert len(sql(HELD)) == 2
        assert sql(WRONGLY_HELD) == []
        assert sql(UNFINDABLE) == []
        assert len(await claim(store, 9)) == 2, "the others are free"
        await store.close()

    run(story())


def test_an_invalid_lease_claims_no_successor(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        await add(store, 3)
        zombie = await take(store)
        sql("select * from stowhand.release(array[%s::bigint], array[%s::uuid], true)", zombie.job_id, zombie.token)
        replies, claims = await settle_and_claim(store, zombie)
        assert (list(replies), list(claims)) == ([Verdict.LOST], [])
        holder = await take(store)
        assert list((await settle_and_claim(store, zombie))[1]) == []
        assert sql(HELD) == [("q", holder.job_id)]
        other = Lease(holder.job_id, zombie.token, holder.epoch)
        assert list((await settle_and_claim(store, other))[1]) == [], "the id alone is not proof"
        assert sql(HELD) == [("q", holder.job_id)]
        await store.close()

    run(story())


def test_a_repeated_settlement_claims_no_successor(store: PostgresStore, run: Any) -> None:
    async def story() -> None:
        await add(store, 2)
        lease = await take(store)
        await store.settle([(lease, COMPLETED)])
        replies, claims = await settle_and_claim(store, lease)
        assert (list(replies), list(claims)) == ([Verdict.ALREADY_SETTLED], [])
        await store.close()

    run(story())


def test_a_paused_serial_key_and_a_paused_task_stop_after_the_running_job(
    store: PostgresStore, sql: Sql, run: Any
) -> None:
    async def story() -> None:
        await add(store, 3)
        lease = await take(store)
        await store.operate.pause_serial("q")
        assert list((await settle_and_claim(store, lease))[1]) == []
        assert list(await claim(store)) == []
        assert sql("select paused_at is not null from stowhand.limit_keys") == [(True,)]
        await store.operate.resume_serial("q")
        lease = await take(store)
        await store.operate.pause_task("t")
        assert list((await settle_and_claim(store, lease))[1]) == []
        assert list((await settle_and_claim(store, lease, tasks=("t",)))[1]) == []
        assert sql(HELD) == []
        await store.operate.resume_task("t")
        assert len(await claim(store)) == 1
        await store.close()

    run(story())


def test_successors_respect_the_conditions_of_the_claim_and_skip_suspects(
    store: PostgresStore, sql: Sql, run: Any
) -> None:
    async def story() -> None:
        await add(store)
        suspect, *_ = await add(store)
        sql("update stowhand.live set resets = 2 where id = %s", suspect)
        await add(store, task="another")
        await add(store, flags=("heavy",))
        (wanted,) = await add(store)
        lease = await take(store)
        _, (got,) = await settle_and_claim(store, lease, tasks=("t", "u"), forbidden_flags=("heavy",))
        assert got.lease.job_id == wanted
        assert list((await settle_and_claim(store, got.lease, tasks=("u",)))[1]) == []
        assert sql(HELD) == []
        await store.close()

    run(story())


@pytest.mark.parametrize("serial", [None, "other"])
def test_a_claim_decides_while_a_more_urgent_job_is_due(
    store: PostgresStore, sql: Sql, run: Any, serial: str | None
) -> None:
    async def story() -> None:
        await add(store, 3)
        await add(store, serial=serial, priority=-9, delay=600.0)
        await add(store, serial=serial)
        _, (got,) = await settle_and_claim(store, await take(store))
        (urgent,) = await add(store, serial=serial, priority=-8)
        assert list((await settle_and_claim(store, got.lease))[1]) == []
        assert ids(await claim(store)) == [urgent]
        assert sql(WRONGLY_HELD) == []
        await store.close()

    run(story())


def test_it_commits_durably_and_does_not_notify_for_its_own_claim(
    store: PostgresStore, postgres_url: str, connection: psycopg.Connection[Any], sql: Sql, run: Any
) -> None:
    async def prepare() -> Lease:
        await add(store, 3)
        return await take(store)

    lease = run(prepare())
    connection.execute('listen "stowhand:wake"')
    with psycopg.connect(postgres_url) as settling:
        settling.execute("set synchronous_commit = on")
        (_, (_, got)) = settling.execute(CALL.encode(), ([lease.job_id], [lease.token], str(uuid.uuid4()))).fetchall()
        assert settling.execute("show synchronous_commit").fetchone() == ("on",)
    assert list(connection.notifies(timeout=0.05)) == []

    ((*held,),) = sql("select id, token::text, epoch from stowhand.live where id = %s", got)

    async def forbid() -> None:
        assert list((await settle_and_claim(store, Lease(*held), tasks=("none",)))[1]) == []
        await store.close()

    run(forbid())
    assert len(list(connection.notifies(timeout=5.0, stop_after=1))) == 1, "the queue is free, and has a due job"


def test_a_job_that_cannot_be_claimed_does_not_undo_the_settlement(own_url: str, run: Any) -> None:
    async def story() -> None:
        store = PostgresStore(own_url)
        await add(store, 2)
        lease = await take(store)
        with psycopg.connect(own_url, autocommit=True) as connection:
            connection.execute(
                "create function refuse() returns trigger language plpgsql as"
                " $$ begin raise exception 'not this one'; end $$"
            )
            connection.execute(
                "create trigger refuse before update on stowhand.live for each row"
                " when (new.state = 'processing') execute function refuse()"
            )
            replies, claims = await settle_and_claim(store, lease)
            assert (list(replies), list(claims)) == ([Verdict.SETTLED], [])
            assert (await store.inspect.counts())[State.COMPLETED] == 1
            assert connection.execute(HELD.encode()).fetchall() == []
            # One that keeps rows as they are, without a word: nothing is claimed, and the queue is not held by it.
            connection.execute("drop trigger refuse on stowhand.live")
            (lease,) = [one.lease for one in await claim(store)]
            await add(store)
            connection.execute(
                "create or replace function refuse() returns trigger language plpgsql as $$ begin return null; end $$"
            )
            connection.execute(
                "create trigger refuse before update on stowhand.live for each row"
                " when (new.state = 'processing') execute function refuse()"
            )
            replies, claims = await settle_and_claim(store, lease)
            assert (list(replies), list(claims)) == ([Verdict.SETTLED], [])
            assert connection.execute(HELD.encode()).fetchall() == []
        await store.close()

    run(story())


def test_outcomes_other_than_plain_completions_are_settled_without_a_claim(store: PostgresStore, run: Any) -> None:
    async def story() -> None:
        await add(store, 2)
        again = Settlement(State.ERRORED, AttemptOutcome.RETRY, delay=60.0, error="again")
        replies, claims = await settle_and_claim(store, await take(store), how=again)
        assert (list(replies), list(claims)) == ([Verdict.SETTLED], [])
        assert len(await claim(store)) == 1
        await store.close()

    run(story())


# -- races ---------------------------------------------------------------------------------------


def test_an_abandoned_token_claims_nothing_and_its_settlements_count(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        await add(store, 2)
        lease, token = await take(store), str(uuid.uuid4())
        heartbeats = store.heartbeats()
        assert await heartbeats.abandon(token)
        await heartbeats.close()
        replies, claims = await settle_and_claim(store, lease, token=token)
        assert (list(replies), list(claims)) == ([Verdict.SETTLED], [])
        assert sql(HELD) == []
        await store.close()

    run(story())


def abandon_meanwhile(url: str, token: str) -> tuple[threading.Thread, list[bool]]:
    done: list[bool] = []

    def call() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute("select stowhand.abandon(%s::uuid, true)", (token,)).fetchone()
            assert row is not None
            done.append(row[0])

    thread = threading.Thread(target=call)
    thread.start()
    return thread, done


def test_abandoning_waits_for_a_claiming_settlement_and_returns_its_jobs(
    store: PostgresStore, postgres_url: str, connection: psycopg.Connection[Any], sql: Sql, run: Any
) -> None:
    async def prepare() -> Lease:
        await add(store, 2)
        lease = await take(store)
        await store.close()
        return lease

    lease, token = run(prepare()), str(uuid.uuid4())
    with psycopg.connect(postgres_url) as settling:
        (_, (_, taken)) = settling.execute(CALL.encode(), ([lease.job_id], [lease.token], token)).fetchall()
        thread, done = abandon_meanwhile(postgres_url, token)
        wait_for_a_waiter(connection)
        assert done == [], "a claim of this token is still under way"
    thread.join(60)
    assert done == [True]
    assert sql("select id, state, attempts from stowhand.live") == [(taken, "queued", 0)]
    assert sql(HELD) == []


def test_the_token_is_locked_before_any_row(
    store: PostgresStore, postgres_url: str, connection: psycopg.Connection[Any], sql: Sql, run: Any
) -> None:
    """Rows first would be a circle: abandoning holds the token's lock when it locks rows."""

    async def prepare() -> Lease:
        await add(store, 2)
        lease = await take(store)
        await store.close()
        return lease

    lease, token = run(prepare()), str(uuid.uuid4())
    results: list[Any] = []

    def settle() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as settling:
            results.extend(settling.execute(CALL.encode(), ([lease.job_id], [lease.token], token)).fetchall())

    with psycopg.connect(postgres_url) as abandoning:
        abandoning.execute("select stowhand.abandon(%s::uuid, true)", (token,))
        thread = threading.Thread(target=settle)
        thread.start()
        wait_for_a_waiter(connection)
        free = "select count(*) from (select from {} for update skip locked) s"
        for table, rows in (("stowhand.live", 2), ("stowhand.limit_keys", 1)):
            assert sql(free.format(table)) == [(rows,)], "it waits and has locked no row"
    thread.join(60)
    assert results == [([lease.job_id], None)], "settled, and nothing claimed under a dead token"
    assert sql(HELD) == []


def test_an_abandoned_token_holds_nothing_after_a_race_with_a_settlement(
    store: PostgresStore, sql: Sql, run: Any
) -> None:
    async def story() -> None:
        thread = HeartbeatThread("heartbeats of a test", store.heartbeats)
        for _ in range(10):
            _, following = await add(store, 2)
            lease, token = await take(store), str(uuid.uuid4())

            async def abandon(token: str, heartbeats: Any) -> None:
                while not await heartbeats.abandon(token):
                    pass

            await asyncio.gather(settle_and_claim(store, lease, token=token), thread.call(partial(abandon, token)))
            assert sql("select id, state, attempts from stowhand.live") == [(following, "queued", 0)]
            assert sql(HELD) == []
            await store.admin.remove(following)
        await thread.close()
        await store.close()

    run(story())


class Race:
    """What runs and what has ended, by queue, as the workers see it at the moment of each reply."""

    def __init__(self) -> None:
        self.chance = random.Random(7)
        self.running: Counter[str | None] = Counter()
        self.ended: dict[str | None, list[int]] = {}

    def begin(self, claims: Sequence[Claim[Job]]) -> None:
        for one in claims:
            self.running[one.serial] += 1
            assert self.running[one.serial] == 1, f"two jobs of {one.serial} at once"

    def end(self, one: Claim[Job]) -> None:
        self.running[one.serial] -= 1
        self.ended.setdefault(one.serial, []).append(one.lease.job_id)

    async def serve(self, store: PostgresStore) -> None:
        """A worker of the version before: it settles and claims apart."""
        while await store.next_due(None) is not None:
            claims = await claim(store, 2)
            self.begin(claims)
            await asyncio.sleep(0)
            for one in claims:
                self.end(one)
                while Verdict.BUSY in await store.settle([(one.lease, COMPLETED)]):
                    pass

    async def chain(self, store: PostgresStore) -> None:
        """A worker that settles and claims together; now and then it gives back what it took, or hears no reply."""
        heartbeats = store.heartbeats()
        while await store.next_due(None) is not None:
            claims = await claim(store, 2)
            self.begin(claims)
            while claims:
                await asyncio.sleep(0)
                claims = [each for one in claims for each in await self.finish(store, heartbeats, one)]
        await heartbeats.close()

    async def finish(self, store: PostgresStore, heartbeats: Heartbeats, one: Claim[Job]) -> Sequence[Claim[Job]]:
        if self.chance.random() < 0.1:
            self.running[one.serial] -= 1
            while await heartbeats.release([one.lease]):
                pass
            return []
        self.end(one)
        token = str(uuid.uuid4())
        replies, following = await settle_and_claim(store, one.lease, token=token)
        while Verdict.BUSY in replies:
            replies, following = await settle_and_claim(store, one.lease, token=token)
        assert list(replies) == [Verdict.SETTLED]
        if self.chance.random() < 0.2:
            while not await heartbeats.abandon(token):
                pass
            return []
        self.begin(following)
        return following


def test_serial_keys_stay_serial_with_both_kinds_of_settlement(postgres_url: str, sql: Sql, run: Any) -> None:
    race = Race()

    async def story() -> None:
        stores = [PostgresStore(postgres_url) for _ in range(5)]
        await stores[0].jobs.enqueue_many(NewJob(task="t", serial=f"q{number % 3}") for number in range(120))
        await asyncio.gather(*map(race.chain, stores[:3]), *map(race.serve, stores[3:]))
        for store in stores:
            await store.close()

    run(story(), 120)
    assert sorted(map(len, race.ended.values())) == [40, 40, 40]
    assert all(one == sorted(one) for one in race.ended.values())
    assert sql(WRONGLY_HELD) == []
    assert sql(UNFINDABLE) == []
