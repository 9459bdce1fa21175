"""Shows what there is: jobs, counts, queues, workers, and why a job does not run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stowhand.jobs.job import Job, State
from stowhand.protocols.figures import Figures, Pauses
from stowhand.protocols.operating import Explanation, QueueRow, WorkerRow
from stowhand.protocols.queue_store import NEWEST, JobFilter
from stowhand.stores.sqlite.queue import counting, inspector, operating
from stowhand.stores.sqlite.queue.connections import Connections


class Inspector:
    """Reads, which wait for no write."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def list(self, wanted: JobFilter = NEWEST) -> Sequence[Job]:
        """In id order."""
        return await self._connections.read(lambda connection, _: inspector.find(connection, wanted))

    async def counts(self) -> dict[State, int]:
        return await self._connections.read_all(lambda connection, _: inspector.counts(connection))

    async def oldest_due(self) -> float:
        """Seconds for which the job that is due longest could have run."""
        return await self._connections.read(counting.oldest_due)

    async def queues(self) -> Sequence[QueueRow]:
        """By name."""
        return await self._connections.read(operating.queues)

    async def figures(self) -> Figures:
        """From indexes; a long history is estimated from a sample of its rows."""
        return await self._connections.read_all(counting.figures)

    async def workers(self) -> Sequence[WorkerRow]:
        """By name."""
        return await self._connections.read(operating.workers)

    async def explain(self, job_id: int) -> Explanation | None:
        """Why it is not running."""
        return await self._connections.read(partial(operating.explain_job, job_id=job_id))

    async def pauses(self) -> Pauses:
        """By name."""
        return await self._connections.read(lambda connection, _: counting.pauses(connection))
