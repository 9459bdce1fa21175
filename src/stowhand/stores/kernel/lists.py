"""Lists of the jobs that match a filter."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.jobs.job import Job
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.search import HISTORY_STATES, LIVE_STATES, MAX_INT64, Search
from stowhand.stores.kernel.columns import JOB
from stowhand.stores.kernel.question import Engine, Query, Question

TABLES = {"live": LIVE_STATES, "past": HISTORY_STATES}
END_TIMES = {"live": "coalesce(finished_at, created_at)", "past": "finished_at"}
"""The time at which a job ended, by table; for a job that has not ended, the time of its enqueue."""
_CONDITIONS = {
    "task": "task = :task",
    "queue": "queue = :queue",
    "serial": "serial = :serial",
    "key": "key = :key",
    "flag": "{has_flag}",
    "error": "last_error IS NOT NULL AND {find}(lower(last_error), lower(:error)) > 0",
}


def conditions(wanted: JobFilter | Search, table: str, worker: str) -> str:
    """Return the conditions of the filter, each after an AND. ``worker``: the column compared with its worker."""
    values, ended = values_of(wanted), END_TIMES[table]
    texts = _CONDITIONS | {"since": f"{ended} >= :since", "until": f"{ended} < :until", "worker": f"{worker} = :worker"}
    found = [text for name, text in texts.items() if values.get(name) is not None]
    return "".join(f" AND {text}" for text in ("state IN :states", *found))


def values_of(wanted: JobFilter | Search) -> dict[str, object]:
    """Return the values of the filter by their names in the conditions."""
    return msgspec.structs.asdict(wanted)


def list_jobs(engine: Engine, wanted: JobFilter) -> Question[Sequence[Job]]:
    """Return the jobs in the order of their ids.

    One statement reads both tables, so a job that moves to the history meanwhile is listed once.
    """
    states = wanted.states or LIVE_STATES
    order, beyond = ("id DESC", "id < :after") if wanted.newest_first else ("id", "id > :after")
    parts = [
        f"SELECT * FROM (SELECT {JOB} FROM {{{table}_jobs}} WHERE {beyond}{conditions(wanted, table, 'worker')}"
        f" ORDER BY {order} LIMIT :limit) AS {table}"
        for table, kept in TABLES.items()
        if not set(kept).isdisjoint(states)
    ]
    values = values_of(wanted)
    values["states"] = [str(state) for state in states]
    values["after"] = wanted.after or (MAX_INT64 if wanted.newest_first else 0)
    rows = yield Query(" UNION ALL ".join(parts), values)
    rows = sorted(rows, key=lambda row: row[0], reverse=wanted.newest_first)
    return [engine.read_job(row) for row in rows[: wanted.limit]]
