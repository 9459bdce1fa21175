"""One database, two serial keys: the same SQL for both, and their rows in one form."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row

from stowhand.jobs.lifecycle import Retry, settle
from stowhand.protocols.store import ClaimRequest, StoreOptions
from stowhand.retry import natural
from stowhand.stores.postgres.queue import PostgresStore

Row = dict[str, Any]

OLD_ROWS = """
select id, task_identifier, queue_name, payload, priority, run_at, attempts, max_attempts, last_error, key, revision,
  locked_at is not null as locked, array(select jsonb_object_keys(flags)) as flags
from graphile_worker.jobs order by id"""
NEW_ROWS = """
select j.id, t.identifier as task_identifier, q.queue_name, j.payload, j.priority, j.run_at, j.attempts,
  j.max_attempts, j.last_error, j.key, j.revision, j.locked_at is not null as locked,
  array(select jsonb_object_keys(j.flags)) as flags
from graphile_worker._private_jobs j
join graphile_worker._private_tasks t on t.id = j.task_id
left join graphile_worker._private_job_queues q on q.id = j.job_queue_id order by j.id"""
OUR_ROWS = """
select id, task_identifier, queue_name, payload, priority, run_at, attempts, max_attempts, last_error, key, revision,
  locked_at is not null as locked, coalesce(flags, '{}') as flags
from stowhand.jobs order by id"""


class Side(Protocol):
    """A queue that understands the README's SQL."""

    schema: str

    def lock(self, task: str) -> None:
        """A worker takes the job of this task."""

    def fail(self, task: str, error: str) -> None:
        """Fail the job as the worker that holds it."""

    def rows(self) -> list[Row]:
        """Every job, in id order, ids as ranks."""

    def execute(self, statement: str) -> object:
        """The rows that a statement gives, as its jobs' keys or tasks; or the SQLSTATE it was refused with."""


class _Sql:
    schema: str

    def __init__(self, url: str, query: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)
        self._query = query
        self._ranks: dict[int, int] = {}

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str) -> object:
        text = statement.replace("{schema}", self.schema)
        text = re.sub(r"id\((\d+)\)", lambda place: str(self._id(int(place[1]))), text)
        try:
            cursor = self._connection.execute(text.encode())
            result = cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            return error.sqlstate
        jobs = [row for row in result if row.get("id") is not None]
        return sorted((row["key"] or "", json.dumps(row.get("payload")), row["max_attempts"]) for row in jobs)

    def rows(self) -> list[Row]:
        return [self._plain(row) for row in self._connection.execute(self._query.encode()).fetchall()]

    def _id(self, rank: int) -> int:
        return next((id_ for id_, given in self._ranks.items() if given == rank), 10**12)

    def _plain(self, row: Row) -> Row:
        rank = self._ranks.setdefault(row["id"], len(self._ranks) + 1)
        near = abs(row["run_at"] - datetime.now(UTC)) < timedelta(minutes=10)
        run_at = "now" if near else row["run_at"].astimezone(UTC).isoformat()
        return row | {"id": rank, "run_at": run_at, "flags": sorted(row["flags"])}


class Theirs(_Sql):
    """The original's schema. Its workers are acted by hand: what they write is public knowledge."""

    schema = "graphile_worker"

    def __init__(self, url: str, version: str) -> None:
        new = version >= "0.16"
        super().__init__(url, NEW_ROWS if new else OLD_ROWS)
        self._table = "_private_jobs" if new else "jobs"
        self._of = (
            "task_id = (select id from graphile_worker._private_tasks where identifier = %s)"
            if new
            else "task_identifier = %s"
        )

    def lock(self, task: str) -> None:
        self._update("locked_by = 'worker', locked_at = now(), attempts = attempts + 1", task, "locked_at is null")

    def fail(self, task: str, error: str) -> None:
        value = error.replace("'", "")
        wait = "run_at = greatest(now(), run_at) + exp(least(attempts, 10)) * interval '1 second'"
        self._update(
            f"last_error = '{value}', {wait}, locked_by = null, locked_at = null", task, "locked_at is not null"
        )

    def _update(self, what: str, task: str, which: str) -> None:
        text = f"update graphile_worker.{self._table} set {what} where {self._of} and {which}"
        assert self._connection.execute(text.encode(), (task,)).rowcount == 1, (what, task)


class Ours(_Sql):
    """Our schema, with a real claim and a real settlement."""

    schema = "stowhand"

    def __init__(self, url: str) -> None:
        super().__init__(url, OUR_ROWS)
        self._url = url
        self._claims: dict[str, Any] = {}

    def lock(self, task: str) -> None:
        async def claim() -> None:
            store = PostgresStore(self._url, StoreOptions())
            try:
                request = ClaimRequest(worker="worker", token=str(uuid.uuid4()), limit=1, lease=60, tasks=(task,))
                (self._claims[task],) = await store.claim(request)
            finally:
                await store.close()

        asyncio.run(claim())

    def fail(self, task: str, error: str) -> None:
        async def write() -> None:
            claim = self._claims[task]
            store = PostgresStore(self._url, StoreOptions())
            numbers = {"attempts": claim.attempts, "max_attempts": claim.max_attempts}
            try:
                await store.settle([(claim.lease, settle(Retry(error), **numbers, backoff=natural))])
            finally:
                await store.close()

        asyncio.run(write())
