"""What another program, or a hand, has changed in the schema is noticed, and made good where it can be."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql


@pytest.fixture
def postgres_url(own_url: str) -> str:
    """What is done here to the schema must not reach other tests."""
    return own_url


def test_changed_functions_are_repaired_and_other_changes_are_reported(
    store: PostgresStore, sql: Sql, run: Any
) -> None:
    # graphile-worker's migration 12 replaces this one.
    sql(
        "create or replace function stowhand.add_jobs(specs stowhand.job_spec[],"
        " job_key_preserve_run_at boolean default false) returns setof stowhand.jobs"
        " language sql as 'select * from stowhand.jobs'"
    )
    sql("create function stowhand.retry(word text) returns int language sql as 'select 1'")
    sql("drop function stowhand.remove(bigint)")
    sql("alter type stowhand.job_spec alter attribute max_attempts type smallint")
    sql("create or replace view stowhand.migrations as select 11 as id, now() as ts, true as breaking")
    sql("alter table stowhand.limit_keys drop constraint hint_whole")
    # What a new text of this one forbids would not be looked for in the rows that are there.
    ((source,),) = sql("select pg_get_functiondef('stowhand.is_lawful'::regproc)")
    sql(source.replace("128", "127"))
    # What is there besides is nobody's affair.
    sql("create index mine on stowhand.live (task)")
    sql("create function stowhand.mine() returns int language sql as 'select 1'")
    left = [
        "the function is_lawful is not the one of this version",
        "the constraint limit_keys.hint_whole is missing",
        "the type job_spec.max_attempts is not the one of this version",
    ]

    async def story() -> None:
        assert await store.schema.foreign_changes() == [
            "the function add_jobs is not the one of this version",
            left[0],
            "the function remove is missing",
            "the function retry is not the one of this version",
            *left[1:],
            "the view migrations is not the one of this version",
        ]
        assert "create or replace function" in await store.schema.plan()
        await store.schema.install()
        assert await store.schema.foreign_changes() == left
        await store.close()

    run(story())
    assert sql("select id from stowhand.migrations") == [(1_000_000,)]
    assert sql("select stowhand.mine()") == [(1,)]


def test_a_comparison_leaves_no_object_and_needs_no_right_to_create_one(postgres_url: str, sql: Sql, run: Any) -> None:
    schemas = sql("select count(*) from pg_namespace")
    ((database,),) = sql("select current_database()")
    sql("create role looks_only login")
    sql(f"revoke create on database {database} from public")
    sql("drop function stowhand.remove(bigint)")
    limited = psycopg.conninfo.make_conninfo(postgres_url, user="looks_only")

    async def story() -> None:
        for url in (postgres_url, limited):
            store = PostgresStore(url)
            if url == limited:
                sql("grant usage on schema stowhand to looks_only")
                sql("grant select on stowhand.applied_migrations, stowhand.settings to looks_only")
            assert await store.schema.foreign_changes() == ["the function remove is missing"]
            await store.close()

    try:
        run(story())
    finally:
        sql("drop owned by looks_only")
        sql("drop role looks_only")
    assert sql("select count(*) from pg_namespace") == schemas
