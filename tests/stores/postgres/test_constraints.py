"""The state machine as CHECK constraints: no program error can store what the law does not know."""

from __future__ import annotations

import re

import psycopg
import pytest

from tests.stores.postgres.conftest import Sql

HELD = "state = 'processing', token = gen_random_uuid(), lease_until = now(), worker = 'w'"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("state = 'processing'", "leased_iff_processing"),
        ("token = gen_random_uuid()", "leased_iff_processing"),
        (f"{HELD}, lease_until = null", "leased_iff_processing"),
        (f"{HELD}, worker = null", "leased_iff_processing"),
        (f"{HELD}, settled_token = gen_random_uuid()", "settled_unless_processing"),
        (f"{HELD}, finished_at = now()", "finished_iff_failed"),
        ("state = 'failed'", "finished_iff_failed"),
        ("finished_at = now()", "finished_iff_failed"),
        ("state = 'completed', finished_at = now()", "finished_iff_failed"),
        ("state = 'unheard of'", "known_state"),
        ("attempts = -1", "attempts_in_range"),
        ("attempts = 26", "attempts_in_range"),
        ("max_attempts = 0", "attempts_in_range"),
        ("resets = -1", "resets_in_range"),
        ("max_resets = -1", "resets_in_range"),
        ("cancel_requested = true", "asked_while_processing"),
        ("loses_retries = 'replaced', key = 'k'", "keyless_if_replaced"),
        ("loses_retries = 'unheard of'", "keyless_if_replaced"),
        ("absorbed = true", "absorbed_while_waiting"),
        ("task = ''", "task_length"),
        ("task = repeat('t', 129)", "task_length"),
        ("serial = repeat('q', 129)", "serial_length"),
        ("queue = ''", "queue_length"),
        ("queue = repeat('q', 129)", "queue_length"),
        ("queue = 'default'", "queue_is_null_for_default"),
        ("queue = 'a,b'", "queue_without_comma_and_outer_blanks"),
        ("queue = 'a '", "queue_without_comma_and_outer_blanks"),
        ("key = ''", "key_length"),
        ("key = repeat('k', 513)", "key_length"),
        ("flags = array_fill('f'::text, array[65])", "flags_count"),
        ("payload = to_json(repeat('x', 1048575))", "payload_size"),
    ],
)
def test_an_inconsistent_row_is_refused_with_the_name_of_the_rule(sql: Sql, change: str, rule: str) -> None:
    sql("select stowhand.add_job('t')")
    assigned = dict(word.split(" = ", 1) for word in re.split(r", (?=\w+ = )", change))
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        sql("update stowhand.live set " + ", ".join(f"{column} = {value}" for column, value in assigned.items()))
    message = refused.value.diag
    assert (message.constraint_name, message.table_name, message.schema_name) == (rule, "live", "stowhand")
    assert message.message_primary == f'new row for relation "live" violates check constraint "{rule}"'


def test_a_row_in_each_valid_state_is_accepted(sql: Sql) -> None:
    sql("select stowhand.add_job('t')")
    sql(f"update stowhand.live set {HELD}, cancel_requested = true")
    sql(
        "update stowhand.live set state = 'failed', token = null, lease_until = null, worker = null,"
        " finished_at = now(), settled_token = gen_random_uuid()"
    )
    sql("update stowhand.live set state = 'errored', finished_at = null, cancel_requested = false")
    # At the limits.
    sql(
        "update stowhand.live set task = repeat('t', 128), serial = repeat('q', 128), key = repeat('k', 512),"
        " absorbed = true, max_resets = 0, flags = array_fill('f'::text, array[64]), attempts = 25,"
        " payload = to_json(repeat('x', 1048574))"
    )
    sql("update stowhand.live set key = null, loses_retries = 'removed'")


@pytest.mark.parametrize("change", ["hint_run_at = now()", "hint_priority = 0, hint_id = 1"])
def test_an_inconsistent_serial_key_is_refused(sql: Sql, change: str) -> None:
    sql("insert into stowhand.limit_keys (name) values ('q')")
    with pytest.raises(psycopg.errors.CheckViolation):
        sql(f"update stowhand.limit_keys set {change}")
