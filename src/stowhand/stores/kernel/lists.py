"""Lists of the jobs that match a filter."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.jobs.job import Job
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.search import HISTORY_STATES, LIVE_STATES, MAX_INT64, Search
from stowhand.stores.kernel.columns import JOB_COLUMNS
from stowhand.stores.kernel.question import Engine, Query, Question

STATES_BY_TABLE = {"live": LIVE_STATES, "past": HISTORY_STATES}
END_TIMES = {"live": "coalesce(finished_at, created_at)", "past": "finished_at"}
"""The time at which a job ended, by table; for a job that has not ended, the time of its enqueue."""
_FILTER_CONDITIONS = {
    "task": "task = :task",
    "queue": "queue = :queue",
    "serial": "serial = :serial",
    "key": "key = :key",
    "flag": "{has_flag}",
    "parent_id": "parent_id = :parent_id",
    "error": "last_error IS NOT NULL AND {find}(lower(last_error), lower(:error)) > 0",
}


def conditions(job_filter: JobFilter | Search, table: str, worker_column: str) -> str:
    """Return the conditions of the filter, each after an AND. ``worker_column`` is compared with its worker."""
    values, end_time = values_of(job_filter), END_TIMES[table]
    texts = _FILTER_CONDITIONS | {
        "since": f"{end_time} >= :since",
        "until": f"{end_time} < :until",
        "worker": f"{worker_column} = :worker",
    }
    used_conditions = [text for name, text in texts.items() if values.get(name) is not None]
    return "".join(f" AND {text}" for text in ("state IN :states", *used_conditions))


def values_of(job_filter: JobFilter | Search) -> dict[str, object]:
    """Return the values of the filter by their names in the conditions."""
    return msgspec.structs.asdict(job_filter)


def list_jobs(engine: Engine, job_filter: JobFilter) -> Question[Sequence[Job]]:
    """Return the jobs in the order of their ids.

    One statement reads both tables, so a job that moves to the history meanwhile is listed once.
    """
    states = job_filter.states or LIVE_STATES
    order, position_condition = ("id DESC", "id < :after") if job_filter.newest_first else ("id", "id > :after")
    parts = [
        f"SELECT * FROM (SELECT {JOB_COLUMNS} FROM {{{table}_jobs}}"
        f" WHERE {position_condition}{conditions(job_filter, table, 'worker')}"
        f" ORDER BY {order} LIMIT :limit) AS {table}"
        for table, table_states in STATES_BY_TABLE.items()
        if not set(table_states).isdisjoint(states)
    ]
    values = values_of(job_filter)
    values["states"] = [str(state) for state in states]
    values["after"] = job_filter.after or (MAX_INT64 if job_filter.newest_first else 0)
    rows = yield Query(" UNION ALL ".join(parts), values)
    rows = sorted(rows, key=lambda row: row[0], reverse=job_filter.newest_first)
    return [engine.read_job(row) for row in rows[: job_filter.limit]]
