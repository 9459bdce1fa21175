"""Shows what there is: jobs, counts and serial keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from stowhand.jobs.job import Job, State
from stowhand.protocols.operator import SerialRow
from stowhand.protocols.queue_store import NEWEST_JOBS, JobFilter
from stowhand.protocols.validation import validate_filter
from tests.model.engine import operating
from tests.model.engine.rows import Row, Transaction

LISTED = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
"""What a list shows unless a state is named."""


class Inspector:
    """For people."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def list(self, job_filter: JobFilter = NEWEST_JOBS) -> Sequence[Job]:
        with self._transaction() as rows:
            job_filter = validate_filter(job_filter)
            ordered = sorted(rows.every(), key=lambda row: row.id, reverse=job_filter.newest_first)
            return [row.job() for row in ordered if matches(row, job_filter)][: job_filter.limit]

    async def counts(self) -> dict[State, int]:
        with self._transaction() as rows:
            states = [row.state for row in rows.every()]
            return {state: states.count(state) for state in State}

    async def serials(self, *, paused: bool = False) -> Sequence[SerialRow]:
        """By name: those with live jobs, and the paused ones."""
        with self._transaction() as rows:
            names = {row.serial for row in rows.live.values() if row.serial is not None and not paused}
            return [operating.serial_row(rows, name) for name in sorted(names | rows.paused_serials.keys())]


def matches(row: Row, job_filter: JobFilter) -> bool:
    """Whether it is one of the jobs to list."""
    below = job_filter.newest_first and job_filter.after > 0
    return (
        (row.id < job_filter.after if below else job_filter.newest_first or row.id > job_filter.after)
        and row.state in (job_filter.states or LISTED)
        and job_filter.task in (None, row.task)
        and job_filter.serial in (None, row.serial)
        and job_filter.key in (None, row.key)
        and job_filter.parent_id is None
        and job_filter.worker in (None, row.worker)
        and (job_filter.error is None or job_filter.error.lower() in (row.last_error or "").lower())
        and (job_filter.since is None or at(row) >= job_filter.since)
        and (job_filter.until is None or at(row) < job_filter.until)
    )


def at(row: Row) -> datetime:
    """When it ended; where it has not: when it was enqueued."""
    return row.finished_at or row.created_at
