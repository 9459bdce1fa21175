"""The reader that runs the kernel's queries, each in one transaction on one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from stowhand.jobs.job import Job
from stowhand.stores.kernel.dialect import Dialect
from stowhand.stores.kernel.question import Question, Row
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import to_datetime, to_micros
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.transaction import Transaction

T = TypeVar("T")
_names = msgspec.json.Decoder(tuple[str, ...])
_INDEXED_JOBS = "stowhand_jobs INDEXED BY stowhand_jobs"
_FLAG_ROWS = "json_each(CASE WHEN json_valid(flags) THEN flags END)"
_IS_WAITING = "state IN ('queued', 'errored')"
_READY_JOBS = f"{_INDEXED_JOBS}_ready WHERE queue IS NULL AND {_IS_WAITING} AND serial IS NULL AND resets < 2"
_QUEUED_JOBS = f"{_INDEXED_JOBS}_queued WHERE queue IS NOT NULL AND {_IS_WAITING} AND serial IS NULL AND resets < 2"
_SERIAL_JOBS = f"{_INDEXED_JOBS}_serial WHERE {_IS_WAITING} AND serial IS NOT NULL AND resets < 2"


def _next(jobs: str, *columns: str) -> str:
    """Return the join of a row with the first job after it in an index.

    Each search compares one column. For (a, b) > (x, y), SQLite's search uses only the first column and reads all rows
    with the same value.
    """
    searches = []
    for place in reversed(range(len(columns))):
        same = "".join(f"{column} = here.{column} AND " for column in columns[:place])
        order = ", ".join((*columns[place:], "run_at"))
        after = f"{columns[place]} > here.{columns[place]}"
        searches.append(f"(SELECT id FROM {jobs} AND {same}{after} ORDER BY {order} LIMIT 1)")
    return f"JOIN stowhand_jobs AS job ON job.id = coalesce({', '.join(searches)})"


SQLITE_DIALECT = Dialect(
    {
        "next_ready": _next(_READY_JOBS, "task", "priority"),
        "next_queued": _next(_QUEUED_JOBS, "queue", "task", "priority"),
        "next_serial": _next(_SERIAL_JOBS, "serial", "task", "priority"),
        "live": "stowhand_jobs",
        "past": "stowhand_history",
        "live_jobs": "stowhand_live",
        "past_jobs": "stowhand_past",
        "workers": "stowhand_workers",
        "app_versions": "stowhand_app_versions",
        "throughput": "stowhand_throughput",
        "total_throughput": "stowhand_throughput",
        "tries": "stowhand_tries",
        "pauses": "stowhand_pauses",
        "task_queues": "stowhand_task_queues",
        "limits": "stowhand_limits",
        "task_limits": "stowhand_task_limits",
        "steps": "stowhand_steps",
        "limit_keys": "stowhand_limit_keys",
        "slots": f"{_INDEXED_JOBS}_slots WHERE state = 'processing' AND limit_slot IS NOT NULL",
        "paused_serials": "stowhand_paused",
        "ready": _READY_JOBS,
        "queued": _QUEUED_JOBS,
        "ready_by_place": _READY_JOBS,
        "queued_by_place": _QUEUED_JOBS,
        "serial": _SERIAL_JOBS,
        "suspects": f"{_INDEXED_JOBS}_suspect WHERE {_IS_WAITING} AND resets >= 2",
        "running": f"{_INDEXED_JOBS}_running WHERE state = 'processing'",
        "failed": f"{_INDEXED_JOBS}_failed WHERE state = 'failed'",
        "troubled": f"{_INDEXED_JOBS}_troubled WHERE state IN ('errored', 'failed')",
        "canceled": "stowhand_history INDEXED BY stowhand_history_canceled WHERE state = 'canceled'",
        "find": "instr",
        "has_flag": f":flag IN (SELECT value FROM {_FLAG_ROWS})",
        "is_forbidden": f"EXISTS (SELECT 1 FROM {_FLAG_ROWS} WHERE value IN (SELECT value FROM json_each(:forbidden)))",
        # A lease of another boot expired with that boot, at an unknown time.
        "lease_until": (
            "CASE WHEN lease_boot = :boot THEN :now + lease_until - :ticks WHEN lease_boot IS NOT NULL THEN 0 END"
        ),
        "on_failure_task": "json_extract(on_failure, '$.task')",
        "byte_order": "COLLATE BINARY",
    },
    format_value=lambda name: f":{name}",
    format_membership=lambda column, name: f"{column} IN (SELECT value FROM json_each(:{name}))",
)


class Reader:
    """Reader of one store. Reads do not wait for writes."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def answer(self, ask: Callable[[], Question[T]], *, is_long: bool = False) -> T:
        """Answer a question in one snapshot. ``is_long``: use the connection for long reads."""
        read = self._connections.read_all if is_long else self._connections.read
        return await read(lambda tx: _answer(tx, ask()))

    def read_job(self, row: Row) -> Job:
        return to_job(row)

    def read_moment(self, value: Any) -> datetime:
        return to_datetime(value)

    def read_names(self, value: Any) -> tuple[str, ...] | None:
        return None if value is None else _names.decode(value)


def _answer(tx: Transaction, question: Question[T]) -> T:
    times = {"now": tx.now.wall, "boot": tx.now.boot, "ticks": tx.now.ticks}
    tx.raw.execute("BEGIN")
    try:
        query = next(question)
        while True:
            rows = tx.raw.execute(SQLITE_DIALECT.statement(query.text), times | _stored(query.values)).fetchall()
            query = question.send(rows)
    except StopIteration as end:
        answer: T = end.value
        return answer
    finally:
        tx.raw.rollback()


def _stored(values: Mapping[str, object]) -> dict[str, object]:
    """Convert values to the representation in the columns."""
    return {name: _as_stored(value) for name, value in values.items()}


def _as_stored(value: object) -> object:
    if isinstance(value, datetime):
        return to_micros(value)
    return as_json(value) if isinstance(value, (list, tuple)) else value
