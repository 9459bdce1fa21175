"""The page that shows the schema, and what is left when the schema is dropped."""

from __future__ import annotations

import subprocess
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


def test_the_schema_page_matches_the_installed_schema(own_url: str, pg_dump: Any) -> None:
    differences = dump.differences(dump.PAGE.read_text(), dump.page(pg_dump, own_url))
    assert not differences, f"run scripts/dump-schema; what differs:\n{differences}"


def test_a_dump_with_jobs_can_be_restored_with_its_constraints(own_url: str, empty_url: str, pg_dump: Any) -> None:
    jobs = "select array_agg(j order by j.id)::text from stowhand.live j"
    with psycopg.connect(own_url) as connection:
        connection.execute(
            "select stowhand.add_job('t', queue_name := 'q', job_key := 'k' || g) from generate_series(1, 9) g"
        )
        connection.execute("select stowhand.claim('w', gen_random_uuid(), 3, 30, null, null, false)")
        before = connection.execute(jobs).fetchone()
    dumped = subprocess.run([pg_dump, "-d", own_url], capture_output=True, check=True, timeout=60)
    psql = [pg_dump.with_name("psql"), "-d", empty_url, "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1"]
    subprocess.run(psql, input=dumped.stdout, capture_output=True, check=True, timeout=60)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        assert connection.execute(jobs).fetchone() == before
        assert connection.execute("select bool_and(convalidated) from pg_constraint").fetchone() == (True,)
        with pytest.raises(psycopg.errors.CheckViolation, match="known_state"):
            connection.execute("update stowhand.live set state = 'lost' where token is null")


def test_dropping_the_schema_leaves_no_object(empty_url: str, run: Any) -> None:
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
        result = {
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
        result["locks"] = Counter(
            row[0]
            for row in connection.execute(
                "select l.locktype from pg_locks l where l.locktype = 'advisory'"
                " and l.database = (select oid from pg_database where datname = current_database())"
            )
        )
    return result
