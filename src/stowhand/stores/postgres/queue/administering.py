"""Acts on many jobs at once, by the schema's administration functions."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.clock import SystemClock
from stowhand.jobs.job import Job
from stowhand.protocols.queue_store import Answer, Done, Reschedule
from stowhand.protocols.validation import validate_ids, validate_reason, validate_reschedule, validate_workers
from stowhand.stores.database.repeating import repeated
from stowhand.stores.postgres.queue.context import PostgresContext, RowLocked
from stowhand.stores.postgres.queue.inspecting import answer
from stowhand.stores.postgres.queue.rows import plain_array, read_job, text_array

AT_ONCE = 500
"""Jobs that are acted on in one transaction: some tens of milliseconds, so that nothing waits long for their locks."""


class Administrator:
    """A call that gives jobs is one statement: all of it, or nothing. One that gives answers acts on job by job."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        self._clock = SystemClock()

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        """As if a worker had completed them."""
        return await self._jobs("complete_jobs", plain_array(validate_ids(job_ids)), self._context.keep)

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None) -> Sequence[Job]:
        """For good."""
        return await self._jobs("permanently_fail_jobs", plain_array(validate_ids(job_ids)), validate_reason(reason))

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        """Set what is given of run time, priority and attempts."""
        to = validate_reschedule(to)
        details = (to.run_at, to.priority, to.attempts, to.max_attempts)
        return await self._jobs("reschedule_jobs", plain_array(validate_ids(job_ids)), *details, self._context.keep)

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Take back what these workers hold."""
        return await self._jobs("force_unlock_workers", text_array(validate_workers(workers)), self._context.keep)

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Due now, attempts and resets 0."""
        return await self._act_on_all("retry_jobs", job_ids, self._context.now())

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """At once; running jobs are asked to stop."""
        return await self._act_on_all("cancel_jobs", job_ids, self._context.keep, self._context.now())

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Delete, unless they run or are completed."""
        return await self._act_on_all("remove_jobs", job_ids)

    async def _jobs(self, name: str, *values: object) -> Sequence[Job]:
        with self._context.translated():
            return await repeated(lambda: self._ask(name, values), self._clock)

    async def _ask(self, name: str, values: tuple[object, ...]) -> Sequence[Job]:
        given = (*values, self._context.now())
        return [
            read_job(row)
            for row in await self._context.ask("inspect", name, given, row="one of the jobs (nothing was changed)")
        ]

    async def _act_on_all(self, name: str, job_ids: Sequence[int], *values: object) -> list[Answer]:
        answers: list[Answer] = []
        ids = validate_ids(job_ids)
        for start in range(0, len(ids), AT_ONCE):
            answers += await self._act_on_page(name, ids[start : start + AT_ONCE], values)
        return answers

    async def _act_on_page(self, name: str, ids: Sequence[int], values: tuple[object, ...]) -> list[Answer]:
        """In one transaction; each by itself where another transaction holds one of them."""
        try:
            with self._context.translated():
                found = await self._context.ask("inspect", name, (plain_array(ids), *values))
        except RowLocked as error:
            if len(ids) == 1:
                return [Answer(ids[0], Done.REFUSED, str(error))]
            alone = [await self._act_on_page(name, [job_id], values) for job_id in ids]
            return [one for answers in alone for one in answers]
        return [answer(*row) for row in found]
