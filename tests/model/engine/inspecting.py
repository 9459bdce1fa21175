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

    async def list(self, wanted: JobFilter = NEWEST_JOBS) -> Sequence[Job]:
        with self._transaction() as rows:
            wanted = validate_filter(wanted)
            ordered = sorted(rows.every(), key=lambda row: row.id, reverse=wanted.newest_first)
            return [row.job() for row in ordered if matches(row, wanted)][: wanted.limit]

    async def counts(self) -> dict[State, int]:
        with self._transaction() as rows:
            states = [row.state for row in rows.every()]
            return {state: states.count(state) for state in State}

    async def serials(self, *, paused: bool = False) -> Sequence[SerialRow]:
        """By name: those with live jobs, and the paused ones."""
        with self._transaction() as rows:
            names = {row.serial for row in rows.live.values() if row.serial is not None and not paused}
            return [operating.serial_row(rows, name) for name in sorted(names | rows.paused_serials.keys())]


def matches(row: Row, wanted: JobFilter) -> bool:
    """Whether it is one of the jobs to list."""
    below = wanted.newest_first and wanted.after > 0
    return (
        (row.id < wanted.after if below else wanted.newest_first or row.id > wanted.after)
        and row.state in (wanted.states or LISTED)
        and wanted.task in (None, row.task)
        and wanted.serial in (None, row.serial)
        and wanted.key in (None, row.key)
        and wanted.worker in (None, row.worker)
        and (wanted.error is None or wanted.error.lower() in (row.last_error or "").lower())
        and (wanted.since is None or at(row) >= wanted.since)
        and (wanted.until is None or at(row) < wanted.until)
    )


def at(row: Row) -> datetime:
    """When it ended; where it has not: when it was enqueued."""
    return row.finished_at or row.created_at
