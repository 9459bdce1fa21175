"""`add_jobs`, and keyed `add_job` in SQL: graphile-worker's cases 4 to 35, as SQL sees them."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import Job
from stowhand.stores.postgres.queue import PostgresStore
from tests.contract.test_options import options
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import wait_for_a_waiter

SPECS = """array(select row(s.task, s.payload::json, null, null, null, s.key, null, null, null)::stowhand.job_spec
  from (values {rows}) as s(task, payload, key))"""


def specs(*jobs: tuple[str, str | None, str | None]) -> str:
    """An array of job_spec as an expression."""
    literal = [", ".join("null" if value is None else f"'{value}'" for value in job) for job in jobs]
    return SPECS.format(rows=", ".join(f"({job})" for job in literal))


def test_jobs_are_returned_in_the_order_of_the_specs(sql: Sql) -> None:
    sql("select stowhand.add_job('elder', job_key := 'b')")
    rows = sql(
        "select task_identifier, payload::text, key, revision from stowhand.add_jobs("
        + specs(
            ("one", "[1]", "z"), ("two", None, None), ("three", "{}", "b"), ("four", '"x"', "a"), ("five", "5", None)
        )
        + ")"
    )
    assert rows == [
        ("one", "[1]", "z", 0),
        ("two", "{}", None, 0),
        ("three", "{}", "b", 1),
        ("four", '"x"', "a", 0),
        ("five", "5", None, 0),
    ]
    assert sql("select count(*) from stowhand.live") == [(5,)]


def test_a_spec_can_set_every_field(sql: Sql) -> None:
    rows = sql(
        "select queue_name, run_at = now() + interval '1 hour', max_attempts, key, priority, flags, work_queue"
        " from stowhand.add_jobs(array[('t', '{}', 'q', now() + interval '1 hour', 3, 'k', -5, '{b,a,b}', 'mail')"
        "::stowhand.job_spec])"
    )
    assert rows == [("q", True, 3, "k", -5, ["b", "a"], "mail")]


SQL_NAMES = {"serial": "queue_name", "queue": "work_queue", "key": "job_key"}
"""Names that the functions of the founding document give to options."""
NOT_IN_SQL = ("max_resets",)


@pytest.mark.parametrize("way", ["add_job", "add_jobs", "the view"])
def test_every_declared_option_of_a_job_can_be_set_in_sql(sql: Sql, store: PostgresStore, run: Any, way: str) -> None:
    wanted = options(*NOT_IN_SQL)
    values = {
        SQL_NAMES.get(name, name): list(value) if isinstance(value, tuple) else value for name, value in wanted.items()
    }
    match way:
        case "add_job":
            arguments = ", ".join(f"{name} => %s" for name in values)
            rows = sql(f"select id from stowhand.add_job('t', {arguments})", *values.values())
        case "add_jobs":
            spec = json.dumps({"identifier": "t", **values})
            rows = sql(
                "select id from stowhand.add_jobs(array["
                "json_populate_record(null::stowhand.job_spec, %s)]::stowhand.job_spec[])",
                spec,
            )
        case _:
            columns = ", ".join("key" if name == "job_key" else name for name in values)
            places = ", ".join(["%s"] * len(values))
            rows = sql(
                f"insert into stowhand.jobs (task_identifier, {columns}) values ('t', {places}) returning id",
                *values.values(),
            )

    async def read() -> Job | None:
        job = await store.jobs.get(rows[0][0])
        await store.close()
        return job

    job = run(read())
    assert {name: getattr(job, name) for name in wanted} == wanted


def test_specs_may_be_read_from_json(sql: Sql) -> None:
    text = '[{"identifier": "a", "payload": {"n": 1}}, {"identifier": "b", "job_key": "k"}]'
    rows = sql(
        "select task_identifier, payload::text, max_attempts, key from stowhand.add_jobs("
        "array(select s from json_populate_recordset(null::stowhand.job_spec, %s::json) s))",
        text,
    )
    assert rows == [("a", '{"n": 1}', 25, None), ("b", "{}", 25, "k")]


@pytest.mark.parametrize("none", ["'{}'", "null"])
def test_no_specs_add_no_jobs(sql: Sql, none: str) -> None:
    assert sql(f"select * from stowhand.add_jobs({none})") == []


def test_a_duplicate_key_is_refused_and_no_job_is_inserted(sql: Sql) -> None:
    with pytest.raises(psycopg.errors.CardinalityViolation, match="k1"):
        sql("select * from stowhand.add_jobs(" + specs(("a", None, None), ("b", None, "k1"), ("c", None, "k1")) + ")")
    assert sql("select count(*) from stowhand.live") == [(0,)]


def test_one_invalid_spec_refuses_all_jobs(sql: Sql) -> None:
    with pytest.raises(psycopg.Error) as raised:
        sql("select * from stowhand.add_jobs(" + specs(("a", None, None), ("x" * 129, None, None)) + ")")
    assert raised.value.sqlstate == "GWBID"
    assert sql("select count(*) from stowhand.live") == [(0,)]


@pytest.mark.parametrize(("argument", "kept"), [("true", True), ("false", False), ("null", False)])
def test_the_run_time_is_kept_on_request_but_not_after_an_attempt(sql: Sql, argument: str, kept: bool) -> None:
    sql("select stowhand.add_job('t', job_key := 'k', run_at := now() + interval '1 day')")
    call = f"stowhand.add_jobs({specs(('t', None, 'k'))}, job_key_preserve_run_at := {argument})"
    assert sql(f"select run_at > now() + interval '1 hour' from {call}") == [(kept,)]
    sql("update stowhand.live set state = 'errored', attempts = 1, run_at = now() + interval '1 day', last_error = 'x'")
    assert sql(f"select run_at > now(), attempts, last_error, state from {call}") == [(False, 0, None, "queued")]


def test_arrays_of_a_waiting_job_are_appended_and_anything_else_is_replaced(sql: Sql) -> None:
    seen = [
        sql("select payload::text from stowhand.add_jobs(" + specs(("t", payload, "k")) + ")")[0][0]
        for payload in ("[1]", "[2.50, 3]", "[]", '{"a": 1}', "[4]", "[5]")
    ]
    assert seen == ["[1]", "[1,2.50, 3]", "[1,2.50, 3]", '{"a": 1}', "[4]", "[4,5]"]


def test_a_running_holder_keeps_its_payload_and_loses_its_key(sql: Sql) -> None:
    sql("select stowhand.add_job('t', '[1]', job_key := 'k')")
    sql("select from stowhand.claim('w', gen_random_uuid(), 1, 30, null, null, false)")
    sql("select * from stowhand.add_jobs(" + specs(("t", "[2]", "k")) + ")")
    rows = sql("select payload::text, key, attempts = max_attempts, locked_by from stowhand.jobs order by id")
    assert rows == [("[1]", None, False, "w"), ("[2]", "k", False, None)]


# -- keys, by add_job -----------------------------------------------------------------------------------


def test_the_job_runs_once_with_the_newest_payload_as_the_readme_says(postgres_url: str, sql: Sql) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            b"""
            BEGIN;
            SELECT stowhand.add_job('send_email', '{"count": 1}', job_key := 'abc');
            SELECT stowhand.add_job('send_email', '{"count": 2}', job_key := 'abc');
            COMMIT;
            """
        )
    assert sql("select task, payload, revision from stowhand.live") == [("send_email", {"count": 2}, 1)]


def test_revisions_and_run_times_of_all_modes_in_a_row(sql: Sql) -> None:
    ((base,),) = sql("select date_trunc('hour', now())")  # once: an hour may end meanwhile
    seen = [
        sql(
            "select revision, run_at - %s from stowhand.add_job('t', job_key := 'k',"
            " run_at := %s + %s * interval '1 hour', job_key_mode := %s)",
            base,
            base,
            hours + 1,
            mode,
        )[0]
        for hours, mode in ((1, "replace"), (2, "preserve_run_at"), (3, "unsafe_dedupe"), (4, "replace"))
    ]
    assert [(revision, run_at.total_seconds() / 3600) for revision, run_at in seen] == [(0, 2), (1, 2), (2, 2), (3, 5)]


def test_flags_of_a_key_are_replaced(sql: Sql) -> None:
    sql("select stowhand.add_job('t', job_key := 'k', flags := '{a,b}')")
    assert sql("select flags from stowhand.add_job('t', job_key := 'k', flags := '{c}')") == [(["c"],)]
    assert sql("select flags from stowhand.add_job('t', job_key := 'k')") == [(None,)]
    assert sql("select flags from stowhand.add_job('t', flags := '{}')") == [(None,)]


@pytest.mark.parametrize("mode", ["replace", "preserve_run_at"])
def test_a_failed_holder_is_revived_under_its_id(sql: Sql, mode: str) -> None:
    ((old,),) = sql("select id from stowhand.add_job('t', job_key := 'k', max_attempts := 1)")
    sql("select * from stowhand.permanently_fail_jobs(array[%s::bigint])", old)
    ((new, state, attempts, due),) = sql(
        "select id, state, attempts, run_at = now() from stowhand.add_job('t', job_key := 'k', job_key_mode := %s)",
        mode,
    )
    assert (new, state, attempts, due) == (old, "queued", 0, True)


# -- remove_job -----------------------------------------------------------------------------------------


def test_a_waiting_job_is_removed_and_returned(sql: Sql) -> None:
    sql("select stowhand.add_job('send_email', '{\"n\": 1}', job_key := 'abc')")
    assert sql("select task_identifier, payload, key from stowhand.remove_job('abc')") == [
        ("send_email", {"n": 1}, "abc")
    ]
    assert sql("select count(*) from stowhand.live") == [(0,)]


@pytest.mark.parametrize("key", ["'unknown'", "null", "''"])
def test_removing_an_unknown_key_returns_null(sql: Sql, key: str) -> None:
    sql("select stowhand.add_job('t', job_key := 'k')")
    assert sql(f"select stowhand.remove_job({key}) is null, stowhand.remove_job({key})::text is null") == [(True, True)]
    assert sql(f"select id from stowhand.remove_job({key})") == [(None,)]
    assert sql("select count(*) from stowhand.live") == [(1,)]


def test_a_running_job_is_not_removed_but_will_not_run_again(sql: Sql) -> None:
    sql("select stowhand.add_job('t', job_key := 'k')")
    sql("select from stowhand.claim('w', gen_random_uuid(), 1, 30, null, null, false)")
    rows = sql("select state, key, attempts = max_attempts, locked_by from stowhand.remove_job('k')")
    assert rows == [("processing", None, False, "w")]
    assert sql("select count(*) from stowhand.live where state = 'processing'") == [(1,)]
    sql("select stowhand.force_unlock_workers('{w}')")
    assert sql("select state from stowhand.everything") == [("canceled",)]


def test_a_removal_that_waited_removes_the_newer_job_with_the_key(postgres_url: str, sql: Sql) -> None:
    sql("select stowhand.add_job('t', '1', job_key := 'k')")
    sql("select from stowhand.claim('w', gen_random_uuid(), 1, 30, null, null, false)")
    with psycopg.connect(postgres_url) as producer, ThreadPoolExecutor(1) as threads:
        producer.execute("select stowhand.add_job('t', '2', job_key := 'k')")
        removal = threads.submit(sql, "select state, payload from stowhand.remove_job('k')")
        wait_for_a_waiter(producer)
        producer.commit()
        assert removal.result(timeout=60) == [("queued", 2)]
    assert sql("select key, state from stowhand.live") == [(None, "processing")]


# -- several at once ------------------------------------------------------------------------------------


@pytest.mark.parametrize("skipped", [0, 7])
def test_calls_with_the_same_keys_in_opposite_order_do_not_deadlock(postgres_url: str, sql: Sql, skipped: int) -> None:
    keys = [("t", "[1]", f"{letter}{number}") for number in range(10) for letter in "aBäZ"]
    ready = threading.Barrier(2)

    def serve(order: list[Any]) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            for _ in range(15):
                ready.wait(60)
                connection.execute(f"select count(*) from stowhand.add_jobs({specs(*order)})".encode())

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(serve, order) for order in (keys, keys[skipped:][::-1])]:
            done.result(timeout=60)
    lengths = {length for (length,) in sql("select json_array_length(payload) from stowhand.live")}
    assert lengths == ({15, 30} if skipped else {30})


def test_sql_passes_the_key_of_a_limit(sql: Sql) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match='task "call" has no limit with a key'):
        sql("select stowhand.add_job('call', limit_key := 'eu')")
    sql(
        """select stowhand.declare_tasks('{"queues": {"call": "default"},
        "tasks": {"call": {"key_limit": "api"}}, "limits": {"api": {"key_concurrency": 1}}}')"""
    )
    for key in ("eu", "eu", "us"):
        sql("select stowhand.add_job('call', limit_key := %s)", key)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="A job has one key"):
        sql("select stowhand.add_job('call', limit_key := 'eu', queue_name := 'q')")
    claimed = sql("select serial from stowhand.claim('w', gen_random_uuid(), 10, 30, null, null, false) where id > 0")
    assert sorted(claimed) == [("api\teu",), ("api\tus",)]
