"""The state machine as CHECK constraints: no program error can store what the law does not know."""

from __future__ import annotations

import psycopg
import pytest

from tests.stores.postgres.conftest import Sql

HELD = "state = 'processing', token = gen_random_uuid(), lease_until = now(), worker = 'w'"


@pytest.mark.parametrize(
    "change",
    [
        "state = 'processing'",
        "token = gen_random_uuid()",
        f"{HELD}, lease_until = null",
        f"{HELD}, settled_token = gen_random_uuid()",
        "state = 'failed'",
        "finished_at = now()",
        "state = 'completed', finished_at = now()",
        "state = 'unheard of'",
        "attempts = -1",
        "attempts = 26",
        "max_attempts = 0",
        "resets = -1",
        "cancel_requested = true",
        "loses_retries = 'replaced', key = 'k'",
        "scout = true",
        "task = ''",
        "key = ''",
    ],
)
def test_a_row_that_contradicts_itself_is_refused(sql: Sql, change: str) -> None:
    sql("select stowhand.add_job('t')")
    assignment = change.replace("lease_until = now(), worker = 'w', lease_until", "worker = 'w', lease_until")
    with pytest.raises(psycopg.errors.CheckViolation):
        sql(f"update stowhand.live set {assignment}")


def test_a_row_in_each_lawful_state_is_accepted(sql: Sql) -> None:
    sql("select stowhand.add_job('t')")
    sql(f"update stowhand.live set {HELD}, cancel_requested = true")
    sql(
        "update stowhand.live set state = 'failed', token = null, lease_until = null, worker = null,"
        " finished_at = now(), settled_token = gen_random_uuid()"
    )
    sql("update stowhand.live set state = 'errored', finished_at = null, cancel_requested = false")


@pytest.mark.parametrize("change", ["holder_id = 1", "hint_run_at = now()", "hint_priority = 0, hint_id = 1"])
def test_a_queue_that_contradicts_itself_is_refused(sql: Sql, change: str) -> None:
    sql("insert into stowhand.queues (name) values ('q')")
    with pytest.raises(psycopg.errors.CheckViolation):
        sql(f"update stowhand.queues set {change}")
