"""The two documents that asked for this store: their tables and views as printed, and their options in Python."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

import pytest

from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.table import TableOptions, TableStore, sql
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.stores.table.conftest import Place

TABLE = """
CREATE TABLE example_jobs (
  id                SERIAL PRIMARY KEY,
  state             text DEFAULT 'queued',
  failure_message   text,
  queued_at         timestamp with time zone DEFAULT NOW(),
  started_at        timestamp with time zone,
  finished_at       timestamp with time zone,
  process_after     timestamp with time zone,
  num_resets        integer not null default 0,
  num_failures      integer not null default 0,
  last_heartbeat_at timestamp with time zone,
  execution_logs    json[],
  worker_hostname   text not null default '',
{cancel}
  repository_id integer not null
);
"""
# As printed, the view calls the column "name", and the expressions "repository_name".
VIEW = """
CREATE VIEW example_jobs_with_repository_name AS
  SELECT ej.*, r.name AS repository_name
  FROM example_jobs ej
  JOIN repo r ON r.id = ej.repository_id;
"""


@dataclass
class ExampleJob:
    id: int
    state: str
    failure_message: str | None
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    process_after: datetime | None
    num_resets: int
    num_failures: int
    last_heartbeat_at: datetime
    execution_logs: list[ExecutionLogEntry]
    worker_hostname: str
    repository_id: int
    repository_name: str


FIRST = {"table_name": "example_jobs j", "view_name": "example_jobs_with_repository_name j"}
SECOND = {"table_name": "example_jobs", "view_name": "example_jobs_with_repository_name example_jobs"}


@pytest.mark.parametrize(
    ("names", "alias", "cancel"),
    [(FIRST, "j", ""), (SECOND, "example_jobs", "  cancel            boolean not null default false,\n")],
)
@pytest.mark.parametrize("typed", [True, False])
def test_a_document_is_served_as_printed(
    on_postgres: Place, run: Run, names: dict[str, Any], alias: str, cancel: str, typed: bool
) -> None:
    on_postgres.sql("DROP TABLE IF EXISTS example_jobs, repo CASCADE; CREATE TABLE repo (id int, name text)")
    on_postgres.sql(TABLE.format(cancel=cancel) + VIEW)
    on_postgres.sql("INSERT INTO repo VALUES (1, 'one'), (2, 'two')")
    on_postgres.sql("INSERT INTO example_jobs (repository_id) VALUES (2), (1), (1)")
    seen: list[ExampleJob] = []
    instance: dict[str, Any] = {"record": ExampleJob} if typed else {"scan": lambda row: ExampleJob(*row)}
    options: TableOptions[ExampleJob] = TableOptions(
        name="example_job_worker_store",
        column_expressions=[f"{alias}.{one.name}" for one in fields(ExampleJob)],
        order_by_expression=sql(f"{alias}.repository_id, {alias}.id"),
        max_resets=5,
        heartbeat_interval=timedelta(seconds=1),
        stalled_max_age=timedelta(seconds=5),
        **(names | instance),
    )

    async def handle(ctx: Attempt[Any], record: ExampleJob) -> None:
        seen.append(record)
        if record.id == 3:
            raise ValueError("no")

    async def main() -> None:
        async with TableStore(on_postgres.url, options) as store:
            await Worker(store, handle, WorkerOptions(once=True, concurrency=1, poll_interval=1.0)).run()

    run(main())
    assert [(one.id, one.repository_name, one.state) for one in seen] == [
        (2, "one", "processing"),
        (3, "one", "processing"),
        (1, "two", "processing"),
    ]
    assert all(one.started_at is not None and one.started_at == one.last_heartbeat_at for one in seen)
    rows = on_postgres.sql("SELECT state, num_failures, failure_message IS NULL FROM example_jobs ORDER BY id")
    assert rows == [("completed", 0, True), ("completed", 0, True), ("failed", 1, False)]
    on_postgres.sql("DROP TABLE example_jobs, repo CASCADE")
