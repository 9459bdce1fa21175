"""How jobs stand that are waited for."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import State
from stowhand.protocols.producer import JobStatus
from tests.model.engine.rows import Rows, Transaction


class Results:
    """Of one model."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def ask(self, job_ids: Sequence[int]) -> Sequence[JobStatus]:
        with self._transaction() as rows:
            return statuses(rows, job_ids)


def statuses(rows: Rows, job_ids: Sequence[int]) -> list[JobStatus]:
    """Of those that have ended, have made place for another job, or are nowhere."""
    results = []
    for job_id in job_ids:
        row = rows.find(job_id)
        if row is None:
            results.append(JobStatus(job_id, is_known=job_id <= rows.last_id))
        elif row.state.terminal or row.replaced is not None:
            results.append(
                JobStatus(
                    job_id,
                    row.state,
                    attempts=row.attempts,
                    resets=row.resets,
                    last_error=row.last_error,
                    result_text=row.result if row.state is State.COMPLETED else None,
                    started_at=row.started_at,
                    finished_at=row.finished_at,
                    revision=row.revision,
                    replaced=row.replaced,
                )
            )
    return results
