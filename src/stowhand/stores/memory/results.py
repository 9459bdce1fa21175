"""Hearing of the end of jobs of the memory store."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import NewJob, State
from stowhand.protocols.results import Standing
from stowhand.protocols.sleepers import Sleepers
from stowhand.stores.memory.rows import Rows, Transaction

AT_LATEST = 10.0
"""Seconds after which one asks without a reason."""


class Results:
    """``endings``: woken when a job has ended that is waited for."""

    waiter = None

    def __init__(self, transaction: Transaction, endings: Sleepers) -> None:
        self._transaction = transaction
        self._endings = endings

    def marked(self, job: NewJob) -> bool:
        """Never by its enqueueing."""
        return False

    async def retention(self) -> float | None:
        with self._transaction() as rows:
            return rows.retention

    async def mark(self, job_ids: Sequence[int]) -> Sequence[Standing]:
        with self._transaction() as rows:
            rows.awaited.update(job_ids)
            return standings(rows, job_ids)

    async def ask(self, job_ids: Sequence[int]) -> Sequence[Standing]:
        with self._transaction() as rows:
            return standings(rows, job_ids)

    async def hear(self, job_ids: Sequence[int]) -> None:
        await self._endings.wait(self._endings.wakes, AT_LATEST)

    async def rest(self) -> None:
        pass


def standings(rows: Rows, job_ids: Sequence[int]) -> list[Standing]:
    """Of those that have ended, have made place for another job, or are nowhere."""
    found = []
    for job_id in job_ids:
        row = rows.find(job_id)
        if row is None:
            found.append(Standing(job_id, is_known=job_id <= rows.last_id))
        elif row.state.terminal or row.replaced is not None:
            found.append(
                Standing(
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
