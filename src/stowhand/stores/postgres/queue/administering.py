"""Acting on many jobs at once: what the schema's administration functions do, for Python."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from stowhand.clock import SystemClock
from stowhand.errors import StoreUnreachable
from stowhand.jobs.job import Job
from stowhand.protocols.queue_store import Reschedule
from stowhand.protocols.validation import validate_ids, validate_reason, validate_reschedule, validate_workers
from stowhand.stores.database.repeating import repeated
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.rows import plain_array, read_job, text_array


class Administrator:
    """Every call is one statement: all of it, or nothing."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        self._clock = SystemClock()

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        """As if they had been worked off."""
        return await self._jobs("complete_jobs", plain_array(validate_ids(job_ids)), self._context.keep)

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None) -> Sequence[Job]:
        """For good."""
        return await self._jobs("permanently_fail_jobs", plain_array(validate_ids(job_ids)), validate_reason(reason))

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        """The given details."""
        to = validate_reschedule(to)
        details = (to.run_at, to.priority, to.attempts, to.max_attempts)
        return await self._jobs("reschedule_jobs", plain_array(validate_ids(job_ids)), *details, self._context.keep)

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Take back what these workers hold."""
        return await self._jobs("force_unlock_workers", text_array(validate_workers(workers)), self._context.keep)

    async def _jobs(self, name: str, *values: object) -> Sequence[Job]:
        with self._context.translated():
            return await repeated(lambda: self._ask(name, values), self._clock)

    async def _ask(self, name: str, values: tuple[object, ...]) -> Sequence[Job]:
        """A row that stays locked is somebody's affair: it is not asked for again."""
        try:
            found = await self._context.pool.rows(
                "inspect", self._context.statements[name], (*values, self._context.now())
            )
        except psycopg.errors.LockNotAvailable:
            raise StoreUnreachable(
                f"{self._context.address}: somebody's open transaction holds one of the jobs; nothing was "
                "changed, try again when it has ended"
            ) from None
        return [read_job(row) for row in found]
