"""The schema's installation, whoever does it and however many at once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stowhand.errors import ConfigurationError, SchemaError, SchemaTooNew
from stowhand.jobs.job import NewJob
from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.support.databases import Databases
from tests.support.logins import exec_all
from tests.support.made_up import NUMBER, one_more, schema_of
from tests.support.schema import install


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


def test_a_schema_can_have_any_name_and_two_are_independent(empty_url: str, run: Any) -> None:
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
def test_an_invalid_schema_name_is_refused_before_connecting(name: str) -> None:
    with pytest.raises(ConfigurationError):
        PostgresStore("postgresql:///nowhere", StoreOptions(schema=name))


@pytest.mark.parametrize("breaking", [False, True])
def test_a_newer_migration_decides_whether_it_is_breaking(
    store: PostgresStore, sql: Sql, run: Any, breaking: bool
) -> None:
    sql("insert into stowhand.applied_migrations (id, breaking, fingerprint) values (999, %s, '')", breaking)

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


def test_the_default_of_a_newer_schema_is_not_set_by_an_older_version(store: PostgresStore, sql: Sql, run: Any) -> None:
    """It would replace the newer functions with its own."""
    sql("insert into stowhand.applied_migrations (id, breaking, fingerprint) values (999, false, '')")
    sql("create or replace function stowhand.wake() returns void language sql as 'select'")
    settings = store.settings
    assert settings is not None

    async def story() -> None:
        try:
            with pytest.raises(SchemaTooNew, match="999: let the version that knows it set the default"):
                await settings.set_default_max_attempts(7)
            assert await settings.default_max_attempts() == 25
        finally:
            await store.close()

    run(story())
    assert sql("select prosrc from pg_proc where oid = 'stowhand.wake()'::regprocedure") == [("select",)]


@pytest.mark.parametrize("breaking", ["", ", breaking boolean not null default false"])
def test_a_schema_of_another_program_is_reported_and_unchanged(empty_url: str, run: Any, breaking: str) -> None:
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
                with pytest.raises(SchemaError, match="has tables of another program"):
                    await verb()
            await store.close()

        run(story())
        tables = connection.execute("select tablename from pg_tables where schemaname = 'graphile_worker'").fetchall()
    assert tables == [("migrations",)]


def test_the_plan_run_by_hand_creates_the_schema(empty_url: str, run: Any) -> None:
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
            " and tablename in ('live', 'limit_keys', 'applied_migrations')"
        ).fetchone()
    assert tables == (3,)


def test_an_install_uses_a_schema_that_an_administrator_created(empty_url: str, run: Any) -> None:
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute("create schema stowhand")

    async def install() -> None:
        store = PostgresStore(empty_url)
        status = await store.schema.install()
        assert status.installed == status.expected
        await store.close()

    run(install())


def test_the_literal_in_the_indexes_is_the_minimum_resets_of_a_suspect(sql: Sql) -> None:
    from stowhand.jobs.lifecycle import MIN_SUSPECT_RESETS

    ((definition,),) = sql("select indexdef from pg_indexes where indexname = 'live_suspects'")
    assert f"resets >= {MIN_SUSPECT_RESETS}" in definition


def test_an_interrupted_migration_changes_nothing(own_url: str, tmp_path: Path, run: Any) -> None:
    more = one_more(own_url, tmp_path, "alter table {live} add column made_up text;")

    async def story() -> None:
        async with schema_of(own_url, more) as schema:
            script, _, _ = (await schema.plan()).partition("\ncommit;")
            with psycopg.connect(own_url, autocommit=True) as cut:
                cut.execute(script.encode())
                cut.close()
            assert (await schema.status()).installed == NUMBER - 1
            with psycopg.connect(own_url, autocommit=True) as connection:
                connection.execute((await schema.plan()).encode())
            assert (await schema.status()).installed == NUMBER
            assert await schema.foreign_changes() == []

    run(story())


@pytest.fixture
def role(postgres_server: Databases, empty_url: str) -> Iterator[str]:
    """A login of this test's own, gone afterwards with all that it has in the test's database."""
    name = f"role_{uuid.uuid4().hex[:8]}"
    exec_all(empty_url, f"create role {name} login password 'secret'")
    yield name
    exec_all(empty_url, f"drop owned by {name}", f"drop role {name}")


def test_an_upgrade_by_an_administrator_keeps_the_owner(empty_url: str, role: str, tmp_path: Path, run: Any) -> None:
    """Functions run with their owner's rights: an administrator's would be everybody's."""
    grant = f"execute format('grant create on database %I to {role}', current_database());"
    exec_all(empty_url, f"do $$ begin {grant} end $$")
    install(make_conninfo(empty_url, user=role, password="secret"))
    more = one_more(empty_url, tmp_path, "create table {schema}.made_up (id int);")

    async def upgrade() -> None:
        async with schema_of(empty_url, more) as schema:
            await schema.install()

    run(upgrade())
    with psycopg.connect(empty_url) as connection:
        owners = connection.execute(
            "select pg_get_userbyid(proowner) from pg_proc where pronamespace = 'stowhand'::regnamespace"
            " union select pg_get_userbyid(relowner) from pg_class where relnamespace = 'stowhand'::regnamespace"
        ).fetchall()
    assert owners == [(role,)]


def test_an_upgrade_keeps_grants(empty_url: str, role: str, tmp_path: Path, run: Any) -> None:
    install(empty_url)
    exec_all(empty_url, f"grant execute on all functions in schema stowhand to {role}")
    more = one_more(empty_url, tmp_path, "create table {schema}.made_up (id int);")
    may = """select count(*) from pg_proc p where p.pronamespace = 'stowhand'::regnamespace
        and has_function_privilege(%s, p.oid, 'execute')"""

    async def upgrade() -> None:
        async with schema_of(empty_url, more) as schema:
            await schema.install()

    with psycopg.connect(empty_url, autocommit=True) as connection:
        before = connection.execute(may, (role,)).fetchone()
        run(upgrade())
        assert connection.execute(may, (role,)).fetchone() == before
