"""Reader for the questions of the kernel, each in a transaction whose settings ensure plans by index."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from stowhand.jobs.job import Job
from stowhand.stores.database.link import Session, fetch
from stowhand.stores.kernel.dialect import Dialect
from stowhand.stores.kernel.question import Question, Row
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.rows import read_job

T = TypeVar("T")
# Statistics may be wrong under load, and starting parallel workers takes longer than the read.
PLANNER_SETTINGS = b"""
    select pg_catalog.set_config('enable_seqscan', 'off', true),
           pg_catalog.set_config('enable_bitmapscan', 'off', true),
           pg_catalog.set_config('enable_sort', 'off', true),
           pg_catalog.set_config('enable_hashjoin', 'off', true),
           pg_catalog.set_config('enable_mergejoin', 'off', true),
           pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true),
           pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
           pg_catalog.set_config('jit', 'off', true)
"""
_VALUE_TYPES = {
    **dict.fromkeys(("task", "serial", "key", "flag", "queue", "worker", "error", "state", "above"), "text"),
    **dict.fromkeys(("id", "parent_id", "after", "below", "first", "limit", "rows", "max_rows", "max_jobs"), "bigint"),
    **dict.fromkeys(("since", "until", "at", "before", "run_at"), "timestamptz"),
    **dict.fromkeys(("states", "tasks", "serials", "closed"), "text[]"),
    **dict.fromkeys(("priority", "seconds"), "int"),
    "ids": "bigint[]",
}
_NOW_EXPRESSION = "coalesce(%(now)s::timestamptz, now())"
# The conditions are those of the index live_by_task.
_READY_JOBS = (
    "{schema}.live where queue is null and worker is null and finished_at is null and serial is null and resets < 2"
)
_QUEUED_JOBS = (
    "{schema}.live where queue is not null and worker is null and finished_at is null and serial is null and resets < 2"
)
_JOBS_IN_ORDER = "{schema}.live where state in ('queued', 'errored') and serial is null and resets < 2"
_SERIAL_JOBS = "{schema}.live where state in ('queued', 'errored') and serial is not null and resets < 2"


def _join_next(columns: str, jobs: str) -> str:
    """Return the join of a row with the first job after it in an index.

    The limit in the lateral subquery enforces the use of the index. Without statistics, the planner would read the
    whole table in each step of a join by id.
    """
    here = ", ".join(f"here.{column}" for column in columns.split(", "))
    order = f"{columns}, run_at, id"
    return f"cross join lateral (select {order} from {jobs} and ({columns}) > ({here}) order by {order} limit 1) as job"


# All tasks together: one row for each minute or hour that was added up, and every row of the newest minutes.
_TOTAL_THROUGHPUT = """(
    select 60 as seconds, begins, '' as task, tally from {schema}.throughput where seconds = -60
    union all
    select 3600, begins, '', tally from {schema}.throughput where seconds = -3600
    union all
    select 60, begins, '', tally from {schema}.throughput where seconds = 60 and begins > (
        select coalesce(max(begins), '-infinity') from {schema}.throughput where seconds = -60)
) as total"""
_DIALECT_FILLINGS = {
    "live": "{schema}.live",
    "past": "{schema}.history",
    "live_jobs": "{schema}.live_jobs",
    "past_jobs": "{schema}.past_jobs",
    "workers": "{schema}.workers",
    "app_versions": "{schema}.app_versions",
    "throughput": "{schema}.throughput",
    "total_throughput": _TOTAL_THROUGHPUT,
    "tries": "{schema}.tries",
    "pauses": "{schema}.pauses",
    "task_queues": "{schema}.task_queues",
    "limits": (
        "(select name, declared::text as declared, override::text as override, next_start, held_until"
        " from {schema}.limits)"
    ),
    "task_limits": "{schema}.task_limits",
    "steps": "{schema}.steps",
    "limit_keys": "{schema}.limit_keys",
    "slots": "{schema}.live where limit_slot is not null and worker is not null",
    "paused_serials": (
        "(select name as serial, paused_at as since from {schema}.limit_keys where paused_at is not null)"
    ),
    "next_ready": _join_next("task, priority", _READY_JOBS),
    "next_queued": _join_next("queue, task, priority", _QUEUED_JOBS),
    "next_serial": _join_next("serial, task, priority", _SERIAL_JOBS),
    "ready": _READY_JOBS,
    "queued": _QUEUED_JOBS,
    "ready_by_place": f"{_JOBS_IN_ORDER} and queue is null",
    "queued_by_place": _JOBS_IN_ORDER,
    "serial": _SERIAL_JOBS,
    "suspects": "{schema}.live where state in ('queued', 'errored') and resets >= 2",
    "running": "{schema}.live where state = 'processing'",
    "failed": "{schema}.live where state = 'failed'",
    "troubled": "{schema}.live where state in ('errored', 'failed')",
    "canceled": "{schema}.history where state = 'canceled'",
    "find": "strpos",
    "has_flag": "%(flag)s::text = any(flags)",
    "is_forbidden": "coalesce(flags && %(forbidden)s::text[], false)",
    "lease_until": "lease_until",
    "on_failure_task": "on_failure->>'task'",
    "byte_order": 'collate "C"',
}


class Reader:
    """Reader of one store's schema."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        schema = context.fillings["schema"].replace("%", "%%")
        self._dialect = Dialect(
            {name: text.replace("{schema}", schema) for name, text in _DIALECT_FILLINGS.items()},
            format_value=lambda name: _NOW_EXPRESSION if name == "now" else f"%({name})s::{_VALUE_TYPES[name]}",
            format_membership=lambda column, name: f"{column} = any(%({name})s::{_VALUE_TYPES[name]})",
        )

    async def answer(self, start: Callable[[], Question[T]], *, is_long: bool = False) -> T:
        """Answer a question on a connection of the pool, in one snapshot.

        Without the snapshot, a job that is claimed meanwhile could be counted neither as ready nor as running.
        """
        with self._context.translated():
            async with (
                self._context.pool.connection("inspect") as connection,
                connection.read_transaction(one_snapshot=True),
            ):
                await connection.execute(PLANNER_SETTINGS)
                return await self._run_queries(start(), connection)

    async def _run_queries(self, question: Question[T], connection: Session) -> T:
        now = {"now": self._context.now()}
        try:
            query = next(question)
            while True:
                statement = self._dialect.statement(query.text).encode()
                query = question.send(await fetch(connection, statement, {**query.values, **now}))
        except StopIteration as end:
            answer: T = end.value
            return answer

    def read_job(self, row: Row) -> Job:
        return read_job(row)

    def read_moment(self, value: Any) -> datetime:
        moment: datetime = value
        return moment

    def read_names(self, value: Any) -> tuple[str, ...] | None:
        return None if value is None else tuple(value)
