"""Django's older driver of PostgreSQL: the queue on one of its connections.

Django itself takes psycopg 3 where it is installed, as it is beside Stowhand: so its tests cannot show this.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg2
import pytest
from django.db import connections

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import AttemptOutcome, Settlement
from stowhand.protocols.store import ClaimRequest, StoreOptions
from stowhand.stores.callers.caller import function_call
from stowhand.stores.postgres.queue.on_connection import PostgresOnConnection

TASK = "of psycopg2"


@pytest.fixture
def connection(site: None) -> Iterator[Any]:
    value = connections["postgres"].settings_dict
    instance = psycopg2.connect(dbname=value["NAME"], host=value["HOST"], port=value["PORT"], user=value["USER"])
    yield instance
    instance.close()


@pytest.fixture
def queue(connection: Any) -> PostgresOnConnection:
    return PostgresOnConnection(connection.cursor, lambda: connection, StoreOptions())


def enqueue(connection: Any, job: NewJob, schema: str = "stowhand") -> int:
    with connection.cursor() as cursor:
        cursor.execute(function_call(f'"{schema}".enqueue_text'), (msgspec.json.encode(job).decode(),))
        return int(json.loads(cursor.fetchone()[0])["id"])


def claimed(queue: PostgresOnConnection) -> Any:
    request = ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=5, lease=60.0, tasks=(TASK,))
    return list(queue.claim(request))


def test_a_job_is_enqueued_claimed_and_settled(queue: PostgresOnConnection, connection: Any) -> None:
    flags, payload = ("a", "b"), '{"args": ["é %s"]}'
    new = NewJob(task=TASK, payload=payload, flags=flags, key="of psycopg2", max_attempts=2)
    job = queue.get(enqueue(connection, new))
    assert job is not None
    assert (job.state, job.payload_text, job.flags, job.run_at.tzinfo is not None) == (
        State.QUEUED,
        payload,
        flags,
        True,
    )
    connection.commit()
    (claim,) = claimed(queue)
    assert claim.lease.job_id == job.id
    assert queue.settle(
        claim.lease, Settlement(State.ERRORED, AttemptOutcome.RETRY, error="no", error_class="ValueError")
    )
    (one,) = queue.tries(job.id)
    assert (one.error_class, one.error, one.worker) == ("ValueError", "no", "w")
    (claim,) = claimed(queue)
    assert queue.settle(claim.lease, Settlement(State.COMPLETED, AttemptOutcome.OK, result="[1]"))
    assert not queue.settle(claim.lease, Settlement(State.FAILED, AttemptOutcome.FAILED, error="late"))
    connection.commit()
    result = queue.get(job.id)
    assert result is not None
    assert (result.state, result.result, result.attempts) == (State.COMPLETED, [1], 2)


def test_the_job_commits_or_rolls_back_with_its_transaction(queue: PostgresOnConnection, connection: Any) -> None:
    job_id = enqueue(connection, NewJob(task=TASK))
    connection.rollback()
    assert queue.get(job_id) is None


def test_the_schema_can_be_installed_on_djangos_connection(queue: PostgresOnConnection, connection: Any) -> None:
    other = PostgresOnConnection(connection.cursor, lambda: connection, StoreOptions(schema="of psycopg2"))
    other.install()
    assert other.count_unfinished() == 0
    enqueue(connection, NewJob(task=TASK), "of psycopg2")
    assert other.count_unfinished() == 1
    connection.rollback()
