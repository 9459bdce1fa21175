"""`add_job`, as triggers written for graphile-worker call it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.stores.postgres.conftest import Sql

README_COLUMNS = (
    "id, queue_name, task_identifier, payload, priority, run_at, attempts, max_attempts, last_error, created_at,"
    " updated_at, key, locked_at, locked_by, revision, flags"
)


def test_the_arguments_have_the_readmes_names_order_and_defaults(sql: Sql) -> None:
    ((arguments,),) = sql(
        "select pg_get_function_arguments(oid) from pg_proc where proname = 'add_job'"
        " and pronamespace = 'stowhand'::regnamespace"
    )
    names = [argument.split()[0] for argument in arguments.split(", ")]
    assert names == [
        *("identifier", "payload", "queue_name", "run_at", "max_attempts"),
        *("job_key", "priority", "flags", "job_key_mode"),
    ]
    assert arguments.count("DEFAULT") == 8


def test_the_job_comes_back_with_the_readmes_columns_first(sql: Sql) -> None:
    columns = sql(
        "select string_agg(attname, ', ' order by attnum) from pg_attribute"
        " where attrelid = 'stowhand.jobs'::regclass and attnum between 1 and 16"
    )
    assert columns == [(README_COLUMNS,)]
    ((task, payload, attempts, most, flags, same),) = sql(
        "select task_identifier, payload::text, attempts, max_attempts, flags, run_at = now()"
        " from stowhand.add_job('t', '{\"a\":  1}', flags := array['b', 'a', 'b'])"
    )
    assert (task, payload, attempts, most, flags, same) == ("t", '{"a":  1}', 0, 25, ["b", "a"], True)


def test_null_for_any_argument_is_its_default(sql: Sql) -> None:
    ((payload, queue, most, key, priority, flags, due),) = sql(
        "select payload::text, queue_name, max_attempts, key, priority, flags, run_at = now()"
        " from stowhand.add_job('t', null, null, null, null, null, null, null, null)"
    )
    assert (payload, queue, most, key, priority, flags, due) == ("{}", None, 25, None, 0, None, True)


def test_a_relative_run_time_works_as_in_the_readme(sql: Sql) -> None:
    ((exact,),) = sql(
        "select run_at = now() + interval '90 seconds'"
        " from stowhand.add_job('t', run_at := now() + (%s * interval '1 second'))",
        90,
    )
    assert exact


@pytest.mark.parametrize(
    ("call", "code", "limit"),
    [
        ("repeat('x', 129)", "GWBID", "128"),
        ("''", "GWBID", "128"),
        ("null", "GWBID", "128"),
        ("'t', queue_name := repeat('x', 129)", "GWBQN", "128"),
        ("'t', job_key := repeat('x', 513)", "GWBJK", "512"),
        ("'t', job_key := ''", "GWBJK", "512"),
        ("'t', max_attempts := 0", "GWBMA", "1"),
        ("'t', job_key_mode := 'sideways'", "GWBKM", "unsafe_dedupe"),
        ("'t', job_key := 'k', job_key_mode := 'sideways'", "GWBKM", "unsafe_dedupe"),
        ("'t', flags := array['a', null]", "22023", "64"),
        ("'t', json_build_object('x', repeat('x', 1048576))", "54000", "1 MiB"),
        ("'t', '\"\\u0000\"'", "22P05", ""),
        ("'t', priority := 3000000000", "42883", ""),
    ],
)
def test_what_is_not_allowed_is_refused_with_the_readmes_code_and_the_limit(
    sql: Sql, call: str, code: str, limit: str
) -> None:
    with pytest.raises(psycopg.Error) as raised:
        sql(f"select stowhand.add_job({call})")
    assert raised.value.sqlstate == code
    assert limit in str(raised.value)
    assert sql("select count(*) from stowhand.live") == [(0,)]


@pytest.mark.parametrize(
    "call", ["repeat('x', 128)", "'t', job_key := repeat('x', 512)", "'t', queue_name := repeat('x', 128)"]
)
def test_the_limits_themselves_are_allowed(sql: Sql, call: str) -> None:
    sql(f"select stowhand.add_job({call})")
    assert sql("select count(*) from stowhand.live") == [(1,)]


def test_a_rolled_back_call_leaves_neither_a_job_nor_a_notification(postgres_url: str, sql: Sql) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as listener, psycopg.connect(postgres_url) as producer:
        listener.execute('listen "stowhand:wake"')
        producer.execute("select stowhand.add_job('t')")
        producer.rollback()
        assert list(listener.notifies(timeout=0.1)) == []
        producer.execute("select stowhand.add_job('t') from generate_series(1, 50)")
        producer.commit()
        # One for the whole transaction.
        assert len(list(listener.notifies(timeout=2, stop_after=1))) == 1
        assert list(listener.notifies(timeout=0.05)) == []
    assert sql("select count(*) from stowhand.live") == [(50,)]


def test_a_role_without_grants_adds_a_job_through_a_definers_wrapper(postgres_url: str, sql: Sql) -> None:
    sql("create role nobody_special nologin")
    try:
        sql(
            "create function public.wrapper() returns bigint language sql security definer"
            " as $$ select (stowhand.add_job('wrapped')).id $$"
        )
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("set role nobody_special")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("select stowhand.add_job('direct')")
            connection.execute("select public.wrapper()")
    finally:
        sql("drop role nobody_special")
    assert sql("select task from stowhand.live") == [("wrapped",)]


def test_numbers_and_the_order_of_names_survive_as_they_were_written(sql: Sql) -> None:
    text = '[{"b": 1.50, "a": 1, "b": 2}]'
    sql("select stowhand.add_job('t', %s::json, job_key := 'k')", text)
    ((appended,),) = sql("select payload::text from stowhand.add_job('t', ' [ 1e2 ] ', job_key := 'k')")
    assert appended == '[{"b": 1.50, "a": 1, "b": 2}, 1e2 ]'


def test_the_view_says_that_a_replaced_job_has_no_attempts_left(sql: Sql) -> None:
    sql("select stowhand.add_job('t', job_key := 'k')")
    sql("select from stowhand.claim('w', gen_random_uuid(), 1, 30, null, null, false)")
    ((running,),) = sql("select id from stowhand.jobs")
    sql("select stowhand.add_job('t', job_key := 'k')")
    rows: list[Any] = sql(
        "select attempts = max_attempts, key, locked_by, locked_at is not null from stowhand.jobs where id = %s",
        running,
    )
    assert rows == [(True, None, "w", True)]
