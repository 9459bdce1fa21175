"""How jobs stand that are waited for."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import State
from stowhand.protocols.producer import JobStanding
from tests.model.engine.rows import Rows, Transaction


class Results:
    """Of one model."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def ask(self, job_ids: Sequence[int]) -> Sequence[JobStanding]:
        with self._transaction() as rows:
            return standings(rows, job_ids)


def standings(rows: Rows, job_ids: Sequence[int]) -> list[JobStanding]:
    """Of those that have ended, have made place for another job, or are nowhere."""
    found = []
    for job_id in job_ids:
        row = rows.find(job_id)
        if row is None:
            found.append(JobStanding(job_id, is_known=job_id <= rows.last_id))
        elif row.state.terminal or row.replaced is not None:
            found.append(
                JobStanding(
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
    return found
