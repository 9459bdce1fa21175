"""Shows what there is in the memory store: jobs, counts, queues, workers, and why a job does not run."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import Job, State
from stowhand.protocols.figures import Figures, Pauses
from stowhand.protocols.operating import Explanation, QueueRow, WorkerRow
from stowhand.protocols.queue_store import NEWEST, JobFilter
from stowhand.protocols.validation import validate_filter, validate_id
from stowhand.stores.memory import operating
from stowhand.stores.memory.rows import Row, Transaction

LISTED = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
"""What a list shows unless a state is named."""


class Inspector:
    """For people."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def list(self, wanted: JobFilter = NEWEST) -> Sequence[Job]:
        with self._transaction() as (rows, _):
            wanted = validate_filter(wanted)
            ordered = sorted(rows.every(), key=lambda row: row.id, reverse=wanted.newest_first)
            return [row.job() for row in ordered if matches(row, wanted)][: wanted.limit]

    async def counts(self) -> dict[State, int]:
        with self._transaction() as (rows, _):
            states = [row.state for row in rows.every()]
            return {state: states.count(state) for state in State}

    async def oldest_due(self) -> float:
        with self._transaction() as (rows, now):
            waiting = (row for row in rows.live.values() if row.waits() and not rows.is_paused(row))
            waited = [(now - row.run_at).total_seconds() for row in waiting]
            return max([0.0, *waited])

    async def pauses(self) -> Pauses:
        with self._transaction() as (rows, _):
            return operating.pauses(rows)

    async def queues(self) -> Sequence[QueueRow]:
        with self._transaction() as (rows, now):
            return operating.queues(rows, now)

    async def workers(self) -> Sequence[WorkerRow]:
        with self._transaction() as (rows, now):
            return operating.workers(rows, now)

    async def explain(self, job_id: int) -> Explanation | None:
        with self._transaction() as (rows, now):
            return operating.explain_job(rows, validate_id(job_id), now)

    async def figures(self) -> Figures:
        with self._transaction() as (rows, now):
            return operating.figures(rows, now)


def matches(row: Row, wanted: JobFilter) -> bool:
    """Whether it is one of the jobs to list."""
    below = wanted.newest_first and wanted.after > 0
    at = row.finished_at or row.created_at
    return (
        (row.id < wanted.after if below else wanted.newest_first or row.id > wanted.after)
        and row.state in (wanted.states or LISTED)
        and wanted.task in (None, row.task)
        and wanted.queue in (None, row.queue)
        and wanted.key in (None, row.key)
        and wanted.worker in (None, row.worker)
        and (wanted.error is None or wanted.error.lower() in (row.last_error or "").lower())
        and (wanted.since is None or at >= wanted.since)
        and (wanted.until is None or at < wanted.until)
    )
