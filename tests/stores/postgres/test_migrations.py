"""The schema's installation, whoever does it and however many at once."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from stowhand.errors import ConfigurationError, SchemaError, SchemaOutdated, SchemaTooNew
from stowhand.jobs.job import NewJob
from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql


@pytest.fixture
def postgres_url(own_url: str) -> str:
    """What is done here to the schema must not reach other tests."""
    return own_url


def test_eight_installs_at_once_on_an_empty_database_all_succeed(empty_url: str, run: Any) -> None:
    async def install() -> None:
        stores = [PostgresStore(empty_url) for _ in range(8)]
        statuses = await asyncio.gather(*(store.schema.install() for store in stores))
        assert len({(status.installed, status.expected) for status in statuses}) == 1
        assert await stores[0].schema.plan() == ""
        for store in stores:
            await store.close()

    run(install())


def test_a_schema_may_have_any_name_and_two_do_not_meet(empty_url: str, run: Any) -> None:
    async def both() -> None:
        names = ['we"ird; drop schema stowhand --', "s" * 63]
        stores = [PostgresStore(empty_url, StoreOptions(schema=name)) for name in names]
        for number, store in enumerate(stores):
            await store.schema.install()
            await store.open()
            assert await store.jobs.enqueue_many([NewJob(task="t")] * (number + 1))
        assert [sum((await store.inspect.counts()).values()) for store in stores] == [1, 2]
        await stores[0].schema.uninstall()
        assert sum((await stores[1].inspect.counts()).values()) == 2
        for store in stores:
            await store.close()

    run(both())


@pytest.mark.parametrize("name", ["", "pg_mine", "s" * 64, "a\x00b"])
def test_a_name_that_cannot_be_a_schemas_is_refused_before_connecting(name: str) -> None:
    with pytest.raises(ConfigurationError):
        PostgresStore("postgresql:///nowhere", StoreOptions(schema=name))


def test_an_older_schema_is_refused_and_says_the_command(store: PostgresStore, sql: Sql, run: Any) -> None:
    sql("delete from stowhand.applied_migrations where id = (select max(id) from stowhand.applied_migrations)")

    async def opened() -> None:
        with pytest.raises(SchemaOutdated, match="stowhand migrate"):
            await store.open()
        await store.close()

    run(opened())


@pytest.mark.parametrize("breaking", [False, True])
def test_the_newer_migrations_own_word_decides(store: PostgresStore, sql: Sql, run: Any, breaking: bool) -> None:
    sql("insert into stowhand.applied_migrations (id, breaking) values (999, %s)", breaking)

    async def opened() -> None:
        try:
            await store.open()
        finally:
            await store.close()

    if breaking:
        with pytest.raises(SchemaTooNew):
            run(opened())
    else:
        run(opened())


@pytest.mark.parametrize("breaking", ["", ", breaking boolean not null default false"])
def test_a_schema_of_something_else_is_named_and_left_alone(empty_url: str, run: Any, breaking: str) -> None:
    """Whoever comes from graphile-worker has one, with a table of migrations in it."""
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(
            "create schema graphile_worker; create table graphile_worker.migrations"
            f" (id int primary key, ts timestamptz not null default now(){breaking});"
            "insert into graphile_worker.migrations (id) select generate_series(1, 11)".encode()
        )
        store = PostgresStore(empty_url, StoreOptions(schema="graphile_worker"))

        async def story() -> None:
            for verb in (store.open, store.schema.install, store.schema.plan, store.schema.status):
                with pytest.raises(SchemaError, match="holds tables of something else"):
                    await verb()
            await store.close()

        run(story())
        tables = connection.execute("select tablename from pg_tables where schemaname = 'graphile_worker'").fetchall()
    assert tables == [("migrations",)]


def test_the_plan_run_by_hand_is_the_schema(empty_url: str, run: Any) -> None:
    async def planned() -> str:
        store = PostgresStore(empty_url)
        plan = await store.schema.plan()
        await store.close()
        return plan

    plan = run(planned())
    with psycopg.connect(empty_url) as connection:
        connection.execute(plan.encode())
        tables = connection.execute(
            "select count(*) from pg_tables where schemaname = 'stowhand'"
            " and tablename in ('live', 'queues', 'applied_migrations')"
        ).fetchone()
    assert tables == (3,)


def test_an_install_uses_a_schema_that_an_administrator_made(empty_url: str, run: Any) -> None:
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute("create schema stowhand")

    async def install() -> None:
        store = PostgresStore(empty_url)
        status = await store.schema.install()
        assert status.installed == status.expected
        await store.close()

    run(install())


def test_the_literal_in_the_indexes_is_the_laws_quarantine(sql: Sql) -> None:
    from stowhand.jobs.lifecycle import QUARANTINE_AFTER

    ((definition,),) = sql("select indexdef from pg_indexes where indexname = 'live_suspects'")
    assert f"resets >= {QUARANTINE_AFTER}" in definition
