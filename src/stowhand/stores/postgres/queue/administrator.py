"""Actions on one job or on many, by the schema's administration functions."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.clock import SystemClock
from stowhand.jobs.job import Job
from stowhand.protocols.queue_store import ActionResult, Answer, Reschedule
from stowhand.protocols.validation import (
    validate_id,
    validate_ids,
    validate_key,
    validate_reason,
    validate_reschedule,
    validate_workers,
)
from stowhand.stores.database.link import Values
from stowhand.stores.database.postgres_errors import retry_transient
from stowhand.stores.database.statements import plain_array, text_array
from stowhand.stores.postgres.queue.context import PostgresContext, RowLocked
from stowhand.stores.postgres.queue.producer import Producer
from stowhand.stores.postgres.queue.rows import Row, read_job

MAX_JOBS_PER_TRANSACTION = 500
"""A transaction with this number of jobs takes some tens of milliseconds, so others wait only briefly for locks."""


class Administrator:
    """Actions on jobs. A call that returns jobs is atomic; a call that returns answers decides job by job."""

    def __init__(self, context: PostgresContext, producer: Producer) -> None:
        self._context = context
        self.add_built_in = producer.add_built_in
        self._clock = SystemClock()

    async def retry(self, job_id: int) -> Answer:
        """Make the job due now, with 0 attempts and 0 resets."""
        return await self._act("retry", job_id, (validate_id(job_id), self._context.now()))

    async def cancel(self, job_id: int) -> Answer:
        """Cancel the job at once; request cancellation of a running job."""
        return await self._act(
            "cancel", job_id, (validate_id(job_id), self._context.keeps_history, self._context.now())
        )

    async def remove(self, job_id: int) -> Answer:
        """Delete the job, unless it is running or completed."""
        return await self._act("remove", job_id, (validate_id(job_id),))

    async def remove_key(self, key: str) -> Answer:
        """Delete the job that holds the key; a running one loses it and will not run again."""
        ((job_id, done, reason),) = await self._rows("remove_key", (validate_key(key),))
        if done == ActionResult.MISSING:
            return Answer(None, ActionResult.MISSING, f"no live job has the key {key!r}")
        return Answer(job_id, ActionResult(done), reason)

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        """Retry all failed ones of these jobs. If another transaction locks one of them, retry none."""
        values = (plain_array(validate_ids(job_ids)), self._context.now())
        return [row[0] for row in await self._rows("retry_failed", values, row="one of the jobs")]

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        """Complete these jobs as a worker would."""
        return await self._jobs("complete_jobs", plain_array(validate_ids(job_ids)), self._context.keeps_history)

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> Sequence[Job]:
        """Fail these jobs permanently."""
        return await self._jobs("permanently_fail_jobs", plain_array(validate_ids(job_ids)), validate_reason(reason))

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        """Set the passed values of run time, priority, attempts and queue."""
        to = validate_reschedule(to)
        details = (to.run_at, to.priority, to.attempts, to.max_attempts, to.queue)
        return await self._jobs(
            "reschedule_jobs", plain_array(validate_ids(job_ids)), *details, self._context.keeps_history
        )

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        """Reset the jobs that these workers hold."""
        return await self._jobs(
            "force_unlock_workers", text_array(validate_workers(workers)), self._context.keeps_history
        )

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Make the jobs due now, with 0 attempts and 0 resets."""
        return await self._act_on_all("retry_jobs", job_ids, self._context.now())

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Cancel the jobs at once; request cancellation of running jobs."""
        return await self._act_on_all("cancel_jobs", job_ids, self._context.keeps_history, self._context.now())

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        """Delete the jobs, unless they are running or completed."""
        return await self._act_on_all("remove_jobs", job_ids)

    async def _act(self, name: str, job_id: int, values: Sequence[object]) -> Answer:
        ((done, reason),) = await self._rows(name, values)
        return _answer(job_id, done, reason)

    async def _rows(self, name: str, values: Values, *, row: str = "the job") -> list[Row]:
        with self._context.translated():
            return await self._context.ask("inspect", name, values, row=row)

    async def _jobs(self, name: str, *values: object) -> Sequence[Job]:
        arguments = (*values, self._context.now())
        locked = "one of the jobs (nothing was changed)"
        with self._context.translated():
            rows = await retry_transient(lambda: self._context.ask("inspect", name, arguments, row=locked), self._clock)
        return [read_job(row) for row in rows]

    async def _act_on_all(self, name: str, job_ids: Sequence[int], *values: object) -> list[Answer]:
        answers: list[Answer] = []
        ids = validate_ids(job_ids)
        for start in range(0, len(ids), MAX_JOBS_PER_TRANSACTION):
            answers += await self._act_on_page(name, ids[start : start + MAX_JOBS_PER_TRANSACTION], values)
        return answers

    async def _act_on_page(self, name: str, ids: Sequence[int], values: tuple[object, ...]) -> list[Answer]:
        """Act in one transaction. If another transaction locks one of the jobs, act on each by itself."""
        try:
            with self._context.translated():
                rows = await self._context.ask("inspect", name, (plain_array(ids), *values))
        except RowLocked as error:
            if len(ids) == 1:
                return [Answer(ids[0], ActionResult.REFUSED, str(error))]
            alone = [await self._act_on_page(name, [job_id], values) for job_id in ids]
            return [answer for answers in alone for answer in answers]
        return [_answer(*row) for row in rows]


def _answer(job_id: int, done: str, reason: str) -> Answer:
    """Return the answer of an acting statement about one job."""
    return Answer(job_id, ActionResult(done), f"there is no job {job_id}" if done == ActionResult.MISSING else reason)
