"""Connections that break, and what is said about them."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from stowhand.errors import ConfigurationError, StoreError, StoreTooSlow, StoreUnreachable
from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import StoreOptions, Verdict
from stowhand.stores.database.address import Address
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import ask, claim, cut_off, take

Connection = psycopg.Connection[Any]


def test_every_role_recovers_when_its_backend_is_terminated(
    store: PostgresStore, connection: Connection, run: Any
) -> None:
    async def story() -> None:
        heartbeats = store.heartbeats()
        for _ in range(2):
            await store.jobs.enqueue_many(NewJob(task="t") for _ in range(2))
            claims = await claim(store, 2)
            await heartbeats.beat([claims[0].lease], 30.0)
            assert await store.settle([(claims[0].lease, COMPLETED)]) == [Verdict.SETTLED]
            assert cut_off(connection, "stowhand:%") >= 4
            # Nothing was under way, so nothing is ambiguous: the first call of each role simply works again.
            await store.jobs.enqueue(NewJob(task="t"))
            assert await claim(store)
            await heartbeats.beat([claims[1].lease], 30.0)
            assert await store.settle([(claims[1].lease, COMPLETED)]) == [Verdict.SETTLED]
        await heartbeats.close()
        await store.close()

    run(story())


def test_a_listener_reconnects_and_reports_that_it_may_have_missed_notifications(
    store: PostgresStore, connection: Connection, sql: Sql, run: Any
) -> None:
    async def story() -> None:
        assert await store.wait(5.0) is True  # it has only just begun to listen
        assert store.is_listening
        waiting = asyncio.create_task(store.wait(30.0))
        await asyncio.sleep(0.05)
        assert cut_off(connection, "stowhand:listen%") == 1
        assert await asyncio.wait_for(waiting, 20) is True
        waiting = asyncio.create_task(store.wait(30.0))
        await asyncio.sleep(0)
        sql("select stowhand.add_job('t')")
        assert await asyncio.wait_for(waiting, 20) is True
        await store.close()

    run(story())


def test_a_listener_that_lost_its_listen_detects_it_at_the_next_ping(store: PostgresStore, sql: Sql, run: Any) -> None:
    """A pooler gives the connection to somebody else in between: it answers, and listens no more."""

    async def story() -> None:
        await store.wait(0.01)
        connection = store._listener._connection
        assert connection is not None
        await connection.execute("unlisten *")
        assert await store.wait(0.01) is False
        store._listener.proof_interval_seconds = 0.0
        assert await asyncio.wait_for(store.wait(30.0), 20) is True, "what was sent meanwhile went unheard"
        sql("select stowhand.add_job('t')")
        assert await asyncio.wait_for(store.wait(30.0), 20) is True
        await store.close()

    run(story())


def test_a_notification_between_waits_ends_the_next_wait(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        await store.wait(0.01)
        assert await store.wait(0.01) is False
        sql("select stowhand.add_job('t')")
        assert await asyncio.wait_for(store.wait(30.0), 20) is True
        await store.close()

    run(story())


def test_every_connection_is_closed_properly(store: PostgresStore, sql: Sql, run: Any) -> None:
    """Also the one that listens, in the middle of its wait."""
    abandoned = "select sessions_abandoned from pg_stat_database where datname = current_database()"
    before = sql(abandoned)

    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t"))
        assert len(await claim(store)) == 1
        waiting = asyncio.create_task(store.wait(30.0))
        while not store.is_listening:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await store.close()
        while sql("select from pg_stat_activity where application_name like 'stowhand:%'"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    run(story())
    assert sql(abandoned) == before


def test_a_wait_without_listening_only_sleeps(postgres_url: str, run: Any) -> None:
    async def story() -> None:
        store = PostgresStore(postgres_url, StoreOptions(listen_url="postgresql://127.0.0.1:1/nowhere"))
        assert await store.wait(0.05) is False
        assert not store.is_listening
        assert await store.wait(0.05) is False
        await store.close()

    run(story())


def test_connections_are_named_by_role_and_worker(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t"))
        await store.claim(ask(worker="host.1.abc"))
        await store.wait(0.01)
        names = {name for (name,) in sql("select application_name from pg_stat_activity")}
        assert {"stowhand:enqueue", "stowhand:claim:host.1.abc", "stowhand:listen:host.1.abc"} <= names
        await store.close()

    run(story())


@pytest.mark.parametrize("role", ["claim", "settle", "enqueue", "heart", "inspect"])
def test_no_role_changes_its_session(postgres_url: str, run: Any, role: str) -> None:
    """What a pooler hands to the next client must be as it was found."""

    async def story() -> None:
        store = PostgresStore(postgres_url)
        await store.jobs.enqueue(NewJob(task="t"))
        lease = await take(store)
        heartbeats = store.heartbeats()
        await heartbeats.beat([lease], 30.0)
        await store.inspect.counts()
        await store.settle([(lease, COMPLETED)])
        context = store._context
        ask_settings = (
            b"select count(*) from pg_settings where source = 'session' and name not like 'transaction%%'"
            b" and setting is distinct from reset_val"
        )
        match role:
            case "claim":
                rows = await store._claims._link.rows(ask_settings)
            case "settle":
                rows = await store._settlements._settler._link.rows(ask_settings)
            case "heart":
                rows = await heartbeats._link.rows(ask_settings)  # type: ignore[attr-defined]
            case _:
                rows = await context.pool.rows(role, ask_settings)
        assert rows == [(0,)]
        await heartbeats.close()
        await store.close()

    run(story())


def test_everything_works_without_prepared_statements(postgres_url: str, sql: Sql, run: Any) -> None:
    async def story() -> None:
        store = PostgresStore(postgres_url, StoreOptions(prepared_statements=False))
        for _ in range(8):
            await store.jobs.enqueue(NewJob(task="t"))
            lease = await take(store)
            assert await store.settle([(lease, COMPLETED)]) == [Verdict.SETTLED]
        assert await store._claims._link.rows(b"select count(*) from pg_prepared_statements") == [(0,)]
        await store.close()

    run(story())


def test_an_unreachable_store_is_reported_without_its_password(run: Any) -> None:
    store = PostgresStore("postgresql://user:s3cret@127.0.0.1:1/db?ssl=false")
    with pytest.raises(StoreUnreachable) as raised:
        run(store.open())
    assert "127.0.0.1:1/db" in str(raised.value)
    assert "s3cret" not in str(raised.value) + store.description + repr(store._context.address)


def test_an_address_that_cannot_be_read_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigurationError) as raised:
        PostgresStore("postgresql://user:s3cret@host/db?sslmodus=1")
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "parameters"),
    [
        ("postgresql://u@h:5/d?ssl=true", {"host": "h", "port": "5", "dbname": "d", "sslmode": "require"}),
        ("postgres://h/d", {"host": "h", "dbname": "d"}),
        ("postgresql:///d?host=/sockets&ssl=0", {"host": "/sockets", "dbname": "d", "sslmode": "disable"}),
        ("host=h dbname=d connect_timeout=3", {"host": "h", "dbname": "d", "connect_timeout": "3"}),
        ("it's mine", {"dbname": "it's mine"}),
        ("", {"connect_timeout": "10"}),
    ],
)
def test_every_form_of_an_address_is_understood(url: str, parameters: dict[str, str]) -> None:
    known = Address(url).parameters("role")
    assert {name: known[name] for name in parameters} == parameters


def test_a_cancelled_call_leaves_no_connection_with_an_open_statement(
    store: PostgresStore, postgres_url: str, run: Any
) -> None:
    async def story() -> None:
        await store.jobs.enqueue(NewJob(task="t", key="k"))
        with psycopg.connect(postgres_url) as application:
            application.execute("select from stowhand.live for update")
            waiting = asyncio.create_task(store.jobs.enqueue(NewJob(task="t", key="k")))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert (await store.jobs.enqueue(NewJob(task="t", key="k"))).revision == 1
        await store.close()

    run(story())


def test_a_borrowed_connection_is_read_only_only_during_the_statement(
    postgres_url: str, connection: Connection, run: Any
) -> None:
    async def story() -> None:
        async with AsyncConnectionPool(postgres_url, min_size=1, max_size=1, open=False) as pool:
            reader = PostgresStore("", StoreOptions(pool=pool, read_only=True, read_timeout=0.2))
            writer = PostgresStore("", StoreOptions(pool=pool))
            await reader.open()
            job = await writer.jobs.enqueue(NewJob(task="t"))
            for refused in (reader.admin.cancel(job.id), reader.schema.install()):
                with pytest.raises(StoreError, match="read_only"):
                    await refused
            with connection.transaction():
                connection.execute("lock table stowhand.live")
                with pytest.raises(StoreTooSlow, match=r"no answer within 0\.2 s"):
                    await reader.jobs.get(job.id)
            assert await reader.jobs.get(job.id) == job
            assert (await writer.admin.cancel(job.id)).result is ActionResult.DONE
            async with pool.connection() as borrowed:
                await (cursor := borrowed.cursor()).execute("show transaction_read_only")
                assert await cursor.fetchone() == ("off",)

    run(story())
