"""Our schema under the original's name: a new version of it stops before it writes, and none breaks ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from stowhand.errors import SchemaError
from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.conftest import Run
from tests.interop.original import Original
from tests.support.databases import Databases

pytestmark = pytest.mark.xdist_group("interop")
OURS = StoreOptions(schema="graphile_worker")
OLD = "0.13.0"
NEWER = ("0.16.6", "0.17.3", "0.18.0")
EVERYTHING = """
select 'r', c.relname, c.relkind::text from pg_class c where c.relnamespace = 'graphile_worker'::regnamespace
union all
select 'p', p.oid::regprocedure::text, md5(p.prosrc) from pg_proc p
where p.pronamespace = 'graphile_worker'::regnamespace
order by 1, 2"""


@pytest.fixture
def shared(postgres_server: Databases) -> Iterator[str]:
    """A database whose schema graphile_worker is ours."""
    with postgres_server.lend(install) as url:
        yield url


def install(url: str) -> None:
    async def installed() -> None:
        store = PostgresStore(url, OURS)
        await store.schema.install()
        await store.close()

    asyncio.run(installed())


def everything(url: str) -> list[tuple[str, str, str]]:
    with psycopg.connect(url) as connection:
        return connection.execute(EVERYTHING.encode()).fetchall()


def jobs(url: str) -> list[tuple[str]]:
    with psycopg.connect(url) as connection:
        return connection.execute("select task_identifier from graphile_worker.jobs").fetchall()


@pytest.mark.parametrize("version", NEWER)
def test_new_versions_stop_at_their_own_check_before_they_write(shared: str, version: str) -> None:
    theirs, before = Original(version), everything(shared)
    for verb in (theirs.migrate, lambda url: theirs.add(url, "hello")):
        with pytest.raises(RuntimeError):
            verb(shared)
    assert everything(shared) == before
    assert jobs(shared) == []


def test_an_old_version_has_nothing_to_migrate_and_its_producers_continue(shared: str) -> None:
    theirs, before = Original(OLD), everything(shared)
    theirs.migrate(shared)
    theirs.add(shared, "hello")
    assert everything(shared) == before
    assert jobs(shared) == [("hello",)]


def test_a_table_of_theirs_beside_ours_is_refused(shared: str, run: Run) -> None:
    with psycopg.connect(shared) as connection:
        connection.execute("drop view graphile_worker.migrations")
        connection.execute("create table graphile_worker.migrations (id int primary key)")

    async def story() -> None:
        store = PostgresStore(shared, OURS)
        for verb in (store.open, store.schema.install, store.schema.plan):
            with pytest.raises(SchemaError, match="has tables of another program"):
                await verb()
        await store.close()

    run(story())
