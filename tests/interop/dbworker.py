"""The other program on a table: Sourcegraph's dbworker, acted in SQL of our own wording.

What it does is a matter of public fact: it looks at the best fifty candidates, takes its times from the program's
clock, compares no host name when it marks a record, and resets what no transaction holds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

NEWER = """
create table jobs (
  id serial primary key, state text default 'queued', failure_message text, queued_at timestamptz default now(),
  started_at timestamptz, finished_at timestamptz, process_after timestamptz, num_resets integer not null default 0,
  num_failures integer not null default 0, last_heartbeat_at timestamptz, execution_logs json[],
  worker_hostname text not null default '', cancel boolean not null default false, size integer not null default 7
)"""
OLDER = """
create table jobs (
  id serial primary key, state text default 'queued', failure_message text, started_at timestamp, finished_at timestamp,
  process_after timestamp, num_resets integer not null default 0, num_failures integer not null default 0,
  last_heartbeat_at timestamp, execution_logs json[], worker_hostname text not null default '',
  size integer not null default 7
)"""
CANDIDATES = """
with best as (
  select id from jobs
  where (state = 'queued' and (process_after is null or process_after <= %(now)s))
     or (%(retry)s > 0 and state = 'errored' and extract(epoch from %(now)s - finished_at) > %(retry)s)
  order by id limit 50
), free as (
  select jobs.id from jobs join best using (id)
  where state in ('queued', 'errored')
  order by id for update of jobs skip locked limit 1
)
update jobs set state = 'processing', started_at = %(now)s, last_heartbeat_at = %(now)s, finished_at = null,
  failure_message = null, execution_logs = null, worker_hostname = %(host)s
where id in (select id from free) returning id"""
RESET = """
with stale as (
  select id from jobs
  where state = 'processing' and extract(epoch from %(now)s - last_heartbeat_at) > %(age)s and num_resets {op} %(most)s
  for update skip locked
)
update jobs set {change} where id in (select id from stale) returning id"""


class Theirs:
    """One of its processes. Sessions are in UTC, as it must have them."""

    def __init__(self, url: str, host: str = "their-host", *, newer: bool = True, retry_after: float = 0.0) -> None:
        self._connection = psycopg.connect(url, autocommit=True, row_factory=dict_row, options="-c timezone=UTC")
        self._host, self._newer, self._retry = host, newer, retry_after
        self._cancel = "cancel" if newer else "false"

    def close(self) -> None:
        self._connection.close()

    def sql(self, statement: str, values: Any = None) -> list[dict[str, Any]]:
        """Whatever; its rows."""
        cursor = self._connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def row(self, job_id: int) -> dict[str, Any]:
        ((row),) = self.sql("select * from jobs where id = %s", (job_id,))
        return row

    def dequeue(self) -> int | None:
        """The next record, now processing under its host's name."""
        result = self.sql(CANDIDATES, {"now": self._now(), "host": self._host, "retry": self._retry})
        return result[0]["id"] if result else None

    def heartbeat(self, ids: Sequence[int]) -> tuple[set[int], set[int]]:
        """Those that it still knows as running, and of them those that are to be canceled."""
        rows = self.sql(
            f"update jobs set last_heartbeat_at = %s where id = any(%s) and state = 'processing'"
            f" returning id, {self._cancel} as cancel",
            (self._now(), list(ids)),
        )
        return {row["id"] for row in rows}, {row["id"] for row in rows if row["cancel"]}

    def complete(self, job_id: int) -> bool:
        """Whoever holds it."""
        return self._mark(job_id, "'completed'", None, "num_failures")

    def errored(self, job_id: int, message: str, max_attempts: int) -> bool:
        """Failed instead when that makes ``max_attempts`` failures."""
        state = (
            f"case when {self._cancel} then 'canceled' when num_failures + 1 >= {max_attempts} then 'failed'"
            " else 'errored' end"
        )
        return self._mark(job_id, state, message, f"num_failures + (not {self._cancel})::int")

    def reset(self, age: float, max_resets: int) -> tuple[list[int], list[int]]:
        """What went back to queued, and what failed."""
        queued_at = ", queued_at = clock_timestamp()" if self._newer else ""
        values = {"now": self._now(), "age": age, "most": max_resets}
        again = f"state = 'queued', started_at = null, num_resets = num_resets + 1{queued_at}"
        over = "state = 'failed', finished_at = clock_timestamp(), failure_message = 'died too often'"
        first = self.sql(RESET.format(op="<", change=again), values)
        return [row["id"] for row in first], [row["id"] for row in self.sql(RESET.format(op=">=", change=over), values)]

    def requeue(self, job_id: int, after: timedelta) -> None:
        """Whatever its state is."""
        more = ", queued_at = clock_timestamp(), cancel = false" if self._newer else ""
        self.sql(
            f"update jobs set state = 'queued', started_at = null, process_after = %s{more} where id = %s",
            (self._now() + after, job_id),
        )

    def add_log(self, job_id: int, entry: dict[str, Any]) -> int:
        """The entry's number."""
        ((row),) = self.sql(
            "update jobs set execution_logs = execution_logs || %s::json where id = %s"
            " returning array_length(execution_logs, 1) as number",
            (json.dumps(entry), job_id),
        )
        return int(row["number"])

    def _mark(self, job_id: int, state: str, message: str | None, failures: str) -> bool:
        return bool(
            self.sql(
                f"update jobs set state = {state}, finished_at = clock_timestamp(), failure_message = %s,"
                f" num_failures = {failures} where id = %s and state = 'processing' returning id",
                (message, job_id),
            )
        )

    def _now(self) -> datetime:
        now = datetime.now(UTC)
        return now if self._newer else now.replace(tzinfo=None)
