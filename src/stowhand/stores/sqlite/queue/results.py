"""Outcomes of jobs by their ids, read after any commit to the file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stowhand.jobs.job import State
from stowhand.protocols.producer import JobStatus
from stowhand.stores.database.sqlite_wake import Wake
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import to_datetime
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.transaction import Transaction

COMMIT_WAIT_SECONDS = 10.0
"""The maximum duration of one wait for a commit. The next one follows."""


class Results:
    """Reader of the outcomes of one store. It reads again after each commit to the file."""

    min_pause = 0.01

    def __init__(self, connections: Connections, retention: float | None) -> None:
        self._connections = connections
        self._retention = retention
        # The workers' wake-up is unsuitable: it also rings for every enqueue of this process.
        self._wake = connections.commit_wake()
        self.wait_for_commit = None if self._wake is None else partial(_wait_for_commit, self._wake)

    async def retention(self) -> float | None:
        """Return the seconds for which this store keeps the history; ``None`` if it keeps none."""
        return self._retention

    async def ask(self, job_ids: Sequence[int]) -> Sequence[JobStatus]:
        """Return the state of each job, by one statement."""
        return await self._connections.read(lambda tx: _statuses(tx, job_ids))

    def close(self) -> None:
        """Close the connection that waits for commits."""
        if self._wake is not None:
            self._wake.close()


async def _wait_for_commit(wake: Wake) -> None:
    """Wait until another connection has committed."""
    while not await wake.wait(COMMIT_WAIT_SECONDS):
        pass


def _statuses(tx: Transaction, job_ids: Sequence[int]) -> list[JobStatus]:
    job_rows = tx.rows("standings", ids=as_json(job_ids))
    last_id = None
    statuses = []
    for row in job_rows:
        job_id, state, attempts, resets, last_error, result, started_at, finished_at, revision, replaced = row
        if state is None:
            last_id = last_id or tx.row("last_id") or (0,)
            statuses.append(JobStatus(job_id, is_known=job_id <= last_id[0]))
            continue
        statuses.append(
            JobStatus(
                job_id,
                State(state),
                attempts=attempts,
                resets=resets,
                last_error=last_error,
                result_text=result,
                started_at=None if started_at is None else to_datetime(started_at),
                finished_at=None if finished_at is None else to_datetime(finished_at),
                revision=revision,
                replaced=replaced,
            )
        )
    return statuses
