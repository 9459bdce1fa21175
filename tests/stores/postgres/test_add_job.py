"""`add_job`, as triggers written for graphile-worker call it."""

from __future__ import annotations

import psycopg
import pytest

from stowhand.jobs import strict_json
from tests.stores.postgres.conftest import Sql

README_COLUMNS = (
    "id, queue_name, task_identifier, payload, priority, run_at, attempts, max_attempts, last_error, created_at,"
    " updated_at, key, locked_at, locked_by, revision, flags"
)


def test_the_arguments_have_the_names_order_and_defaults_of_the_readme(sql: Sql) -> None:
    ((arguments,),) = sql(
        "select pg_get_function_arguments(oid) from pg_proc where proname = 'add_job' and pronargdefaults = 10"
        " and pronamespace = 'stowhand'::regnamespace"
    )
    names = [argument.split()[0] for argument in arguments.split(", ")]
    assert names == [
        *("identifier", "payload", "queue_name", "run_at", "max_attempts"),
        *("job_key", "priority", "flags", "job_key_mode", "work_queue", "limit_key"),
    ]
    assert arguments.count("DEFAULT") == 10


def test_the_returned_job_begins_with_the_columns_of_the_readme(sql: Sql) -> None:
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
    ((payload, serial, most, key, priority, flags, due),) = sql(
        "select payload::text, queue_name, max_attempts, key, priority, flags, run_at = now()"
        " from stowhand.add_job('t', null, null, null, null, null, null, null, null)"
    )
    assert (payload, serial, most, key, priority, flags, due) == ("{}", None, 25, None, 0, None, True)


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
        ("'t', queue_name := ''", "GWBQN", "128"),
        ("'t', work_queue := 'a,b'", "GWBQN", "no comma"),
        ("'t', work_queue := ' a'", "GWBQN", "no blank"),
        ("'t', work_queue := 'a '", "GWBQN", "no blank"),
        ("E'two\\nlines'", "GWBID", "one line"),
        ("'t', queue_name := E'\\x1b[31m'", "GWBQN", "one line"),
        ("'t', job_key := U&'a\\2028b'", "GWBJK", "one line"),
        ("'t', flags := array[E'\\t']", "22023", "one line"),
        ("'t', flags := array['a', null]", "22023", "128"),
        ("'t', flags := array['']", "22023", "128"),
        ("'t', flags := array_fill('f'::text, array[65])", "22023", "64"),
        ("'t', json_build_object('x', repeat('x', 1048576))", "54000", "1 MiB"),
        ("'t', '\"\\u0000\"'", "22P05", ""),
        ("'t', '\"\\ud800\"'", "22P02", ""),
        ("'t', '1e309'", "54000", "308"),
        ("'t', (repeat('[', 65) || repeat(']', 65))::json", "54000", "64"),
        ("'t', repeat('9', 301)::json", "54000", "300"),
        ("'t', priority := 3000000000", "42883", ""),
    ],
)
def test_invalid_arguments_are_refused_with_the_code_of_the_readme_and_the_limit(
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
        assert len(list(listener.notifies(timeout=20, stop_after=1))) == 1
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


@pytest.mark.parametrize(
    "payload",
    [
        "json_build_object('n', 1)",
        "jsonb_build_object('n', 1)",
        *(f"""'{{"n": 1}}'{kind}""" for kind in ("", "::text", "::json", "::jsonb")),
    ],
)
@pytest.mark.parametrize("named", ["", "payload := "])
def test_a_payload_may_be_json_or_jsonb_or_a_text(sql: Sql, payload: str, named: str) -> None:
    ((got, priority),) = sql(
        f"select payload::jsonb, priority from stowhand.add_job('t', {named}{payload}, priority := 3, job_key := 'k')"
    )
    assert (got, priority) == ({"n": 1}, 3)


def test_a_parameter_without_a_type_is_a_payload(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("prepare adding as select (stowhand.add_job($1, payload := $2, queue_name := $3)).id")
        connection.execute("""execute adding('t', '{"n": 1}', 'q')""")
        row = connection.execute("select task, payload, serial from stowhand.live").fetchone()
    assert row == ("t", {"n": 1}, "q")


# Texts and what strict_json says of them.
SOUND = (
    "1e308",
    "-1E-308",
    "0.5e+00000000308",
    "[1e2, 1.5E3, 100e10]",
    "9" * 300,
    f"0.{'1' * 400}",
    "[" * 64 + "]" * 64,
    '{"a":' * 64 + "1" + "}" * 64,
    "[" + ",".join(["[{}]"] * 500) + "]",
    '"' + "[" * 200 + '"',
    '"1e999"',
    '"' + "7" * 400 + '"',
    '["a\\"", "1e999", {"x\\\\": "1e999"}]',
)
UNSOUND = (
    "1e309",
    "1E-309",
    "[0, 2e0400]",
    '{"1e1": 1e1000}',
    "1" * 301,
    f"[{'1' * 301}.5]",
    "[" * 65 + "]" * 65,
    '{"a":[' * 33 + "]}" * 33,
    '["a\\"", 1e999]',
    '{"x\\\\": 1e999}',
    "[" + ",".join(["[{}]"] * 500) + "," + "[" * 64 + "]" * 64 + "]",
)


@pytest.mark.parametrize("text", [*SOUND, *UNSOUND], ids=lambda text: text[:20])
def test_sql_refuses_the_numbers_and_the_depth_that_python_refuses(sql: Sql, text: str) -> None:
    assert (strict_json.find_problem(text, strict_json.MAX_WRITTEN_BYTES) is None) == (text in SOUND)
    if text in SOUND:
        sql("select stowhand.add_job('t', %s::json)", text)
    else:
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            sql("select stowhand.add_job('t', %s::json)", text)
    assert sql("select count(*) from stowhand.live") == [(text in SOUND,)]


def test_a_large_payload_is_examined_in_a_moment(postgres_url: str) -> None:
    deep = "[" + ",".join(['{"name": "x", "n": [1, 2.5e10]}'] * 30_000) + "]"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("set statement_timeout = '30s'")
        connection.execute("select stowhand.add_job('t', %s::json)", (deep,))


def test_an_enqueue_does_not_return_the_token_of_a_running_job(sql: Sql) -> None:
    sql("select stowhand.add_job('t', job_key := 'k')")
    sql("select from stowhand.claim('w', gen_random_uuid(), 1, 30, null, null, false)")
    ((state, token),) = sql("select state, token from stowhand.enqueue('t', _key => 'k', _mode => 'unsafe_dedupe')")
    assert (state, token) == ("processing", None)


def test_the_returned_row_is_that_of_the_view(sql: Sql) -> None:
    sql("select stowhand.add_job('t', job_key := 'k', queue_name := 'q')")
    sql("select from stowhand.claim('w', gen_random_uuid(), 1, 30, null, null, false)")
    ((same,),) = sql(
        "select to_jsonb(a) = (select to_jsonb(j) from stowhand.jobs j where j.id = a.id)"
        " from stowhand.shown((select l from stowhand.live l)) a"
    )
    assert same
    ((same,),) = sql(
        "with a as materialized (select * from stowhand.add_job('t', flags := array['f'], max_attempts := 3))"
        " select to_jsonb(a)::text from a"
    )
    assert sql("select to_jsonb(j)::text from stowhand.jobs j where j.flags is not null") == [(same,)]


def test_jobs_are_added_in_a_session_without_standard_conforming_strings(postgres_url: str, sql: Sql) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("set standard_conforming_strings = off")
        connection.execute("set escape_string_warning = on")
        payload = '["a\\u0041\\"", 12345678901234567890]'
        connection.execute("select stowhand.add_job('t', %s::json, 'q', job_key := 'k', flags := '{f}')", (payload,))
        with pytest.raises(psycopg.Error) as raised:
            connection.execute("select stowhand.add_job(E'two\\nlines')")
        assert raised.value.sqlstate == "GWBID"
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            connection.execute("""select stowhand.add_job('t', '["a", 1e999]')""")
    assert sql("select payload::text from stowhand.live") == [(payload,)]
