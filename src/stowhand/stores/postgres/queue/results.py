"""Outcomes of jobs by their ids."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import State
from stowhand.protocols.producer import JobStatus
from stowhand.stores.database.link import Row
from stowhand.stores.database.statements import plain_array
from stowhand.stores.postgres.queue.context import PostgresContext

_GONE_STATE, _UNKNOWN_STATE = "gone", "unknown"


class Results:
    """Reader of the outcomes of one store."""

    min_pause = 0.01
    wait_for_commit = None

    def __init__(self, context: PostgresContext) -> None:
        self._context = context

    async def retention(self) -> float | None:
        """Return the seconds for which this store keeps the history; ``None`` if it keeps none."""
        return self._context.options.history

    async def ask(self, job_ids: Sequence[int]) -> Sequence[JobStatus]:
        """Return the state of each job, by one statement."""
        with self._context.translated():
            rows = await self._context.ask("inspect", "job_ends", (plain_array(job_ids),))
        return [_status(row) for row in rows]


def _status(row: Row) -> JobStatus:
    job_id, state, attempts, resets, last_error, result, started_at, finished_at, revision, replaced = row
    if state in (_GONE_STATE, _UNKNOWN_STATE):
        return JobStatus(job_id, is_known=state == _GONE_STATE)
    return JobStatus(
        job_id, State(state), attempts=attempts, resets=resets, last_error=last_error, result_text=result,
        started_at=started_at, finished_at=finished_at, revision=revision, replaced=replaced,
    )  # fmt: skip
