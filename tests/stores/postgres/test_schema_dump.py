"""The page that shows the schema, and what is left when the schema is dropped."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest
from psycopg import sql

from stowhand.stores.postgres.queue import PostgresStore
from tests.support import dump
from tests.support.binaries import PREFERRED_MAJOR
from tests.support.databases import Databases
from tests.support.schema import install


@pytest.fixture
def pg_dump(postgres_server: Databases) -> Any:
    program = dump.find_pg_dump(postgres_server.version)
    if program is None or postgres_server.version != PREFERRED_MAJOR:
        pytest.skip(f"the page is written by PostgreSQL {PREFERRED_MAJOR} and its pg_dump")
    return program


def test_the_page_shows_the_schema_as_it_is(own_url: str, pg_dump: Any) -> None:
    differences = dump.differences(dump.PAGE.read_text(), dump.page(pg_dump, own_url))
    assert not differences, f"run scripts/dump-schema; what differs:\n{differences}"


def test_dropping_the_schema_leaves_nothing_of_ours(empty_url: str, run: Any) -> None:
    before = everything_in(empty_url)

    async def used() -> None:
        store = PostgresStore(empty_url)
        await store.schema.install()
        await store.schema.uninstall()
        await store.close()

    run(used())
    assert everything_in(empty_url) == before
    install(empty_url)
    assert everything_in(empty_url) != before
    with psycopg.connect(empty_url) as connection:
        connection.execute("drop schema stowhand cascade")
    assert everything_in(empty_url) == before


def everything_in(url: str) -> dict[str, Counter[str]]:
    """All rows of all catalogs of the database, each by its oid or else as a text; and the advisory locks held."""
    with psycopg.connect(url) as connection:
        catalogs = connection.execute(
            "select c.relname, exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'oid')"
            " from pg_class c where c.relnamespace = 'pg_catalog'::regnamespace and c.relkind = 'r'"
            # What the server gathers by itself, and what belongs to all databases and changes beside us.
            " and not c.relisshared and c.relname not in ('pg_statistic', 'pg_statistic_ext_data')"
        ).fetchall()
        found = {
            name: Counter(
                str(row[0])
                for row in connection.execute(
                    sql.SQL("select {} from pg_catalog.{} as row").format(
                        sql.SQL("oid" if has_oid else "row::text"), sql.Identifier(name)
                    )
                )
            )
            for name, has_oid in catalogs
        }
        found["locks"] = Counter(
            row[0]
            for row in connection.execute(
                "select l.locktype from pg_locks l where l.locktype = 'advisory'"
                " and l.database = (select oid from pg_database where datname = current_database())"
            )
        )
    return found
